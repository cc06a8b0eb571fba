"""fsdp-train under PyTorch's own launcher: the same steps as under fsdprun, and the newest checkpoint after a restart."""

import json
import os
import pathlib
import re
import signal
import sys

from events import wait_for_files
from train_case import TRAIN, TrainCase
from unittest_main import main

TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
RANKS = 2


class TorchrunTest(TrainCase):
    def start_under_torchrun(self, *settings, launcher=(), **popen):
        _, train = self.arguments(*settings, ranks=0)
        return self.start("--standalone", f"--nproc_per_node={RANKS}", *launcher, "--no-python", TRAIN, *train,
                          binary=TORCHRUN, **popen)

    def under_torchrun(self, *settings):
        rc, out, err = self.finish(self.start_under_torchrun(*settings))
        self.assertEqual(rc, 0, err)
        return out

    def computed(self):
        """{step: what a step computes}, as written, 17 digits: equal means bit-equal."""
        return {r["step"]: (r["loss"], r["grad_norm"], r["lr"], r["tokens"]) for r in self.records()}

    def test_losses_are_bit_equal_to_those_under_fsdprun(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                setting = f"parallel.backend={backend}"
                out, _ = self.train_well(setting, ranks=RANKS)
                self.assertIn(f"on {RANKS} ranks ({backend})", out)
                expected = self.computed()
                self.assertEqual(sorted(expected), list(range(1, 7)))
                self.assertGreater(len(set(expected.values())), 1)
                self.metrics.unlink()
                out = self.under_torchrun(setting)
                self.assertIn(f"on {RANKS} ranks ({backend})", out)
                self.assertIn("done: 6 steps", out)
                self.assertEqual(self.computed(), expected)

    def test_each_launcher_resumes_what_the_other_has_saved(self):
        self.train_well("train.steps=8", ranks=RANKS)
        expected = self.computed()
        self.metrics.unlink()
        self.under_torchrun(*self.saving(), "train.steps=3")
        out, _ = self.train_well(*self.saving(), "train.steps=5", ranks=RANKS)
        self.assertIn("resuming after step 3", out)
        self.assertIn("resuming after step 5", self.under_torchrun(*self.saving(), "train.steps=8"))
        self.assertEqual(self.computed(), expected)

    def test_restart_by_torchrun_resumes_from_the_newest_checkpoint(self):
        self.kill_and_expect_to_go_on()

    def test_restart_within_a_launch_resumes_also_if_the_launch_starts_over(self):
        self.train_well(*self.saving(), "train.steps=3", ranks=RANKS)  # Of another launch, and not to be resumed.
        self.kill_and_expect_to_go_on("checkpoint.resume=none")
        self.assertIn("starting at step 0", self.under_torchrun("checkpoint.resume=none", *self.saving(), "train.steps=1"))

    def kill_and_expect_to_go_on(self, *settings):
        # More steps than anybody waits for, and more output than a pipe holds.
        settings = (*self.saving(every=10, keep=2), "train.steps=100000000", *settings)
        log = self.dir / "output"
        with open(log, "w") as output:
            launcher = self.start_under_torchrun(*settings, launcher=["--max-restarts=1"], stdout=output)
        wait_for_files(lambda: "checkpoint " in log.read_text(), self.dir, "a checkpoint", writes=True)
        killed, *_ = first = self.processes_that_train()
        self.assertEqual(len(first), RANKS)
        os.kill(killed, signal.SIGKILL)
        resumed = wait_for_files(lambda: re.search(r"resuming after step (\d+) from .*(?s:.*)checkpoint ", log.read_text()),
                                 self.dir, "a checkpoint after the restart", writes=True)
        self.assertTrue(set(first).isdisjoint(self.processes_that_train()))
        launcher.terminate()
        self.finish(launcher)
        steps = [record["step"] for record in self.records()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertGreater(int(resumed[1]), 0)
        self.assertEqual(int(resumed[1]) % 10, 0)

    def test_launcher_of_a_claim_is_torchrun_and_no_script_between_them(self):
        binary, train = self.arguments(*self.saving(every=10, keep=2), "train.steps=100000000", ranks=0)
        log = self.dir / "output"
        with open(log, "w") as output:
            launcher = self.start("--standalone", "--nproc_per_node=1", "--no-python", "sh", "-c", '"$0" "$@"; exit $?',
                                  binary, *train, binary=TORCHRUN, stdout=output)
        wait_for_files(lambda: "checkpoint " in log.read_text(), self.dir, "a checkpoint", writes=True)
        claim = json.loads((self.checkpoints / ".claim").read_text())
        self.assertNotEqual(claim["job_id"], "")
        self.assertEqual(claim["launcher_pid"], launcher.pid)
        launcher.terminate()
        self.finish(launcher)


if __name__ == "__main__":
    main()
