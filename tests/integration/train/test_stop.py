"""How a training ends early: on request, and when its loss is no number."""

import os
import pathlib
import signal
import time
import unittest

from job_case import TIME_FACTOR, processes_with, wait_until
from train_case import TrainCase

STEPS = 1500


class StopTest(TrainCase):
    def settings(self, **paths):
        return (*self.saving(every=1000), f"train.steps={STEPS}", *(f"metrics.{k}={v}" for k, v in paths.items()))

    def test_sigterm_saves_and_the_same_command_goes_on(self):
        reference = self.dir / "reference.jsonl"
        self.train_well(f"train.steps={STEPS}", f"metrics.jsonl={reference}")
        for number in (signal.SIGTERM, signal.SIGINT):
            launcher = self.start_training(*self.settings())
            begun = len(self.records())
            wait_until(lambda: len(self.records()) > begun + 15, what="steps")
            started = time.monotonic()
            launcher.send_signal(number)
            rc, out, err = self.finish(launcher, 10)
            self.assertLess(time.monotonic() - started, 5 * TIME_FACTOR)
            self.assert_nothing_left()
            self.assertNotEqual(rc, 0)
            self.assertEqual(self.own_lines(out, err), [])
            last = self.records()[-1]["step"]
            self.assertLess(last, STEPS)
            self.assertIn(f"stopped on request after step {last}", out)
            self.assertEqual(self.steps_saved()[-1], last)
        out, _ = self.train_well(*self.settings())
        self.assertIn(f"resuming after step {last}", out)
        self.assertEqual(self.losses(), self.losses(reference))

    def test_sigterm_of_a_single_process(self):
        worker = self.start_training(*self.settings(), ranks=0)
        wait_until(lambda: len(self.records()) > 15, what="steps")
        worker.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(worker, 10)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(self.steps_saved(), [self.records()[-1]["step"]])

    def test_signal_before_the_first_step_ends_at_once(self):
        """Ranks that wait for a peer that never comes: a world of 2 of which 1 is started."""
        segments = set(os.listdir("/dev/shm"))
        binary, arguments = self.arguments(ranks=0)
        launcher = self.start("--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c",
                              'if [ "$RANK" = 0 ]; then sleep 60; else exec "$0" "$@"; fi', binary, *arguments)
        wait_until(lambda: self.worker_pids(), what="a worker")
        started = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher, 10)
        self.assertLess(time.monotonic() - started, 2 * TIME_FACTOR)
        self.assert_nothing_left()
        self.assertEqual(set(os.listdir("/dev/shm")) - segments, set())

    def worker_pids(self):
        return [pid for pid in processes_with(self.marker)
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "fsdp-train"]


class DivergenceTest(TrainCase):
    def test_no_weights_that_are_no_numbers_are_saved(self):
        line, _ = self.assert_refused(1, ["step 2", "not updated", "lr 1e+30", "optimizer.lr"], *self.saving(every=1),
                                      "optimizer.lr=1e30", limit_s=4)
        self.assertRegex(line, r"the (loss|gradient norm) is -?(nan|inf)")
        self.assertEqual(self.steps_saved(), [1])
        self.assertEqual(sorted(self.losses()), [1])

    def test_no_weights_that_the_last_update_made_infinite_are_saved(self):
        self.assert_refused(1, ["step 1", "weights infinite or NaN", "no checkpoint"], *self.saving(every=1),
                            "optimizer.lr=3e38", "optimizer.weight_decay=1", "optimizer.betas=[0,0]",
                            "train.steps=1", limit_s=4)
        self.assertEqual(self.steps_saved(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
