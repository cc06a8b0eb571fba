"""Failures, signals and lost nodes in Slurm: how a job ends, with which exit code, and what is left of it."""

import os
import pathlib
import signal
import sys

import slurm_case
from slurm_case import FSDPRUN, SlurmCase


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class EndTest(SlurmCase):
    def test_culprits_exit_code(self):
        worker = self.worker("""
            note("here")
            wait_for(*(f"here.{r}" for r in range(WORLD)))
            if RANK == 3: sys.exit(7)
            wait_for("never")
            """)
        for code, options in (("1:0", ""), ("7:0", "--exit-code=worker")):
            job = self.submit(f"exec {FSDPRUN} --nproc-per-node=2 {options} {worker}", "--nodes=2")
            output = self.finish(job, "FAILED")
            self.assertEqual(slurm.job(job)["ExitCode"], code, output)
            self.assertEqual(output.count("Root Cause"), 1, output)
            self.assertIn("rank      : 3", output)

    def test_restart(self):
        worker = self.worker("""
            note(f"run-{RESTART}")
            wait_for(*(f"run-{RESTART}.{r}" for r in range(WORLD)))
            sys.exit(1 if RESTART == 0 and RANK == 1 else 0)
            """)
        self.run_job(f"{FSDPRUN} --max-restarts=1 {worker}", "--nodes=3")
        self.assertEqual(sorted(self.notes("run-1")), [0, 1, 2])

    def test_scancel_leaves_nothing(self):
        worker = self.worker("note('pid', os.getpid())\nwait_for('never')")
        for script in (f"{FSDPRUN} --nproc-per-node=2 {worker}", f"srun {FSDPRUN} --nproc-per-node=2 {worker}"):
            for path in self.dir.glob("pid.*"):
                path.unlink()
            job = self.submit(script, "--nodes=2")
            self.wait_for_notes("pid", range(4), job)
            slurm.scancel(job)
            slurm.wait_for_state(job, "CANCELLED")
            slurm.wait_until(lambda: not slurm.processes(), "the job's processes to end", job)

    def kill_agent(self, rank):
        """The parent of the worker's keeper."""
        keeper = self.notes("keeper")[rank]
        agent = int(pathlib.Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(agent, signal.SIGKILL)

    def test_killed_agent(self):
        """srun starts no other: who needs all nodes ends at once, who does not goes on."""
        worker = self.worker("""
            note("keeper", os.getppid())
            note(f"world-{WORLD}")
            wait_for("go")
            """)
        for nodes in ("3", "2:3"):
            for path in self.dir.glob("keeper.*"):
                path.unlink()
            job = self.submit(f"exec {FSDPRUN} --nnodes={nodes} --max-restarts=3 {worker}", "--nodes=3")
            self.wait_for_notes("keeper", range(3), job)
            self.kill_agent(1)
            if nodes == "3":
                output = self.finish(job, "FAILED")
                for word in ("have ended", "Killed", "needs 3 nodes, and 2"):
                    self.assertIn(word, output)
        self.wait_for_notes("world-2", range(2), job)
        (self.dir / "go").touch()
        self.finish(job)

    def test_signal_for_the_workers(self):
        """As #SBATCH --signal=B:USR1@120 sends it: to the batch file's process, which is the launcher."""
        worker = self.worker("""
            def on_signal(*_):
                note("told")
            signal.signal(signal.SIGUSR1, on_signal)
            note("here")
            wait_for("go")
            """)
        job = self.submit(f"exec {FSDPRUN} --forward-signals=USR1 {worker}", "--nodes=3")
        self.wait_for_notes("here", range(3), job)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.wait_for_notes("told", range(3), job)
        (self.dir / "go").touch()
        self.finish(job)

    def test_signal_that_ends_the_job(self):
        worker = self.worker("""
            def on_signal(*_):
                note("told")
                sys.exit(0)
            signal.signal(signal.SIGTERM, on_signal)
            note("here")
            wait_for("never")
            """)
        job = self.submit(f"exec {FSDPRUN} {worker}", "--nodes=3")
        self.wait_for_notes("here", range(3), job)
        slurm.scancel("--batch", "--signal=TERM", job)
        output = self.finish(job, "FAILED")
        self.assertEqual(set(self.notes("told")), {0, 1, 2})
        self.assertIn("the job was ended by SIGTERM", output)

    def test_lost_node(self):
        """--no-kill is needed on sbatch; on srun it is ours. The other nodes go on without it."""
        worker = self.worker("""
            note(f"world-{WORLD}", os.environ["GROUP_RANK"])
            wait_for("go")
            """)
        job = self.submit(f"{FSDPRUN} --nnodes=2:3 --max-restarts=3 {worker}", "--nodes=3", "--no-kill")
        self.wait_for_notes("world-3", range(3), job)
        slurm.node_down(slurm.scontrol("show", "hostnames", slurm.job(job)["NodeList"]).split()[2])
        self.wait_for_notes("world-2", range(2), job)
        (self.dir / "go").touch()
        self.finish(job)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
