"""What is left of a job in Slurm's accounting, for who asks sacct the day after: its state and the culprit's exit code."""

import os
import pathlib
import sys

import slurm_case
from cluster import Cluster
from guard import processes_with
from owner_case import OwnerCase
from queue_case import TRAINER, QueueCase
from slurm_case import FSDPRUN

# The launcher in the batch shell starts its agents as a step, or the step is the launchers.
BATCH, STEP = f"exec {FSDPRUN}", f"srun {FSDPRUN}"


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster(accounting=True)


def outcome(record):
    return record["State"], record["ExitCode"]


class ExitCodeTest(QueueCase):
    """The launcher in the batch shell, then launchers that are a step: a step of agents has not failed with the workers.
    Different daemons report the ends of a step and of its batch shell. A step that is late gets the job's state, and no code:
    so the shell waits for its step's, where it can."""

    def run_to_end(self, launcher, options, last_words, state):
        """The job, and its records."""
        worker = self.worker(f"""
            meet("job-" + os.environ["SLURM_JOB_ID"])
            if RANK == 3:
                {last_words}
            """)
        job = self.submit(f"""\
            {launcher} --nproc-per-node=2 {options} {worker}
            code=$?
            until [ -e $D/step-is-over-$SLURM_JOB_ID ]; do sleep 0.02; done
            exit $code
            """, "--nodes=2")
        slurm.accounting.wait_for_runs(job, parts=("0",))
        (self.dir / f"step-is-over-{job}").touch()
        self.finish(job, state)
        run, = slurm.accounting.wait_for_runs(job)
        return job, run

    def assert_end(self, options, last_words, state, in_scontrol, in_sacct):
        for launcher in (BATCH, STEP):
            job, run = self.run_to_end(launcher, options, last_words, state)
            self.assertEqual(slurm.job(job)["ExitCode"], in_scontrol)
            self.assertEqual(outcome(run[""]), (state, in_sacct), slurm.describe(job))
            self.assertEqual(outcome(run["batch"]), (state, in_sacct), slurm.describe(job))
            if launcher == BATCH:
                self.assertEqual(run["0"]["ExitCode"], "0:0", slurm.describe(job))
            else:
                self.assertEqual(outcome(run["0"]), (state, in_sacct), slurm.describe(job))
                self.assertEqual(run[""]["DerivedExitCode"], in_scontrol, slurm.describe(job))  # The worst of all steps.

    def test_success(self):
        self.assert_end("", "pass", "COMPLETED", "0:0", "0:0")

    def test_failure(self):
        self.assert_end("", "sys.exit(7)", "FAILED", "1:0", "1:0")

    def test_culprits_exit_code(self):
        self.assert_end("--exit-code=worker", "sys.exit(7)", "FAILED", "7:0", "7:0")

    def test_culprit_that_was_killed(self):
        """sacct leaves out the 128 that launchers and shells add to the number of a signal."""
        self.assert_end("--exit-code=worker", "os.kill(os.getpid(), signal.SIGKILL)", "FAILED", "137:0", "9:0")


class EarlierEndTest(QueueCase):
    def assert_requeued_run_is_kept(self, launcher, *words):
        """The run that was requeued has a record of its own; who does not ask for duplicates sees the last run alone."""
        worker = self.worker(TRAINER + "if RESTART == 1 and RANK == 1: sys.exit(7)")
        job = self.submit(f"{launcher} --exit-code=worker {worker}", "--nodes=2")
        self.hold(job, 2)
        slurm.scancel(*words, "--signal=USR1", job)
        self.next_run(job)
        self.finish(job, "FAILED")
        first, last = slurm.accounting.wait_for_runs(job, number=2)
        self.assertEqual(outcome(first[""]), ("REQUEUED", "0:0"))
        for part in ("", "batch"):
            self.assertEqual(outcome(last[part]), ("FAILED", "7:0"))
        self.assertEqual(slurm.job(job)["ExitCode"], "7:0")
        records = slurm.accounting.records(job)
        self.assertEqual((records[0], len(records)), (last[""], len(last)))

    def test_requeued_batch_file_that_fails(self):
        self.assert_requeued_run_is_kept(BATCH, "--batch")

    def test_requeued_step_that_fails(self):
        self.assert_requeued_run_is_kept(STEP)

    def test_cancelled_job(self):
        """Slurm writes the job's record when it is told to cancel it, before there is an exit code."""
        worker = self.worker("""
            note("job-" + os.environ["SLURM_JOB_ID"])
            wait_for("never")
            """)
        for launcher in (BATCH, STEP):
            job = self.submit(f"{launcher} {worker}", "--nodes=2")
            self.wait_for_notes(f"job-{job}", range(2), job)
            slurm.scancel(job)
            slurm.wait_for_state(job, "CANCELLED")
            run, = slurm.accounting.wait_for_runs(job)
            self.assertEqual(outcome(run[""]), (f"CANCELLED by {os.getuid()}", "0:0"))


class ClusterTest(OwnerCase):
    def test_another_cluster_beside_it(self):
        """Each has a database of its own, though both call themselves and their first jobs the same."""
        with Cluster(nodes=1, name="other", accounting=True) as other:
            job = other.sbatch("#!/bin/sh\nexit 5\n")
            run, = other.accounting.wait_for_runs(job, parts=("", "batch"))
            self.assertEqual(outcome(run[""]), ("FAILED", "5:0"))
            folder = other.folder
        self.assertFalse(folder.exists())
        self.assertEqual(processes_with(str(folder)), [])

    def test_killed_owner_leaves_nothing(self):
        self.assert_killed_owner_leaves_nothing(slurm, "accounting", with_children=False)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
