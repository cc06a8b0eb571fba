"""Cases that are known to fail, and why: a case of these lists that passes is an error, so that none is forgotten."""

# Of fsdprun: what has to be built first.
WAITS_FOR: dict[str, str] = {}

# Of torchrun 2.11: defects, by this project's own runs.
_NEW_NODE = "a node that comes later never gets the new round's MASTER_ADDR: both sides end after read_timeout"
_LOST_NODE = "the loss of a node is never acted upon"
_SPARE = "a spare that was not needed ends with an error"
TORCHRUN_FAILS: dict[str, str] = {
    "LocalAgentTest.test_double_agent_elastic": _LOST_NODE,
    "LocalAgentTest.test_double_agent_fault_tolerance": _LOST_NODE,
    "LocalAgentTest.test_no_exit_barrier_on_failure": "the other agent waits in its exit barrier for up to 300 s",
    "ErrorsTest.test_process_failure_incorrect_reply_file": "an error file that is no JSON ends the agent, without a summary and without a restart",
    "ErrorsTest.test_child_failed_error_of_workers_that_were_stopped": "what workers exit with after SIGTERM is listed as failures",
    "ErrorsTest.test_signal_name_in_message": "2.11 names it in the line of the traceback only",
    "ApiTest.test_rdzv_handler_shutdown_on_agent_signal": _NEW_NODE,
    "AgentTest.test_agent_process_handler_graceful_exception": _SPARE,
    "AgentTest.test_run_membership_change": _NEW_NODE,
    "C10dRendezvousBackendTest.test_create_backend_raises_error_if_tempfile_creation_fails": "waits for minutes for a file that it cannot make",
    "DynamicRendezvousTest.test_redundancy_list": _SPARE,
    "DynamicRendezvousTest.test_redundancy_transition_to_wait_list_then_join_rendezvous": _LOST_NODE,
    "DynamicRendezvousTest.test_scale_up_contract": _NEW_NODE,
    "DynamicRendezvousTest.test_share_store_creates_tcp_store_when_rank_changes_to_zero": _LOST_NODE,
    "MultiprocessingTest.test_no_zombie_process_when_the_launcher_dies": "workers become orphans",
    "FileTimerTest.test_expired_timers": "the watchdog ends the agent by the same signal",
    "FileTimerTest.test_timer_expires": "the watchdog ends the agent by the same signal",
    "FileTimerTest.test_timer_expires_and_the_job_is_restarted": "the watchdog ends the agent by the same signal",
}
