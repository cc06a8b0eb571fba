"""srun fsdprun: the launchers of a step find each other. The names of the nodes do not resolve."""

import pathlib
import sys

import slurm_case
from slurm_case import FSDPRUN, PLACE, PlacesCase, free_port


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class StepTest(PlacesCase):
    """srun fsdprun, as it is written for torchrun."""

    def test_one_launcher_on_each_node(self):
        self.run_job(f"srun {FSDPRUN} --nproc-per-node=2 {self.worker(PLACE)}", "--nodes=3")
        self.assert_places(6, [2, 2, 2])
        self.assert_workers_see_the_job_alone()

    def test_torchruns_own_line(self):
        """Whoever of the nodes comes first."""
        worker = self.worker(PLACE)
        self.run_job(f"""\
            head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
            srun {FSDPRUN} --nnodes $SLURM_NNODES --nproc_per_node 2 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d \\
              --rdzv_endpoint $head:{free_port()} {worker}
            """, "--nodes=2", "--ntasks-per-node=1")
        self.assert_places(4, [2, 2])

    def test_one_launcher_for_each_task(self):
        self.run_job(f"srun {FSDPRUN} {self.worker(PLACE)}", "--ntasks=5", "--cpus-per-task=2")
        self.assert_places(5, [2, 2, 1])

    def test_srun_without_a_batch_file(self):
        slurm.srun("--nodes=2", FSDPRUN, self.worker(PLACE), env={**slurm.environment, **self.environment})
        self.assert_places(2, [1, 1])

    def test_heterogeneous_step(self):
        self.run_job(f"srun --het-group=0,1 {FSDPRUN} {self.worker(PLACE)}", "--nodes=1", ":", "--nodes=2",
                     "--ntasks-per-node=2")
        self.assert_places(5, [1, 2, 2])

    def test_two_steps_and_two_jobs_at_once(self):
        worker = self.worker("""
            job = os.environ["FSDPRUN_JOB_ID"]
            note("job-" + job, WORLD)
            def all_there():
                return len({p.name.rsplit(".", 1)[0] for p in D.glob("job-*")}) == 3
            wait_for_files(all_there, D, "the other jobs")
            """)
        both = self.submit(f"srun --overlap {FSDPRUN} {worker} & srun --overlap {FSDPRUN} {worker} & wait", "--nodes=2")
        other = self.submit(f"srun {FSDPRUN} {worker}", "--nodes=2")
        self.finish(both)
        self.finish(other)
        self.assertEqual([path.read_text() for path in self.dir.glob("job-*")], ["2"] * 6)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
