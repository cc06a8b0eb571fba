"""What ends a run of a job before its time, as Slurm itself does it: preemption, a time limit that is reached, a lost node;
a controller that is away then; and jobs of other kinds than a plain batch file."""

import os
import pathlib
import signal
import sys
import time

import slurm_case
from queue_case import HOLD_AT, STEPS, TRAINER, QueueCase
from slurm_case import FSDPRUN

SUSPENDED_S = 5  # The pause is the fault: the node lease is 3 s.


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster(
        settings=["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "KillWait=10"],
        partitions=["PartitionName=requeued Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE",
                    "PartitionName=cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL",
                    "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF"])


class PreemptionTest(QueueCase):
    def preempt(self, partition):
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=4", "--exclusive", f"--partition={partition}")
        self.hold(job, 4)
        urgent = slurm.sbatch("#!/bin/sh\ntrue\n", "--nodes=4", "--exclusive", "--partition=urgent")
        self.next_run(job)
        output = self.finish(job)
        self.assertEqual(slurm.job(urgent)["JobState"], "COMPLETED")
        self.assertEqual(self.restarts(job), 1)
        self.assert_each_step_once(4, [HOLD_AT, STEPS - HOLD_AT])
        return output

    def test_by_requeueing(self):
        self.assertIn("Slurm has requeued the job", self.preempt("requeued"))

    def test_by_cancelling(self):
        self.assertIn("it was preempted", self.preempt("cancelled"))


class TimeLimitTest(QueueCase):
    def test_limit_that_is_reached(self):
        """It was shortened after the launcher had looked: SIGTERM is the first that it hears of it."""
        self.environment["LOGLEVEL"] = "INFO"
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2", "--time=10")
        self.hold(job, 2)
        slurm.wait_for_output(job, "looking again in")
        slurm.scontrol("update", f"jobid={job}", "endtime=now+1")
        self.next_run(job)
        output = self.finish(job)
        self.assertIn("its time limit ends", output)
        self.assertIn("DUE TO TIME LIMIT", output)
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])


class OutageTest(QueueCase):
    def test_controller_that_is_away(self):
        """When the job has ended and is to be requeued, as while it fails over to another machine."""
        job = self.submit(f"""\
            echo $$ >$D/launcher
            exec {FSDPRUN} {self.worker(TRAINER)}
            """, "--nodes=2")
        self.hold(job, 2)
        slurm.stop_controller()
        try:
            os.kill(int((self.dir / "launcher").read_text()), signal.SIGUSR1)
            slurm.wait_until(lambda: f"cannot requeue job {job} yet" in slurm.output(job), "the launcher to try in vain")
        finally:
            slurm.restart_controller()
        self.next_run(job)
        self.finish(job)
        self.assertEqual(self.restarts(job), 1)
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])

    def test_controller_that_is_away_at_the_start(self):
        """srun gives up after some seconds, the launcher does not."""
        job = self.submit(f"""\
            touch "$D/begun"
            until [ -e "$D/go" ]; do sleep 0.1; done
            exec {FSDPRUN} {self.worker()}
            """, "--nodes=2")
        slurm.wait_until((self.dir / "begun").exists, "the batch file's begin", job)
        slurm.stop_controller()
        try:
            (self.dir / "go").touch()
            slurm.wait_until(lambda: "could not start the step of 2 agents yet" in slurm.output(job), "srun to fail")
        finally:
            slurm.restart_controller()
        self.finish(job)

    def test_lost_node(self):
        """Without --no-kill: Slurm ends the job, and requeues it by itself."""
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2")
        self.hold(job, 2)
        slurm.node_down(slurm.scontrol("show", "hostnames", slurm.job(job)["NodeList"]).split()[1])
        self.next_run(job)
        self.assertIn("Slurm has requeued the job", self.finish(job))
        self.assertEqual(self.restarts(job), 1)

    def test_job_that_is_suspended(self):
        """For longer than a node may be silent."""
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=2")
        self.hold(job, 2)
        slurm.scontrol("suspend", job)
        slurm.wait_for_state(job, "SUSPENDED")
        time.sleep(SUSPENDED_S)
        slurm.scontrol("resume", job)
        slurm.wait_for_state(job, "RUNNING")
        slurm.scancel("--batch", "--signal=USR1", job)
        self.next_run(job)
        self.finish(job)
        self.assertEqual(self.restarts(job), 1)
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])


class FruitlessTest(QueueCase):
    def test_program_that_saves_nothing(self):
        """Its workers die of the signal and have reported no step: that goes on for three short runs."""
        worker = self.worker("""
            note(f"here-{RESTART}")
            wait_for("never")
            """)
        job = self.submit(f"exec {FSDPRUN} {worker}", "--nodes=2")
        for run in range(3):
            if run > 0:
                self.next_run(job, run)
            self.wait_for_notes(f"here-{run}", range(2), job)
            slurm.scancel("--batch", "--signal=USR1", job)
        output = self.finish(job, "FAILED")
        for run in (1, 2):
            self.assertIn(f"run {run} of 3 without a sign of progress", output)
        self.assertIn("3 runs in a row", output)
        self.assertIn("rank 1 died of signal 10 on node", output)
        self.assertEqual(self.restarts(job), 2)


class KindsOfJobsTest(QueueCase):
    def test_members_of_an_array(self):
        """Each is requeued alone."""
        worker = self.worker(TRAINER)
        job = self.submit(f"""\
            export D=$D/$SLURM_ARRAY_TASK_ID
            mkdir -p $D
            exec {FSDPRUN} {worker}
            """, "--nodes=2", "--array=1-2")
        folder = self.dir
        for member in ("1", "2"):
            self.dir = folder / member
            slurm.wait_until(lambda: set(self.notes("holds-0")) == {0, 1}, f"member {member} to hold", job)
        slurm.scancel("--batch", "--signal=USR1", f"{job}_1")
        slurm.scancel("--signal=USR1", f"{job}_2")
        for member in ("1", "2"):
            self.dir = folder / member
            self.next_run(f"{job}_{member}")
        self.finish(job)
        for member in ("1", "2"):
            self.dir = folder / member
            self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])
        self.dir = folder

    def test_heterogeneous_job(self):
        job = self.submit(f"exec {FSDPRUN} {self.worker(TRAINER)}", "--nodes=1", ":", "--nodes=2")
        self.hold(job, 3)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.next_run(job)
        self.finish(job)
        self.assert_each_step_once(3, [HOLD_AT, STEPS - HOLD_AT])

    def test_two_jobs_at_once(self):
        """The one goes on while the other is requeued."""
        folder, jobs = self.dir, []
        worker = self.worker(TRAINER)
        for name in ("one", "other"):
            self.dir = folder / name
            self.dir.mkdir()
            self.environment["D"] = str(self.dir)
            jobs.append(self.submit(f"exec {FSDPRUN} {worker}", "--nodes=2"))
            self.hold(jobs[-1], 2)
        slurm.scancel("--batch", "--signal=USR1", jobs[1])
        self.next_run(jobs[1])
        self.finish(jobs[1])
        self.assertEqual(slurm.job(jobs[0])["JobState"], "RUNNING")
        self.assertEqual(self.restarts(jobs[0]), 0)
        slurm.scancel(jobs[0])
        self.dir = folder


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
