"""fsdp-train is told to stop, saves, and goes on in the next run of the job as if nothing had been; and the example's batch file."""

import pathlib
import sys

import slurm_case
from slurm_case import BIN
from training_case import TrainingCase

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/training/slurm/train.sbatch"


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


class ExampleTest(TrainingCase):
    """Submitted as a user does it, in the folder of the configuration."""

    steps = 20

    def test_example(self):
        (self.dir / "run.json").rename(self.dir / "train.json")
        environment = {**slurm.environment, **self.environment, "PATH": f"{BIN}:{slurm.environment['PATH']}"}
        job = slurm.run("sbatch", "--parsable", EXAMPLE, cwd=self.dir, env=environment).stdout.strip()
        self.finish(job)
        self.assertEqual([step for step, _ in self.losses()], list(range(1, self.steps + 1)))
        self.assertIn(f"done: {self.steps} steps", (self.dir / f"train-{job}.out").read_text())


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
