"""The restart budget, and what is not charged to it."""

from events import PATIENCE_S
from job_case import JobCase, free_port
from unittest_main import main


class RestartsTest(JobCase):
    def test_row_41_always_failing_is_started_once_more_than_the_budget(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=3",
                                  self.script("note('start'); sys.exit(RANK)"))
        self.assertEqual(rc, 1)
        self.assertEqual({g for g, _ in self.notes("start")}, {1, 2, 3, 4})
        self.assertIn("3 of 3 restarts used", err)

    def test_fails_twice_then_succeeds(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=3",
                                  self.script("note('start', RESTART); sys.exit(5 if RESTART < 2 else 0)"))
        self.assertEqual((rc, err), (0, ""))
        notes = self.notes("start")
        self.assertEqual({g for g, _ in notes}, {1, 2, 3})
        self.assertEqual({(g, count) for (g, _), count in notes.items()}, {(1, "0"), (2, "1"), (3, "2")})

    def test_row_19_every_rank_is_replaced_and_counts_agree(self):
        worker = """
            note("pid"); note("restart", RESTART)
            if RESTART == 0:
                wait_for("pid.1.0", "pid.1.1", "pid.1.2")
                if RANK == 1: os.kill(os.getpid(), signal.SIGKILL)
                live_on()
        """
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=3", "--max-restarts=1", self.script(worker))
        self.assertEqual(rc, 0, err)
        pids = self.notes("pid")
        self.assertEqual(len(set(pids.values())), 6)
        self.assertEqual({self.notes("restart")[2, r] for r in range(3)}, {"1"})

    def test_row_40_a_failure_does_not_wait_for_workers_that_ignore_sigterm(self):
        """The shutdown timeout is for drains: with it, this restart would take longer than the test waits."""
        worker = """
            note("start")
            if RESTART == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN if RANK % 2 else lambda number, frame: note("term"))
                note("ready")
                if RANK == 3:
                    wait_for(*(f"ready.1.{r}" for r in range(4)))
                    sys.exit(9)
                live_on()
        """
        launcher = self.start("--standalone", "--nproc-per-node=4", "--max-restarts=1",
                              f"--shutdown-timeout={5 * PATIENCE_S:.0f}", self.script(worker))
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, {g for g, _ in self.notes("start")}), (0, {1, 2}), err)
        self.assertEqual(set(self.notes("term")), {(1, 0), (1, 2)})

    def test_row_39_one_worker_may_finish_early(self):
        worker = """
            note("start")
            if RANK == 1:
                wait_for("start.1.0")
                from events import wait_for_ends
                wait_for_ends([int((D / "start.1.0").read_text())])
        """
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", self.script(worker))
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(set(self.notes("start")), {(1, 0), (1, 1)})

    def test_configuration_error_is_not_restarted(self):
        rc, _, err = self.run_job("--standalone", "--max-restarts=3", self.script("note('start'); sys.exit(78)"))
        self.assertEqual((rc, set(self.notes("start"))), (1, {(1, 0)}), err)

    def test_row_61_a_failure_on_one_node_restarts_both(self):
        worker = """
            note("restart", RESTART)
            wait_for("restart.1.0", "restart.1.1")
            if RESTART == 0:
                if RANK == 1: sys.exit(9)
                live_on()
        """
        script, port = self.script(worker), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", "--max-restarts=1", script)
                 for n in range(2)]
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)
        self.assertEqual(self.notes("restart"), {(1, 0): "0", (1, 1): "0", (2, 0): "1", (2, 1): "1"})


if __name__ == "__main__":
    main()
