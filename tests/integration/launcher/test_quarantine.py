"""A node that keeps failing is named and left out, as long as the job can do without it."""

import json

from job_case import JobCase, free_port, wait_until_listening
from unittest_main import main

# The worker of the bad node is killed once all of its world are there; the others wait to be ended until the last world.
WORKER = """
    note("who", os.environ["WHO"])
    if os.environ["WHO"] == "bad" and GENERATION < int(os.environ["BAD_UNTIL"]):
        wait_for(*(f"who.{GENERATION}.{rank}" for rank in range(WORLD)))
        os.kill(os.getpid(), signal.SIGKILL)
    if GENERATION < int(os.environ["LAST"]):
        wait_for("done")
"""
BAD = "127.0.0.2"


class QuarantineTest(JobCase):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.program = self.script(WORKER)

    def node(self, nodes, address, *options, last, bad_until=99, conf="last_call_timeout=600"):
        return self.start(f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job",
                          f"--rdzv-conf={conf}", "--max-restarts=50", f"--local-addr={address}", *options, self.program,
                          env={"WHO": "bad" if address == BAD else "good", "LAST": str(last), "BAD_UNTIL": str(bad_until),
                               "LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})

    def nodes(self, nodes, *options, count=3, **how):
        first = self.node(nodes, "127.0.0.1", *options, **how)
        wait_until_listening(self.port)  # It is to host the coordinator.
        return [first, *(self.node(nodes, f"127.0.0.{n}", *options, **how) for n in range(2, count + 1))]

    def who(self, generation):
        return [who for (g, _), who in sorted(self.notes("who").items()) if g == generation]

    def test_the_job_goes_on_without_it_and_says_which_it_is(self):
        logs = self.dir / "logs"
        host, bad, other = self.nodes("1:3", f"--log-dir={logs}", last=4)
        said = {}
        for name, launcher in {"host": host, "bad": bad, "other": other}.items():
            rc, _, said[name] = self.finish(launcher)
            self.assertEqual(rc, 0, said[name])  # A spare ends with 0.
        self.assertEqual([self.who(g) for g in (1, 2, 3)], [["good", "bad", "good"]] * 3)
        self.assertEqual(self.who(4), ["good", "good"])
        name = rf"node {BAD} was the first to fail in 3 worlds in a row within 600\.0 s \(the last: rank 1 died of signal 9\)"
        self.assertRegex(said["host"], rf"{name}; it is left out from now on, for 3600 s, as long as 1 other node is there\. Look at")
        self.assertRegex(said["bad"], rf"this node is left out as long as the job has enough others: {name}; it waits")
        self.assertNotIn("left out", said["other"])
        events = [json.loads(line) for path in logs.rglob("events.jsonl") for line in path.read_text().splitlines()]
        (event,) = [event for event in events if event["event"] == "node_quarantined"]
        self.assertEqual((event["address"], event["failures"], event["window_seconds"], event["quarantine_seconds"], event["rank"]),
                         (BAD, 3, 600.0, 3600.0, 1))
        (finished,) = [event for event in events if event["event"] == "job_finished"]
        self.assertEqual(finished["restarts"], 3)

    def test_a_job_that_needs_it_goes_on_with_it_and_says_so(self):
        host, bad = self.nodes("2", "--quarantine-after=1", last=3, bad_until=3, count=2)
        said = {}
        for launcher in (host, bad):
            rc, _, said[launcher] = self.finish(launcher)
            self.assertEqual(rc, 0, said[launcher])
        self.assertEqual([self.who(g) for g in (1, 2, 3)], [["good", "bad"]] * 3)
        self.assertEqual(said[host].count("it is left out from now on, for 3600 s, as long as 2 other nodes are there"), 1, said[host])
        self.assertEqual(said[host].count(f"node {BAD} is used all the same, although it keeps failing: the job needs 2 nodes"), 1,
                         said[host])

    def test_nobody_is_left_out_if_that_is_not_wanted(self):
        launchers = self.nodes("1:3", "--quarantine-after=0", last=5, bad_until=5)
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
            self.assertNotIn("left out", err)
        self.assertEqual(self.who(5), ["good", "bad", "good"])

    def coordinator(self):
        coordinator = self.start("--coordinator", "--nnodes=1:3", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job",
                                 "--max-restarts=50", "--rdzv-conf=last_call_timeout=600", "--quarantine-after=1",
                                 f"--journal={self.dir / 'journal'}", env={"LOGLEVEL": "WARNING"})
        self.wait_for_line(coordinator, "coordinator of run id 'job' at")
        return coordinator

    def test_a_coordinator_that_takes_over_knows_it_and_so_does_a_launcher_that_is_started_again(self):
        coordinator = self.coordinator()
        conf = "is_host=0,last_call_timeout=600"
        launchers = [self.node("1:3", f"127.0.0.{n}", last=99, conf=conf) for n in (1, 2, 3)]
        self.wait_for_line(coordinator, BAD, "it is left out from now on")
        self.wait_for_notes("who", 2, range(2))
        self.wait_for_line(launchers[1], "this node is left out")
        coordinator.kill()
        coordinator.wait()
        coordinator = self.coordinator()
        launchers[1].kill()
        launchers[1].wait()
        launchers[1] = self.node("1:3", BAD, last=99, conf=conf)
        self.wait_for_line(launchers[1], "this node is left out as long as the job has enough others", BAD)
        (self.dir / "done").touch()
        for launcher in (coordinator, *launchers):
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
        self.assertEqual(max(g for g, _ in self.notes("who")), 2)


if __name__ == "__main__":
    main()
