"""fsdp-train through many runs of its job, and through its time limits."""

import pathlib
import sys

import slurm_case
from training_case import TrainingCase

RUNS = 10
STEPS_OF_A_RUN = 20
STEPS_AFTER_THE_LIMIT = 50


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class ManyRunsTest(TrainingCase):
    steps = 2000

    def test_requeues_in_a_row(self):
        job = self.submit(self.command(), "--nodes=2")
        for run in range(1, RUNS + 1):
            self.wait_for_step(self.last_step() + STEPS_OF_A_RUN, job)
            slurm.scancel(*(["--batch"] if run % 2 else []), "--signal=USR1", job)  # to the shell, or to all but the shell
            self.next_run(job, run)
        self.finish_training(job)
        self.assertEqual(self.restarts(job), RUNS)
        self.assert_as_undisturbed()


class TimeLimitTest(TrainingCase):
    """How long a step takes, or the start, says nothing here: the first run has more steps than any machine can do, and what
    is left for the next one is decided when it is over."""
    steps = 1_000_000
    forwards = 8

    def test_limit_is_near(self):
        # All of the limit is margin: the launcher's first look after the first step ends the run.
        job = self.submit(f"""\
            [ -z "$SLURM_RESTART_COUNT" ] || until [ -e "$D/planned" ]; do sleep 0.1; done
            {self.command("--requeue-margin=600")}
            """, "--nodes=2", "--time=10")
        self.next_run(job, time_limit=60)
        self.steps = self.last_step() + STEPS_AFTER_THE_LIMIT
        self.write_configurations()
        (self.dir / "planned").touch()
        self.finish_training(job)
        self.assertEqual(self.restarts(job), 1)
        self.assertIn(f"the time limit of job {job} ends in", slurm.output(job))
        self.assert_as_undisturbed()


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
