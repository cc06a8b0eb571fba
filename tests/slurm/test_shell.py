"""fsdprun in the batch file itself, and in the shell of salloc: nodes come from the allocation. Their names do not resolve."""

import pathlib
import sys

import slurm_case
from slurm_case import FSDPRUN, PLACE, PlacesCase


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class ShellTest(PlacesCase):
    """fsdprun in the batch file itself."""

    def test_trains_on_all_nodes(self):
        worker = self.worker(PLACE)
        self.run_job(f"{FSDPRUN} --nproc-per-node=2 {worker}", "--nodes=4")
        places = self.assert_places(8, [2, 2, 2, 2])
        self.assertEqual([places[r]["GROUP_RANK"] for r in range(8)], list("00112233"))
        self.assert_workers_see_the_job_alone()
        self.assertEqual(set(self.notes("token").values()), {""})

    def test_variables_of_the_task_may_be_kept(self):
        self.run_job(f"{FSDPRUN} --keep-slurm-env {self.worker(PLACE)}", "--nodes=2")
        self.assertIn("SLURM_PROCID", self.notes("slurm")[1])

    def test_tasks_of_the_job_do_not_bind_the_agents(self):
        self.run_job(f"{FSDPRUN} --nproc-per-node=2 {self.worker(PLACE)}", "--nodes=2", "--ntasks-per-node=2",
                     "--cpus-per-task=2")
        self.assert_places(4, [2, 2])
        for names in self.notes("slurm").values():
            self.assertIn("SLURM_CPUS_PER_TASK", names.split())

    def test_heterogeneous_job(self):
        self.run_job(f"{FSDPRUN} {self.worker(PLACE)}", "--nodes=1", ":", "--nodes=2", "--ntasks-per-node=2")
        self.assert_places(3, [1, 1, 1])

    def test_one_node(self):
        self.run_job(f"{FSDPRUN} --nproc-per-node=2 {self.worker(PLACE)}", "--nodes=1")
        self.assert_places(2, [2])

    def test_shell_of_salloc(self):
        slurm.run("salloc", "--nodes=2", FSDPRUN, self.worker(PLACE), env={**slurm.environment, **self.environment})
        self.assert_places(2, [1, 1])

    def test_shell_of_salloc_for_one_node(self):
        """It is not on that node."""
        slurm.run("salloc", "--nodes=1", FSDPRUN, self.worker(PLACE), env={**slurm.environment, **self.environment})
        self.assert_places(1, [1])

    def test_spare_node(self):
        """More nodes than --nnodes: what is too many stands by."""
        self.run_job(f"{FSDPRUN} --nnodes=2 {self.worker(PLACE)}", "--nodes=3")
        self.assert_places(2, [1, 1])

    def test_array(self):
        worker = self.worker("note('id-' + os.environ['FSDPRUN_JOB_ID'], WORLD)")
        self.run_job(f"{FSDPRUN} {worker}", "--nodes=2", "--array=1-2")
        jobs = {path.name.rsplit(".", 1)[0] for path in self.dir.glob("id-*")}
        self.assertEqual(len(jobs), 2)
        self.assertEqual({path.read_text() for path in self.dir.glob("id-*")}, {"2"})

    def test_words_for_srun(self):
        self.run_job(f"{FSDPRUN} --srun-args='--job-name=agents --comment=x' {self.worker(PLACE)}", "--nodes=2")
        self.assert_places(2, [1, 1])

    def test_own_rendezvous_is_taken_at_its_word(self):
        self.run_job(f"{FSDPRUN} --standalone {self.worker(PLACE)}", "--nodes=2")
        self.assert_places(1, [1])
        self.assertIn("SLURM_PROCID", self.notes("slurm")[0])  # As with torchrun.

    def test_workers_start_steps(self):
        """The job's variables are enough for an srun of their own, on any of its nodes."""
        worker = self.worker("""
            import subprocess
            names = subprocess.check_output(["srun", "--overlap", "--nodes=2", "--ntasks=2", "printenv", "SLURMD_NODENAME"])
            note("nodes", len(set(names.split())))
            """)
        self.run_job(f"{FSDPRUN} {worker}", "--nodes=2")
        self.assertEqual(self.notes("nodes"), {0: "2", 1: "2"})


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
