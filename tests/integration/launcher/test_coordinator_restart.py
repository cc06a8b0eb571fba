"""A coordinator in a process of its own, killed and started again by the same command: workers that run go on, whatever
was under way is finished, and what is not the same job is refused."""

import os
import random
import resource
import signal

from events import wait_for_ends
from job_case import JobCase, free_port, is_alive, wait_until
from unittest_main import main

ROUNDS = int(os.environ.get("FSDPRUN_ROUNDS", "1"))

# Each worker lives until the test says how it is to end; one that is told to stop notes that, and is let go by the test.
WORKER = """
    def on_stop(*_):
        note("stopped")
        wait_for("let_go")
        os._exit(0)
    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGINT, on_stop)
    note("pid")
    wait_until(lambda: (D / "end").exists() or (D / f"fail.{GENERATION}.{RANK}").exists())
    sys.exit(7 if (D / f"fail.{GENERATION}.{RANK}").exists() else 0)
"""


class CoordinatorCase(JobCase):
    nodes, per_node = 2, 2

    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.journal = self.dir / "journal"

    @property
    def ranks(self):
        return range(self.nodes * self.per_node)

    def coordinator_words(self, *more, journal=True, nodes=None):
        words = ["--coordinator", f"--nnodes={nodes or self.nodes}", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=kept",
                 "--max-restarts=2"]
        return [*words, *([f"--journal={self.journal}"] if journal else []), *more]

    def start_coordinator(self, *more, **kwargs):
        coordinator = self.start(*self.coordinator_words(*more, **kwargs))
        self.wait_for_line(coordinator, "coordinator of run id 'kept' at 127.0.0.1")
        return coordinator

    def start_node(self, script):
        return self.start("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=kept",
                          f"--nnodes={self.nodes}", f"--nproc-per-node={self.per_node}", "--rdzv-conf=is_host=0",
                          "--max-restarts=2", script)

    def start_nodes(self, body=WORKER):
        script = self.script(body)
        return [self.start_node(script) for _ in range(self.nodes)]

    def end_abruptly(self, coordinator):
        coordinator.kill()
        coordinator.wait()

    def pids(self, generation):
        notes = self.wait_for_notes("pid", generation, self.ranks)
        return [int(notes[generation, rank]) for rank in self.ranks]

    def order(self, name):
        (self.dir / name).touch()

    def assert_all_end_well(self, coordinator, nodes):
        for launcher in [coordinator, *nodes]:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)


class CoordinatorRestartTest(CoordinatorCase):
    def test_workers_that_run_go_on(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        first = self.pids(1)
        for _ in range(2):  # Twice in a row.
            self.end_abruptly(coordinator)
            coordinator = self.start_coordinator()
        self.end_abruptly(coordinator)
        coordinator = self.start(*self.coordinator_words())
        self.wait_for_line(coordinator, "takes the job over: generation 1, running")
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)
        self.assertEqual(self.notes("pid"), {(1, rank): str(pid) for rank, pid in enumerate(first)})

    def test_workers_end_while_there_is_no_coordinator(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        first = self.pids(1)
        self.end_abruptly(coordinator)
        self.order("end")
        wait_for_ends(first)
        self.assert_all_end_well(self.start_coordinator(), nodes)

    def test_worker_that_fails_while_there_is_no_coordinator(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        first = self.pids(1)
        self.end_abruptly(coordinator)
        self.order("fail.1.3")
        wait_for_ends([first[3]])
        coordinator = self.start_coordinator("--abort-timeout=0")
        self.pids(2)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)

    def test_killed_before_all_have_joined(self):
        coordinator = self.start_coordinator()
        script = self.script(WORKER)
        first = self.start_node(script)
        wait_until(lambda: (self.journal / "record").exists(), "the journal")
        self.end_abruptly(coordinator)
        coordinator = self.start_coordinator()
        second = self.start_node(script)
        self.pids(1)
        self.order("end")
        self.assert_all_end_well(coordinator, [first, second])

    def test_killed_while_workers_are_being_stopped(self):
        coordinator, nodes = self.start_coordinator("--abort-timeout=30", "--shutdown-timeout=30"), self.start_nodes()
        self.pids(1)
        self.order("fail.1.0")
        self.wait_for_notes("stopped", 1, [1, 2, 3])
        self.end_abruptly(coordinator)
        coordinator = self.start("--abort-timeout=30", "--shutdown-timeout=30", *self.coordinator_words())
        self.wait_for_line(coordinator, "takes the job over: generation 1, stopping")
        self.order("let_go")
        self.pids(2)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)

    def test_operators_stop_survives(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        first = self.pids(1)
        coordinator.send_signal(signal.SIGINT)
        self.wait_for_notes("stopped", 1, self.ranks)
        self.end_abruptly(coordinator)
        coordinator = self.start(*self.coordinator_words())
        self.wait_for_line(coordinator, "takes the job over: generation 1, stopping")
        self.order("let_go")
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 1)
        self.assertIn("ended by SIGINT", err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 1)
        self.assertEqual([pid for pid in first if is_alive(pid)], [])

    def test_at_random_moments(self):
        for round_ in range(ROUNDS):
            with self.subTest(round_):
                self.once_at_random(random.Random(round_))

    def once_at_random(self, chance):
        """Moments are counted in what the coordinator has kept, which needs no clock."""
        for path in [*self.dir.glob("pid.*"), *self.dir.glob("end"), *self.journal.glob("*")]:
            path.unlink()
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        for _ in range(chance.randrange(1, 4)):
            if chance.random() < 0.5:
                self.pids(1)
            self.end_abruptly(coordinator)
            coordinator = self.start_coordinator()
        self.pids(1)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)
        self.assertEqual({generation for generation, _ in self.notes("pid")}, {1})


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

    def test_disk_that_fills_up_ends_nothing(self):
        coordinator = self.start("--abort-timeout=0", *self.coordinator_words(), env={"LOGLEVEL": "WARNING"},
                                 preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        self.wait_for_line(coordinator, "coordinator of run id 'kept'")
        nodes = self.start_nodes()
        self.pids(1)
        resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        self.order("fail.1.0")
        self.pids(2)
        self.order("end")
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 0, err)
        self.assertEqual(err.count("the job goes on"), 1, err)
        self.assertIn("the end of the job is not in its journal", err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)

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
                (self.coordinator_words("--rdzv-backend=etcd"), 1, "'etcd' is not c10d"),
                (self.coordinator_words("--journal=etcd://localhost:1"), 1, "'etcd://localhost:1' is not a folder"),
                ([f"--journal={self.journal}", "--standalone", "train.py"], 1, "--coordinator only")):
            with self.subTest(words):
                self.assert_one_line_error(self.run_job(*words), code, *expected)


if __name__ == "__main__":
    main()
