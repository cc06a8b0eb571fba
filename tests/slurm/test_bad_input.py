"""What cannot work in Slurm: one line that says what to do, and the job has failed."""

import pathlib
import sys

import slurm_case
from slurm_case import FSDPRUN, SlurmCase


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class BadInputTest(SlurmCase):
    def assert_one_line(self, output, *words):
        lines = [line for line in output.splitlines() if line.startswith("fsdprun")]
        self.assertEqual(len(lines), 1, output)
        for word in words:
            self.assertIn(word, lines[0])

    def test_allocation_does_not_fit(self):
        output = self.run_job(f"{FSDPRUN} --nnodes=3 {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "--nnodes", "3 nodes", "SLURM_JOB_NODELIST", "2 nodes", "--nodes")

    def test_two_launchers_on_a_node(self):
        """Said once, not by each task."""
        output = self.run_job(f"srun {FSDPRUN} --nproc-per-node=4 {self.worker()}", "--nodes=2", "--ntasks-per-node=2",
                              state="FAILED")
        self.assert_one_line(output, "SLURM_STEP_TASKS_PER_NODE", "2 launchers", "node", "--ntasks-per-node=1")

    def test_step_does_not_fit(self):
        output = self.run_job(f"srun {FSDPRUN} --nnodes=3 {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "--nnodes", "3 nodes", "SLURM_STEP_NUM_NODES", "2 nodes")

    def test_no_program(self):
        for script in (f"{FSDPRUN} --no-python ./nothing", f"srun {FSDPRUN} --no-python ./nothing"):
            output = self.run_job(script, "--nodes=3", state="FAILED")
            self.assertEqual(output.count("Root Cause"), 1, output)
            self.assertEqual(output.count("cannot run './nothing'"), 1, output)
            self.assertRegex(output, "host +: node[123] ")  # whichever says it first

    def test_step_that_cannot_start(self):
        output = self.run_job(f"{FSDPRUN} --srun-args=--cpus-per-task=99 {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "srun could not start", "srun --nodes=2", "--srun-args")

    def test_no_srun(self):
        output = self.run_job(f"PATH=/usr/bin:/bin {FSDPRUN} {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "cannot start srun", "PATH")

    def test_allocation_that_is_over(self):
        output = self.run_job(f"SLURM_JOB_ID=999 SLURM_JOBID=999 {FSDPRUN} {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "srun could not start", "SLURM_JOB_ID=999, is over", "salloc or sbatch")

    def test_node_without_the_launcher(self):
        """The others do not wait for it."""
        program = self.dir / "fsdprun"
        program.write_text(f"#!/bin/bash\n[[ ${{SLURM_NODEID}} == 1 ]] && exit 127\nexec -a $0 {FSDPRUN} \"$@\"\n")
        program.chmod(0o755)
        job = self.submit(f"{program} {self.worker('note(0)')}", "--nodes=3")
        output = self.finish(job, "FAILED")
        node = slurm.scontrol("show", "hostnames", slurm.job(job)["NodeList"]).split()[1]
        self.assertIn(node, output)
        self.assertIn("Exited with exit code 127", output)
        self.assertEqual(self.notes("0"), {})

    def test_wrong_variable(self):
        output = self.run_job(f"SLURM_JOB_NODELIST='node[1' {FSDPRUN} {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "SLURM_JOB_NODELIST", "'node[1', at character 7")


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
