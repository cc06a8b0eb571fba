"""Life in a queue: a notice before the end, the time limit and a cancellation; another run of the job, or none."""

import pathlib
import sys

import slurm_case
from queue_case import HOLD_AT, STEPS, TRAINER, QueueCase
from slurm_case import FSDPRUN


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class NoticeTest(QueueCase):
    def assert_goes_on(self, script, *options, ranks, send, signal="USR1"):
        job = self.submit(script, *options)
        self.hold(job, ranks)
        send(job)
        self.next_run(job)
        output = self.finish(job)
        self.assertEqual(self.restarts(job), 1)
        self.assert_each_step_once(ranks, [HOLD_AT, STEPS - HOLD_AT])
        self.assertIn(f"SIG{signal} asked for it", output)
        return job

    def test_shell(self):
        """As #SBATCH --signal=B:USR1@120 sends it."""
        job = self.assert_goes_on(f"exec {FSDPRUN} --nproc-per-node=2 {self.worker(TRAINER)}", "--nodes=2", ranks=4,
                                  send=lambda job: slurm.scancel("--batch", "--signal=USR1", job))
        self.assertEqual(set(self.notes("run-0").values()), {f"slurm-{job}"})
        self.assertEqual(set(self.notes("run-1").values()), {f"slurm-{job}-restart-1"})

    def test_every_process_of_the_step(self):
        """As #SBATCH --signal=USR1@120 sends it: not to the shell, where the coordinator is."""
        self.assert_goes_on(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=3", ranks=3,
                            send=lambda job: slurm.scancel("--signal=USR1", job))

    def test_every_process_there_is(self):
        """srun gets it too, and passes it on once more."""
        self.assert_goes_on(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2", ranks=2, signal="USR2",
                            send=lambda job: slurm.scancel("--full", "--signal=USR2", job))

    def test_launchers_of_a_step(self):
        self.assert_goes_on(f"srun {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2", ranks=2,
                            send=lambda job: slurm.scancel("--signal=USR1", job))

    def test_one_node(self):
        self.assert_goes_on(f"exec {FSDPRUN} --nproc-per-node=2 {self.worker(TRAINER)}", "--nodes=1", ranks=2,
                            send=lambda job: slurm.scancel("--batch", "--signal=USR1", job))

    def test_workers_that_are_told_themselves(self):
        """They end well, but before their last step."""
        self.assert_goes_on(f"exec {FSDPRUN} --forward-signals=USR1 {self.worker(TRAINER)}", "--nodes=2", ranks=2,
                            send=lambda job: slurm.scancel("--batch", "--signal=USR1", job))

    def test_job_that_may_not_be_requeued(self):
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2", "--no-requeue")
        self.hold(job, 2)
        slurm.scancel("--batch", "--signal=USR1", job)
        output = self.finish(job, "FAILED")
        self.assertIn("Requeue=0", output)
        self.assert_each_step_once(2, [HOLD_AT])  # But they were told, and have saved.

    def test_job_that_shall_not_be_requeued(self):
        job = self.submit(f"exec {FSDPRUN} --requeue=never {self.worker(TRAINER)}", "--nodes=2")
        self.hold(job, 2)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.assertIn("the job was ended by SIGUSR1", self.finish(job, "FAILED"))
        self.assertEqual(self.restarts(job), 0)


class TimeLimitTest(QueueCase):
    def run_to_limit(self, *options, margin=55, **environment):
        self.environment.update(environment)
        # Of a minute, which is the shortest limit.
        job = self.submit(f"exec {FSDPRUN} --requeue-margin={margin} {' '.join(options)} {self.worker(TRAINER)}", "--nodes=2",
                          "--time=1")
        self.hold(job, 2)
        self.next_run(job, time_limit=10)
        output = self.finish(job)
        self.assertIn(f"the time limit of job {job} ends in", output)
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])

    def test_workers_save_before_it(self):
        self.run_to_limit()

    def test_program_that_reports_no_progress(self):
        """The margin begins whatever the workers have done: they need time to get ready for a signal."""
        self.run_to_limit("--requeue=always", margin=30, REPORTS="no")


class CancelTest(QueueCase):
    def test_cancelled_job_stays_so(self):
        job = self.submit(f"exec {FSDPRUN} --requeue=always {self.worker(TRAINER)}", "--nodes=2")
        self.hold(job, 2)
        slurm.scancel(job)
        slurm.wait_for_state(job, "CANCELLED")
        self.assertEqual(self.restarts(job), 0)
        self.assertEqual(set(self.notes("stops-0")), {0, 1})


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
