"""A training whose coordinator is killed and started again: no step is lost, and no worker notices."""

import os
import random
import signal

from events import wait_for_files
from job_case import BIN, free_port
from train_case import TRAIN, TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many
KILLS = int(os.environ.get("FSDPRUN_KILLS", "4"))
GLOO = "parallel.backend=gloo"


class TakenOverTest(TrainCase):
    def setUp(self):
        super().setUp()
        self.journal = self.dir / "journal"
        self.rendezvous = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=kept"]

    def start_coordinator(self):
        return self.start("--coordinator", *self.rendezvous, f"--journal={self.journal}", binary=BIN / "fsdprun")

    def start_nodes(self):
        train = ["--config", self.config, "--set", GLOO, "--set", f"train.steps={ENDLESS}"]
        return [self.start(*self.rendezvous, "--rdzv-backend=c10d", "--rdzv-conf=is_host=0", "--no-python", TRAIN, *train,
                           binary=BIN / "fsdprun") for _ in range(2)]

    def kept(self):
        """Another number for each record."""
        return (self.journal / "record").stat().st_ino

    def wait_for_steps(self, more):
        count = len(self.records()) + more
        wait_for_files(lambda: len(self.records()) >= count, self.dir, "steps", writes=True)

    def test_killed_coordinator_costs_no_step(self):
        """One kill in five comes as soon as the process is there again, whatever it has come to by then."""
        chance = random.Random(KILLS)
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.wait_for_steps(3)
        workers = sorted(self.processes_that_train())
        self.assertEqual(len(workers), 2)
        for number in range(KILLS):
            coordinator.kill()
            coordinator.wait()
            kept = self.kept()
            coordinator = self.start_coordinator()
            if number % 5 != 4:
                self.wait_for_steps(chance.randrange(1, 40))
        self.wait_for_steps(3)
        self.assertEqual(sorted(self.processes_that_train()), workers)
        wait_for_files(lambda: self.kept() != kept, self.journal, "the coordinator")  # The first thing that it does.
        coordinator.send_signal(signal.SIGTERM)
        ends = [self.finish(launcher) for launcher in (coordinator, *nodes)]
        out = "".join(stdout for _, stdout, _ in ends)
        self.assertEqual([rc for rc, _, _ in ends], [1, 1, 1], ends)
        self.assertEqual(out.count("starting at step 0"), 1, out)
        disturbed = self.losses()
        self.metrics.unlink()
        self.train_well(GLOO, f"train.steps={max(disturbed)}")
        self.assertEqual(disturbed, self.losses())


if __name__ == "__main__":
    main()
