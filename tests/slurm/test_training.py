"""fsdp-train is told to stop, saves, and goes on in the next run of the job as if nothing had been."""

import pathlib
import sys

import slurm_case
from training_case import TrainingCase


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class TrainingTest(TrainingCase):
    def test_notice(self):
        job = self.submit(self.command(), "--nodes=2")
        self.wait_for_step(20, job)
        slurm.scancel("--signal=USR1", job)
        self.next_run(job)
        self.finish_training(job)
        self.assertEqual(self.restarts(job), 1)
        self.assert_as_undisturbed()


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
