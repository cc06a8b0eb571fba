"""PyTorch's elastic/timer/file_based_local_timer_test.py, with workers that write the watchdog's lines themselves, and the
later tests of --shutdown-timeout and --exit-barrier-timeout."""

import os
import signal

from compat_case import CompatCase, fsdprun_only, main

# acquire SCOPE SECONDS SIGNAL, release SCOPE: as FileTimerClient does.
CLIENT = """
timer() { printf '{"version": 1, "pid": %d, "scope_id": "%s", "expiration_time": %s, "signal": %d}\\n' $$ "$1" "$2" "$3" > "$TORCHELASTIC_TIMER_FILE"; }
acquire() { timer "$1" $((EPOCHSECONDS + $2)) "${3:-9}"; }
release() { timer "$1" -1 0; }
"""


class FileTimerTest(CompatCase):
    def job(self, script, *words, nproc=1, env=None):
        return self.run_job("--standalone", f"--nproc-per-node={nproc}", *words, "--no-python", self.program(CLIENT + script),
                            env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", **(env or {})})

    def test_client_interaction(self):
        """row_71: a release cancels."""
        self.assert_success(self.job("acquire a 3; release a; read -rt 4 -u 9; true"))

    def test_happy_path(self):
        self.assert_success(self.job("acquire a 60; release a", nproc=2))

    def test_get_timer_recursive(self):
        """A second acquire of a scope replaces the first."""
        self.assert_success(self.job("acquire a 3; acquire a 60; read -rt 4 -u 9; release a"))

    def test_multiple_clients_interaction(self):
        self.assert_success(self.job("for i in {1..20}; do acquire s$i 60; done; for i in {1..20}; do release s$i; done", nproc=4))

    @fsdprun_only
    def test_client_exits_before_release(self):
        """A timer of a process that is gone kills nobody. Under torchrun that depends on whether it has been reaped yet."""
        self.assert_success(self.job('if [[ $RANK == 0 ]]; then acquire a 1; exit 0; fi; read -rt 2.5 -u 9; true', nproc=2))

    def test_timer_expires(self):
        """row_71: the worker is killed, the launcher lives and tells why."""
        for number, code in ((9, "exitcode  : -9 (pid:"), (int(signal.SIGTERM), "exitcode  : -15 (pid:")):
            rc, _, err = self.job(f"acquire a 1 {number}; wait_for never")
            self.assertEqual(rc, 1, err)
            self.assert_summary(err, code)

    def test_timer_expires_and_the_job_is_restarted(self):
        """torchrun ends its agent by the same signal."""
        self.assert_success(self.job('if [[ $TORCHELASTIC_RESTART_COUNT == 0 ]]; then acquire a 1; wait_for never; fi', "--max-restarts=1", nproc=2))

    def test_exception_propagation(self):
        """A worker that fails while it holds a timer has failed by itself: nothing is killed, and its own code is told."""
        rc, _, err = self.job("acquire a 60; exit 7")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 7 (pid:")

    def test_acquire_release(self):
        """The server's side: a release takes away one scope, of whatever was acquired when, and an unknown one nothing."""
        self.assert_success(self.job("acquire a 2; acquire b 60; acquire c 2; release c; release a; release unknown; read -rt 3 -u 9; true"))

    def test_expired_timers(self):
        """Of several timers the first that is over kills, although others run on."""
        rc, _, err = self.job("acquire a 600; acquire b 1; release a; acquire c 600; wait_for never")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : -9 (pid:")

    def test_invalid_lines_are_skipped(self):
        self.assert_success(self.job('echo nonsense > "$TORCHELASTIC_TIMER_FILE"; acquire a 60; release a'))

    def test_only_processes_of_the_job_are_killed(self):
        script = f"""
            printf '{{"version": 1, "pid": {os.getpid()}, "scope_id": "x", "expiration_time": 1, "signal": 9}}\\n' > "$TORCHELASTIC_TIMER_FILE"
            read -rt 1 -u 9; true"""
        if self.launcher == "fsdprun":  # This process would be the victim.
            self.assert_success(self.job(script))

    def test_no_server(self):
        """Nobody reads the pipe: the client's write fails, as its test says, when there is no watchdog at all."""
        result = self.run_job("--standalone", "--no-python", self.program('[[ -z ${TORCHELASTIC_TIMER_FILE+set} ]]'))
        self.assert_success(result)


class ShutdownTimeoutTest(CompatCase):
    """shutdown_timeout_test.py, exit_barrier_timeout_test.py: newer than 2.11, under the names that they have there."""

    STUBBORN = 'trap "" TERM; echo > "$D/runs"; wait_for never'

    def plan(self, *words, env=None):
        rc, out, err = self.run_job("--dry-run", *words, "script.py", env=env)
        self.assertEqual(rc, 0, err)
        return dict(line.split(": ", 1) for line in out.splitlines())

    @fsdprun_only
    def test_default(self):
        self.assertEqual(self.plan()["shutdown_timeout_s"], "30")

    @fsdprun_only
    def test_environment(self):
        self.assertEqual(self.plan(env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"})["shutdown_timeout_s"], "60")

    @fsdprun_only
    def test_explicit_wins(self):
        self.assertEqual(self.plan("--shutdown-timeout=5", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"})["shutdown_timeout_s"], "5")

    @fsdprun_only
    def test_negative(self):
        for words, env in ((["--shutdown-timeout=-1"], {}), ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-1"}),
                           (["--exit-barrier-timeout=-1"], {}), ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "-1"})):
            self.assert_refused(self.run_job(*words, "--no-python", "true", env=env), 1, "-1")

    @fsdprun_only
    def test_zero(self):
        """row_40: with no grace at all the worker is killed at once."""
        process = self.start("--standalone", "--shutdown-timeout=0", "--no-python", self.program(self.STUBBORN))
        self.wait_for("runs")
        process.terminate()
        self.assertEqual(self.finish(process)[0], 1)

    @fsdprun_only
    def test_exit_barrier_timeout(self):
        for words, env in ((["--exit-barrier-timeout=0"], {}), ([], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "10"})):
            self.assert_success(self.run_job("--standalone", *words, "--no-python", "true", env=env))


if __name__ == "__main__":
    main()
