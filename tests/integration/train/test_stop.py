"""How a training ends early: on request, and when its loss is no number."""

import os
import pathlib
import signal
import time

from events import PATIENCE_S, wait_for_files
from job_case import processes_with
from train_case import TrainCase
from unittest_main import main

ENDLESS = 100_000_000  # steps; nobody waits for that many


class StopTest(TrainCase):
    def settings(self, steps=ENDLESS):
        return (*self.saving(every=1000), f"train.steps={steps}")

    def wait_for_steps(self, count):
        wait_for_files(lambda: len(self.records()) > count, self.dir, "steps", writes=True)

    def test_sigterm_saves_and_the_same_command_goes_on(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            launcher = self.start_training(*self.settings())
            self.wait_for_steps(len(self.records()) + 15)
            launcher.send_signal(number)
            rc, out, err = self.finish(launcher)
            self.assert_nothing_left()
            self.assertNotEqual(rc, 0)
            self.assertEqual(self.own_lines(out, err), [])
            last = self.records()[-1]["step"]
            self.assertIn(f"stopped on request after step {last}", out)
            self.assertEqual(self.steps_saved()[-1], last)
        out, _ = self.train_well(*self.settings(last + 10))
        self.assertIn(f"resuming after step {last}", out)
        reference = self.dir / "reference.jsonl"
        self.train_well(f"train.steps={last + 10}", f"metrics.jsonl={reference}")
        self.assertEqual(self.losses(), self.losses(reference))

    def test_sigterm_of_a_single_process(self):
        worker = self.start_training(*self.settings(), ranks=0)
        self.wait_for_steps(15)
        worker.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(worker)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(self.steps_saved(), [self.records()[-1]["step"]])

    def test_signal_before_the_first_step_ends_at_once(self):
        """Ranks that wait for a peer that never comes: a world of 2 of which 1 is started."""
        segments = set(os.listdir("/dev/shm"))
        binary, arguments = self.arguments(ranks=0)
        launcher = self.start("--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c",
                              'if [ "$RANK" = 0 ]; then sleep 600; else exec "$0" "$@"; fi', binary, *arguments)
        self.wait_for_worker()
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assert_nothing_left()
        self.assertEqual(set(os.listdir("/dev/shm")) - segments, set())

    def wait_for_worker(self):
        """Nothing tells of an exec: processes are looked at again and again."""
        end = time.monotonic() + PATIENCE_S
        while not any(pathlib.Path(f"/proc/{pid}/comm").read_text() == "fsdp-train\n"
                      for pid in processes_with(self.marker)):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)


class DivergenceTest(TrainCase):
    def test_no_weights_that_are_no_numbers_are_saved(self):
        line, _ = self.assert_refused(1, ["step 2", "not updated", "lr 1e+30", "optimizer.lr"], *self.saving(every=1),
                                      "optimizer.lr=1e30")
        self.assertRegex(line, r"the (loss|gradient norm) is -?(nan|inf)")
        self.assertEqual(self.steps_saved(), [1])
        self.assertEqual(sorted(self.losses()), [1])

    def test_no_weights_that_the_last_update_made_infinite_are_saved(self):
        self.assert_refused(1, ["step 1", "weights infinite or NaN", "no checkpoint"], *self.saving(every=1),
                            "optimizer.lr=3e38", "optimizer.weight_decay=1", "optimizer.betas=[0,0]",
                            "train.steps=1")
        self.assertEqual(self.steps_saved(), [])


if __name__ == "__main__":
    main()
