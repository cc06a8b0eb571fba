"""A job on three machines with one network between them. No generation ever has two worlds."""

import collections
import shutil
import unittest

from events import PATIENCE_S
from job_case import BIN, JobCase, is_alive
from network import Network, reason_to_skip

# Each worker leaves a file with the size of its world under a name that no other worker has.
WORKER = """
    (D / "worlds" / f"{GENERATION}.{RANK}.{os.getpid()}").write_text(f"{WORLD} {os.environ['FSDPRUN_JOB_ID']}")
    note("at", os.environ["MACHINE"])
    note("pid")
    wait_for("go")
"""

SKIP = reason_to_skip()


@unittest.skipIf(SKIP, SKIP)
class NamespaceCase(JobCase):
    def setUp(self):
        super().setUp()
        self.network = Network(3)
        self.addCleanup(self.network.close)
        (self.dir / "worlds").mkdir()
        self.worker = self.script(WORKER)
        self.nodes = []

    def node(self, n, nodes="2:3", conf="", *args):
        command = self.network.command(
            n, BIN / "fsdprun", f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.network.address(0)}:29400",
            "--rdzv-id=job", f"--rdzv-conf=last_call_timeout={10 * PATIENCE_S:.0f},{conf}".rstrip(","), "--max-restarts=3",
            f"--local-addr={self.network.address(n)}", *args, self.worker)
        launcher = self.start(*command[1:], binary=shutil.which("ip"),
                              env={"FSDPRUN_TOKEN": "0123456789abcdef" * 4, "MACHINE": str(n), "LOGLEVEL": "WARNING",
                                   "OMP_NUM_THREADS": "1"})
        self.nodes.append(launcher)
        return launcher

    def start_all(self, nodes="2:3", conf=""):
        """Machine 0 hosts the coordinator; the ranks are those of the machines."""
        for n in range(3):
            self.node(n, nodes, conf)
        return self.pids(1, range(3))

    def pids(self, generation, ranks):
        notes = self.wait_for_notes("pid", generation, ranks)
        return [int(notes[generation, r]) for r in ranks]

    def finish_job(self, *launchers):
        (self.dir / "go").touch()
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)

    def machines(self, generation):
        return {r: text for (g, r), text in self.notes("at").items() if g == generation}

    def tearDown(self):
        (self.dir / "go").touch()
        worlds = collections.defaultdict(list)
        for path in (self.dir / "worlds").iterdir():
            generation, rank, _ = path.name.split(".")
            worlds[int(generation)].append((int(rank), path.read_text()))
        super().tearDown()
        for generation, members in worlds.items():
            ranks = [rank for rank, _ in members]
            self.assertEqual(len(ranks), len(set(ranks)), f"generation {generation} has two worlds: {members}")
            self.assertEqual(len({world for _, world in members}), 1, f"generation {generation}: {members}")

    def cut_for_long(self, *directions):
        first = self.start_all()
        self.network.cut(2, *directions)
        self.pids(2, range(2))
        self.assertEqual(self.machines(2), {0: "0", 1: "1"})
        self.network.heal(2, *directions)
        self.pids(3, range(3))  # It comes back, and nothing of its old world is left.
        self.assertEqual([p for p in first if is_alive(p)], [])
        self.assertEqual(self.machines(3), {0: "0", 1: "1", 2: "2"})
        self.finish_job(*self.nodes)
