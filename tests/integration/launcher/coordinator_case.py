"""Jobs whose coordinator has a process of its own, which is killed and started again."""

import os
import random
import signal

from events import wait_for_ends
from job_case import JobCase, free_port, is_alive, wait_until

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
    """The nodes meet at a port, and the journal is in a folder."""

    nodes, per_node = 2, 2

    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.journal = self.dir / "journal"

    def meeting(self):
        """What coordinator and nodes say of where they meet."""
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=kept"]

    def has_record(self):
        return (self.journal / "record").exists()

    def forget_jobs(self):
        for path in self.journal.glob("*"):
            path.unlink()

    @property
    def ranks(self):
        return range(self.nodes * self.per_node)

    def coordinator_words(self, *more, journal=True, nodes=None):
        words = ["--coordinator", f"--nnodes={nodes or self.nodes}", *self.meeting(), "--max-restarts=2"]
        return [*words, *([f"--journal={self.journal}"] if journal else []), *more]

    def start_coordinator(self, *more, **kwargs):
        coordinator = self.start(*self.coordinator_words(*more, **kwargs))
        self.wait_for_line(coordinator, "coordinator of run id 'kept' at ")
        return coordinator

    def start_node(self, script):
        return self.start(*self.meeting(), f"--nnodes={self.nodes}", f"--nproc-per-node={self.per_node}",
                          "--rdzv-conf=is_host=0", "--max-restarts=2", script)

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


class RestartCases:
    """For a CoordinatorCase, wherever its journal is."""

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
        wait_until(self.has_record, "the journal")
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


class RandomCases:
    """For a CoordinatorCase, wherever its journal is."""

    def test_at_random_moments(self):
        for round_ in range(ROUNDS):
            with self.subTest(round_):
                self.once_at_random(random.Random(round_))

    def once_at_random(self, chance):
        """Moments are counted in what the coordinator has kept, which needs no clock."""
        for path in [*self.dir.glob("pid.*"), *self.dir.glob("end")]:
            path.unlink()
        self.forget_jobs()
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
