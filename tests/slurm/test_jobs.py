"""Jobs that say nothing about each other's nodes: fsdprun takes them from the allocation. The nodes' names do not resolve."""

import json
import os
import pathlib
import signal
import sys
import unittest

import slurm_case
from slurm_case import FSDPRUN, SlurmCase, free_port

PLACE = """
    note("place", json.dumps({k: os.environ.get(k) for k in (
        "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "FSDPRUN_JOB_ID")}))
    note("slurm", " ".join(k for k in os.environ if k.startswith(("SLURM", "SRUN", "PMI"))))
    note("token", os.environ.get("FSDPRUN_TOKEN", ""))
"""


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class PlacesCase(SlurmCase):
    def assert_places(self, world, local_world_sizes):
        """One world with all the ranks, those of a node next to one another."""
        places = {rank: json.loads(text) for rank, text in self.notes("place").items()}
        self.assertEqual(sorted(places), list(range(world)))
        local = [(rank, size) for size in local_world_sizes for rank in range(size)]
        found = [(int(places[r]["LOCAL_RANK"]), int(places[r]["LOCAL_WORLD_SIZE"])) for r in range(world)]
        self.assertEqual(found, local)
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FSDPRUN_JOB_ID"):
            self.assertEqual(len({place[name] for place in places.values()}), 1, places)
        self.assertEqual(places[0]["WORLD_SIZE"], str(world))
        return places


class ShellTest(PlacesCase):
    """fsdprun in the batch file itself."""

    def test_trains_on_all_nodes(self):
        worker = self.worker(PLACE)
        self.run_job(f"{FSDPRUN} --nproc-per-node=2 {worker}", "--nodes=4")
        places = self.assert_places(8, [2, 2, 2, 2])
        self.assertEqual([places[r]["GROUP_RANK"] for r in range(8)], list("00112233"))
        self.assertEqual(set(self.notes("slurm").values()), {""})  # They are those of the agent's task.
        self.assertEqual(set(self.notes("token").values()), {""})

    def test_variables_of_slurm_may_be_kept(self):
        self.run_job(f"{FSDPRUN} --keep-slurm-env {self.worker(PLACE)}", "--nodes=2")
        self.assertIn("SLURM_PROCID", self.notes("slurm")[1])

    def test_tasks_of_the_job_do_not_bind_the_agents(self):
        self.run_job(f"{FSDPRUN} --nproc-per-node=2 {self.worker(PLACE)}", "--nodes=2", "--ntasks-per-node=2",
                     "--cpus-per-task=2")
        self.assert_places(4, [2, 2])

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


class StepTest(PlacesCase):
    """srun fsdprun, as it is written for torchrun."""

    def test_one_launcher_on_each_node(self):
        self.run_job(f"srun {FSDPRUN} --nproc-per-node=2 {self.worker(PLACE)}", "--nodes=3")
        self.assert_places(6, [2, 2, 2])
        self.assertEqual(set(self.notes("slurm").values()), {""})

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
        output = self.run_job(f"srun {FSDPRUN} --nproc-per-node=4 {self.worker()}", "--nodes=1", "--ntasks-per-node=2",
                              state="FAILED")
        for word in ("SLURM_STEP_TASKS_PER_NODE", "2 launchers", "node", "--ntasks-per-node=1"):
            self.assertIn(word, output)

    def test_step_that_cannot_start(self):
        output = self.run_job(f"{FSDPRUN} --srun-args=--cpus-per-task=99 {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "srun could not start", "srun --nodes=2")

    def test_no_srun(self):
        output = self.run_job(f"PATH=/usr/bin:/bin {FSDPRUN} {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "cannot start srun", "PATH")

    def test_allocation_that_is_over(self):
        output = self.run_job(f"SLURM_JOB_ID=999 SLURM_JOBID=999 {FSDPRUN} {self.worker()}", "--nodes=2", state="FAILED")
        self.assert_one_line(output, "srun could not start", "999")

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
