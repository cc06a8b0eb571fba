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


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class EndTest(SlurmCase):
    def test_culprits_exit_code(self):
        worker = self.worker("""
            meet("here")
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
            meet(f"run-{RESTART}")
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

    def agent(self, rank):
        """The parent of the worker's keeper."""
        return parent(self.notes("keeper")[rank])

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
            os.kill(self.agent(1), signal.SIGKILL)
            if nodes == "3":
                self.assert_too_few_are_left(job, "Killed")
        self.wait_for_notes("world-2", range(2), job)
        (self.dir / "go").touch()
        self.finish(job)

    def test_lines_of_others_sruns(self):
        """A worker's standard error has what an srun of its own says; that ends no agent, nor the job."""
        worker = self.worker("""
            for node in ("node1", "node[1-4]", "elsewhere"):
                print(f"srun: error: {node}: task 0: Exited with exit code 1", file=sys.stderr, flush=True)
            meet(f"run-{RESTART}")
            sys.exit(1 if RESTART == 0 and RANK == 1 else 0)
            """)
        output = self.run_job(f"{FSDPRUN} --max-restarts=1 --restart-backoff=1 {worker}", "--nodes=2")
        self.assertIn("srun: error: elsewhere", output)

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

    def test_node_that_is_shut_down(self):
        """Its processes get SIGTERM, and no others: the others go on without it."""
        worker = self.worker("""
            note("keeper", os.getppid())
            note(f"world-{WORLD}", os.environ["GROUP_RANK"])
            wait_for("go")
            """)
        job = self.submit(f"exec {FSDPRUN} --nnodes=2:3 --max-restarts=3 {worker}", "--nodes=3")
        self.wait_for_notes("keeper", range(3), job)
        self.wait_for_notes("world-3", range(3), job)
        os.kill(self.agent(2), signal.SIGTERM)
        self.wait_for_notes("world-2", range(2), job)
        (self.dir / "go").touch()
        self.finish(job)

    def test_lost_node_that_is_needed(self):
        """Nobody there says what has become of the agent: srun tells of the node alone."""
        worker = self.worker("""
            note("keeper", os.getppid())
            wait_for("never")
            """)
        job = self.submit(f"exec {FSDPRUN} --max-restarts=3 {worker}", "--nodes=3", "--no-kill")
        self.wait_for_notes("keeper", range(3), job)
        agent = self.agent(2)
        slurmstepd = parent(agent)
        os.kill(slurmstepd, signal.SIGSTOP)
        try:
            os.kill(agent, signal.SIGKILL)
            slurm.node_down(slurm.scontrol("show", "hostnames", slurm.job(job)["NodeList"]).split()[2])
            self.assert_too_few_are_left(job, "Node failure")
        finally:
            os.kill(slurmstepd, signal.SIGCONT)

    def test_signal_before_the_step_begins(self):
        """Another step has all the CPUs: srun waits, and no agent that could end it."""
        job = self.submit(f"""\
            srun --nodes=2 --ntasks=2 sh -c 'touch "$D/busy"; exec tail -f /dev/null' &
            until [ -e "$D/busy" ]; do sleep 0.1; done
            exec {FSDPRUN} {self.worker()}
            """, "--nodes=2")
        slurm.wait_for_output(job, "waiting for nodes: 0 of 2 joined")
        slurm.scancel("--batch", "--signal=INT", job)
        output = self.finish(job, "FAILED")
        self.assertIn("SIGINT", output)
        self.assertNotIn("has not ended within", output)

    def put_before_srun(self, script):
        """In $D/bin."""
        srun = self.dir / "bin/srun"
        srun.parent.mkdir()
        srun.write_text(f"#!/bin/sh\n{script}")
        srun.chmod(0o755)

    def test_srun_that_does_not_end(self):
        self.put_before_srun("trap '' INT TERM\ntouch $D/begun\nexec tail -f /dev/null\n")
        job = self.submit(f"PATH=$D/bin:$PATH exec {FSDPRUN} {self.worker()}", "--nodes=2")
        slurm.wait_until((self.dir / "begun").exists, "srun's begin", job)
        slurm.scancel("--batch", "--signal=INT", job)
        self.assertIn("killing srun", self.finish(job, "FAILED"))

    def test_signal_after_the_end_of_the_job(self):
        """Its step goes on, for whatever reason: a signal that was sent before ends that, too."""
        self.put_before_srun(f"{slurm.folder}/bin/srun \"$@\"\ntouch $D/over\nexec tail -f /dev/null\n")
        worker = self.worker("note('here')\nwait_for('never')")
        job = self.submit(f"PATH=$D/bin:$PATH exec {FSDPRUN} {worker}", "--nodes=2")
        self.wait_for_notes("here", range(2), job)
        slurm.scancel("--batch", "--signal=TERM", job)
        slurm.wait_until((self.dir / "over").exists, "the agents to end", job)
        slurm.scancel("--batch", "--signal=TERM", job)
        output = self.finish(job, "FAILED")
        self.assertIn("the job was ended by SIGTERM", output)
        self.assertNotIn("has not ended within", output)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
