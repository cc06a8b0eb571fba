"""Preemption with a grace, in which Slurm leaves the ending of the job to its launcher: deploy/slurm's batch file for that, which
asks for a signal of its own, and a job that does not."""

import pathlib
import signal
import sys

from queue_case import HOLD_AT, STEPS, TRAINER
from slurm_case import FSDPRUN
from template_case import TEMPLATES, TemplateCase, start_small_cluster

# Longer than it takes to save; a job that left its ending to Slurm would be there until then.
GRACE_S = 300


def setUpModule():
    global slurm
    slurm = start_small_cluster(
        settings=["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "KillWait=10",
                  "SlurmctldParameters=preempt_send_user_signal"],
        partitions=[f"PartitionName=preemptible Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S}",
                    f"PartitionName=cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE_S}",
                    "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF"])


class GraceTest(TemplateCase):
    def preempt(self, job, ranks, told):
        """The urgent job gets its nodes long before the grace is over."""
        urgent = slurm.sbatch("#!/bin/sh\ntrue\n", "--nodes=4", "--exclusive", "--partition=urgent")
        self.next_run(job)
        slurm.wait_for_state(urgent, "COMPLETED")
        output = self.finish(job)
        self.assertIn("the job is requeued, because it was preempted", output)
        self.assertEqual(self.restarts(job), 1)
        self.assert_told(ranks, told)
        self.assert_each_step_once(ranks, [HOLD_AT, STEPS - HOLD_AT])

    def start(self, partition):
        """Without a signal of its own."""
        worker = self.worker(TRAINER)
        (self.dir / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=4 --exclusive --requeue --open-mode=append\n"
                                             f"#SBATCH --partition={partition} --output=%x-%j.out\nexec {FSDPRUN} {worker}\n")
        job = self.submit_file("job.sbatch")
        self.hold(job, 4)
        return job

    def test_signal_of_the_template(self):
        """To the shell alone."""
        self.worker(TRAINER, name="train.py")
        job = self.command("sbatch", "--parsable", "--partition=preemptible", TEMPLATES / "preemption.sbatch").stdout.strip()
        self.preempt(job, self.hold_template(job), signal.SIGUSR1)

    def test_sigterm(self):
        """To the steps alone."""
        self.preempt(self.start("preemptible"), 4, signal.SIGTERM)

    def test_where_slurm_would_cancel(self):
        self.preempt(self.start("cancelled"), 4, signal.SIGTERM)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
