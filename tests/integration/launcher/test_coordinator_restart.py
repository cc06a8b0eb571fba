"""A coordinator in a process of its own, killed and started again by the same command: workers that run go on, whatever
was under way is finished, and what is not the same job is refused."""

import resource
import signal

from coordinator_case import CoordinatorCase, RandomCases, RestartCases
from job_case import is_alive
from unittest_main import main


class CoordinatorRestartTest(RestartCases, RandomCases, CoordinatorCase):
    pass


class JournalTest(CoordinatorCase):
    def test_end_of_the_job_is_told_again(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)
        rc, _, err = self.run_job(*self.coordinator_words())
        self.assertEqual(rc, 0)
        self.assertIn("is over: all 4 workers exited with 0", err)

    def test_failure_is_reported_by_the_coordinator(self):
        coordinator = self.start_coordinator()
        nodes = self.start_nodes("sys.exit(7)")
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 1)
        self.assertIn("FAILED", err)
        self.assertIn("exitcode", err)
        self.assertIn("2 of 2 restarts used", err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 1)

    def test_second_coordinator_is_refused(self):
        first = self.start_coordinator()
        self.assert_one_line_error(self.run_job(*self.coordinator_words()), 1, "another coordinator uses",
                                   f"process {first.pid} on ")
        first.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(first)[0], 1)

    def test_journal_of_another_job_is_refused(self):
        first = self.start_coordinator()
        self.end_abruptly(first)
        self.assert_one_line_error(self.run_job(*self.coordinator_words(nodes=3)), 1, "--nnodes 2", "--nnodes 3")

    def test_unusable_journal(self):
        self.journal = self.dir / "no" / "such"
        self.assert_one_line_error(self.run_job(*self.coordinator_words()), 1, "--journal", self.journal, "No such file")

    def test_spoiled_journal(self):
        self.end_abruptly(self.start_coordinator())
        (self.journal / "record").write_text("fsdprun journal 1\nnothing")
        self.assert_one_line_error(self.run_job(*self.coordinator_words()), 1, "cannot be used: it is cut off", "remove")

    def test_full_disk(self):
        """At the start it is refused."""
        def no_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        self.assert_one_line_error(self.run_job(*self.coordinator_words(), preexec_fn=no_room), 1, "--journal", "File too large")

    def start_job_whose_disk_fills_up(self):
        """Its first world is in the journal, and its second one is not."""
        coordinator = self.start("--abort-timeout=0", *self.coordinator_words(), env={"LOGLEVEL": "WARNING"},
                                 preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        self.wait_for_line(coordinator, "coordinator of run id 'kept'")
        nodes = self.start_nodes()
        self.pids(1)
        resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        self.order("fail.1.0")
        self.pids(2)
        return coordinator, nodes

    def test_disk_that_fills_up_ends_nothing(self):
        coordinator, nodes = self.start_job_whose_disk_fills_up()
        self.order("end")
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 0, err)
        self.assertEqual(err.count("the job goes on"), 1, err)
        self.assertIn("the end of the job is not in its journal", err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)

    def test_killed_with_a_journal_that_is_behind(self):
        """What the nodes run is not in it: they start anew, and stay."""
        coordinator, nodes = self.start_job_whose_disk_fills_up()
        self.end_abruptly(coordinator)
        self.order("let_go")
        coordinator = self.start_coordinator()
        self.pids(3)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)

    def test_without_a_journal_the_job_ends_with_the_coordinator(self):
        coordinator, nodes = self.start_coordinator(journal=False), self.start_nodes()
        first = self.pids(1)
        self.end_abruptly(coordinator)
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 1)
            self.assertIn("nothing listens there any more", err)
        self.assertEqual([pid for pid in first if is_alive(pid)], [])

    def test_second_signal_ends_the_grace(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.pids(1)
        coordinator.send_signal(signal.SIGINT)
        self.wait_for_notes("stopped", 1, self.ranks)
        coordinator.send_signal(signal.SIGINT)
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 1, err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 1)

    def test_bad_options(self):
        for words, code, *expected in (
                (["--coordinator", "--rdzv-id=a"], 1, "--rdzv-endpoint"),
                (["--coordinator", "--rdzv-endpoint=localhost:7"], 1, "--rdzv-id"),
                (self.coordinator_words("train.py"), 2, "runs no program", "train.py"),
                (self.coordinator_words("--standalone"), 1, "--standalone"),
                (self.coordinator_words("--rdzv-backend=static"), 1, "'static' is not c10d"),
                (self.coordinator_words("--journal=http://localhost:1"), 1, "'http://localhost:1' is not a folder"),
                ([f"--journal={self.journal}", "--standalone", "train.py"], 1, "--coordinator only")):
            with self.subTest(words):
                self.assert_one_line_error(self.run_job(*words), code, *expected)


if __name__ == "__main__":
    main()
