#!/usr/bin/env python3
"""Libraries over PyTorch find their ranks by what fsdprun tells: accelerate's own test scripts, transformers' Trainer,
PyTorch Lightning."""

import importlib.util
import pathlib

from program_case import HERE, TORCHRUN, ProgramCase
from unittest_main import main

ACCELERATE = pathlib.Path(importlib.util.find_spec("accelerate").origin).parent / "test_utils/scripts"
PLACES = {"one node": {"ranks": 2}, "two nodes": {"nodes": 2, "ranks": 1}}


class AccelerateTest(ProgramCase):
    """As accelerate's wheel has them."""

    def both(self, script):
        for place, how in PLACES.items():
            with self.subTest(place):
                self.run_program(ACCELERATE / script, **how)

    def test_operations(self):
        self.both("test_ops.py")

    def test_gradient_synchronisation(self):
        self.both("test_sync.py")

    def test_data_loop(self):
        self.both(HERE / "accelerate_data_loop.py")

    def test_everything(self):
        for place, how in PLACES.items():
            with self.subTest(place):
                output = self.run_program(ACCELERATE / "test_script.py", **how)
                self.assertIn("Training integration test", output)


class TrainerTest(ProgramCase):
    def test_losses_are_those_under_torchrun(self):
        expected = self.losses("train_with_transformers.py", launcher=TORCHRUN)
        self.assertEqual(len(expected), 4)
        for place, how in PLACES.items():
            with self.subTest(place):
                self.assertEqual(self.losses("train_with_transformers.py", **how), expected)


class LightningTest(ProgramCase):
    def test_one_batch(self):
        for place, how in PLACES.items():
            with self.subTest(place):
                found = self.losses("fit_with_lightning.py", **how)
                self.assertEqual(found, [2, how.get("nodes", 1), 1])

    def test_the_launcher_comes_before_slurm(self):
        """Within an allocation whose one task per node is the launcher."""
        slurm = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NAME": "x",
                 "SLURM_JOB_ID": "1", "SLURM_NODELIST": "localhost"}
        self.assertEqual(self.losses("fit_with_lightning.py", env=slurm), [2, 1, 1])


if __name__ == "__main__":
    main()
