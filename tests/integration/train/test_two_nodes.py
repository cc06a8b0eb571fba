"""A training over two launchers, as over two machines: what a fault of one of them costs."""

import signal
import time

from events import wait_for_files
from job_case import BIN, free_port
from train_case import TRAIN, TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many
# Must exceed the node lease, after which a coordinator that runs gives a silent node up.
PAUSE_S = 6


class TwoNodesTest(TrainCase):
    def start_nodes(self, *settings):
        port = free_port()
        train = ["--config", self.config, *(word for text in settings for word in ("--set", text))]
        return [self.start("--nnodes=2", f"--node-rank={n}", f"--master-port={port}", "--max-restarts=2", "--no-python",
                           TRAIN, *train, binary=BIN / "fsdprun") for n in range(2)]

    def test_stopped_coordinator_costs_no_step(self):
        """No restart, and every loss as without the fault. Both ranks train on meanwhile: only the launcher is stopped."""
        gloo = "parallel.backend=gloo"
        nodes = self.start_nodes(gloo, f"train.steps={ENDLESS}")
        self.wait_for_steps(10)
        nodes[0].send_signal(signal.SIGSTOP)
        before = len(self.records())
        time.sleep(PAUSE_S)  # the fault itself
        after = len(self.records())
        nodes[0].send_signal(signal.SIGCONT)
        self.wait_for_steps(len(self.records()) + 10)
        nodes[0].send_signal(signal.SIGTERM)
        ends = [self.finish(node) for node in nodes]
        out = "".join(stdout for _, stdout, _ in ends)
        self.assertEqual([rc for rc, _, _ in ends], [1, 1], ends)
        self.assertEqual(out.count("starting at step 0"), 1, out)
        self.assertIn("stopped on request", out)
        self.assertNotIn("resuming", out)
        self.assertGreater(after, before)
        disturbed = self.losses()
        self.metrics.unlink()
        self.train_well(gloo, f"train.steps={max(disturbed)}")
        self.assertEqual(disturbed, self.losses())

    def wait_for_steps(self, count):
        wait_for_files(lambda: len(self.records()) > count, self.dir, "steps", writes=True)


if __name__ == "__main__":
    main()
