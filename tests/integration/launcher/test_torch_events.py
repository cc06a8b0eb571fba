"""--event-log-handler=console: one JSON line for each change of state."""

import json
import signal
import time

from job_case import JobCase, free_port
from unittest_main import main

CONSOLE = "--event-log-handler=console"


class TorchEventsTest(JobCase):
    def setUp(self):
        super().setUp()
        del self.env["LOGLEVEL"]

    def events_of(self, err):
        events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        for event in events:
            self.assertEqual(event["name"], "torchelastic.worker.status." + event["metadata"]["state"])
            event["details"] = json.loads(event["metadata"]["metadata"])
        return events

    def states_of(self, events):
        return [(event["source"], event["metadata"]["state"], event["metadata"]["global_rank"]) for event in events]

    def test_row_73_one_line_per_state_with_its_time(self):
        before_ms = time.time() * 1000
        rc, _, err = self.run_job("--nproc-per-node=2", f"--master-port={free_port()}", "--role=trainer", "--rdzv-id=job", CONSOLE,
                                  self.script(""))
        self.assertEqual(rc, 0, err)
        events = self.events_of(err)
        states = self.states_of(events)
        self.assertEqual(states[:4], [("AGENT", "RENDEZVOUS", None), ("AGENT", "ASSIGN_WORKER_RANKS", None),
                                      ("WORKER", "START", 0), ("WORKER", "START", 1)])
        self.assertEqual(sorted(states[4:6]), [("WORKER", "SUCCEEDED", 0), ("WORKER", "SUCCEEDED", 1)])
        self.assertEqual(states[6:], [("AGENT", "SUCCEEDED", None)])
        times = [event["timestamp"] for event in events]
        self.assertTrue(before_ms - 1 <= min(times) and max(times) <= time.time() * 1000, times)
        metadata = events[2]["metadata"]
        self.assertEqual((metadata["role"], metadata["run_id"], metadata["rdzv_backend"], metadata["group_rank"]),
                         ("trainer", "job", "static", 0))

    def test_row_73_failures_and_restarts(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", CONSOLE, self.script("""
            if RANK == 1:
                wait_for(f"ready.{GENERATION}.0")
                sys.exit(7)
            note("ready")
            live_on()
        """))
        self.assertEqual(rc, 1, err)
        events = self.events_of(err)
        self.assertEqual(self.states_of(events), [
            *[("AGENT", "RENDEZVOUS", None), ("AGENT", "ASSIGN_WORKER_RANKS", None), ("WORKER", "START", 0),
              ("WORKER", "START", 1), ("WORKER", "FAILED", 1), ("WORKER", "TERMINATED", 0)] * 2, ("AGENT", "SUCCEEDED", None)])
        failed, terminated = events[10], events[11]
        self.assertEqual((failed["details"]["exit_code"], terminated["details"]["exit_code"]), ([7], [-15]))
        self.assertEqual(json.loads(failed["metadata"]["raw_error"])["message"], "<NONE>")
        self.assertEqual([event["metadata"]["agent_restarts"] for event in events], [0] * 6 + [1] * 7)

    def test_row_73_a_launcher_that_is_ended_has_failed(self):
        launcher = self.start("--standalone", CONSOLE, self.script("note('ready'); live_on()"))
        self.wait_for_notes("ready", 1, [0])
        launcher.send_signal(signal.SIGTERM)
        last = self.events_of(self.finish(launcher)[2])[-1]
        self.assertEqual((last["source"], last["metadata"]["state"]), ("AGENT", "FAILED"))
        self.assertIn("15", last["metadata"]["raw_error"])

    def last_events_of_two(self, script, number=None):
        """The last event of each node, of which the first one gets the signal."""
        port = free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", CONSOLE, script) for n in range(2)]
        self.wait_for_notes("ready", 1, range(2))
        if number is not None:
            nodes[0].send_signal(number)
        return [self.events_of(self.finish(node)[2])[-1]["metadata"] for node in nodes]

    def test_row_73_a_signal_to_one_launcher_has_ended_the_other_nodes_work_too(self):
        last = self.last_events_of_two(self.script("note('ready'); live_on()"), signal.SIGTERM)
        self.assertEqual([metadata["state"] for metadata in last], ["FAILED"] * 2)
        for metadata in last:
            self.assertIn("15", metadata["raw_error"])

    def test_row_73_workers_of_the_other_node_that_fail_are_no_failure_of_the_agent(self):
        last = self.last_events_of_two(self.script("""
            note("ready")
            if RANK == 0:
                wait_for("ready.1.1")
                sys.exit(3)
            live_on()
        """))
        self.assertEqual([metadata["state"] for metadata in last], ["SUCCEEDED"] * 2)

    def test_loglevel_mutes(self):
        rc, _, err = self.run_job("--standalone", CONSOLE, self.script(""), env={"LOGLEVEL": "ERROR"})
        self.assertEqual((rc, err), (0, ""))

    def test_null_handlers_print_nothing(self):
        for handler in ("null", "dynamic_rendezvous"):
            rc, _, err = self.run_job("--standalone", f"--event-log-handler={handler}", self.script(""))
            self.assertEqual((rc, err), (0, ""))


if __name__ == "__main__":
    main()
