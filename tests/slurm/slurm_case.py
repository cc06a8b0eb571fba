"""Jobs of fsdprun in a real Slurm: workers that leave notes, and a check that nothing of a job is left on any node."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import textwrap
import unittest

from cluster import HERE, Cluster, free_port, reason_to_skip  # noqa: F401

BIN = pathlib.Path(os.environ.get("FSDPRUN_BIN", "build/release/bin")).resolve()
FSDPRUN = BIN / "fsdprun"
# What a worker of PlacesCase leaves of its environment.
PLACE = """
    note("place", json.dumps({k: os.environ.get(k) for k in (
        "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "FSDPRUN_JOB_ID")}))
    note("slurm", " ".join(k for k in os.environ if k.startswith(("SLURM", "SRUN", "PMI"))))
    note("token", os.environ.get("FSDPRUN_TOKEN", ""))
"""
# What begins like this is about the launcher's own task and step.
OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK", "SLURM_NTASKS", "SLURM_NPROCS",
           "SLURM_STEP", "SLURM_SRUN_COMM", "SRUN_DEBUG", "PMI")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

slurm: Cluster = None  # start_cluster() makes it


def start_cluster(**options):
    """For setUpModule()."""
    global slurm
    if reason := reason_to_skip(options.get("accounting", False)):
        raise unittest.SkipTest(reason)
    slurm = Cluster(**options).__enter__()
    unittest.addModuleCleanup(slurm.close)
    return slurm


class SlurmCase(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun_test_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        (self.dir / "tmp").mkdir()
        self.environment = {
            "D": str(self.dir), "TMPDIR": str(self.dir / "tmp"), "XDG_CONFIG_HOME": str(self.dir / "config"),
            "PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", "LOGLEVEL": "ERROR", "OMP_NUM_THREADS": "1",
        }

    def tearDown(self):
        for job in slurm.queue():
            slurm.scancel(job)
        slurm.wait_until(lambda: not slurm.processes(), "everything on the nodes to end")
        for node, state in slurm.node_states().items():
            if state.startswith("down"):
                slurm.node_up(node)

    def worker(self, body="", name="worker.py"):
        """A worker script: note(kind, text) leaves a file KIND.RANK in the test's folder; meet(kind) waits for that of every
        rank."""
        head = f"""\
            import json, os, pathlib, signal, sys, time
            sys.path.insert(0, {str(HERE.parent / "integration/launcher")!r})
            from events import wait_for_files
            D = pathlib.Path(os.environ["D"])
            RANK, LOCAL_RANK, WORLD = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
            RESTART = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            def note(kind, text=""):
                (D / f"part-{{kind}}.{{RANK}}").write_text(str(text))
                (D / f"part-{{kind}}.{{RANK}}").rename(D / f"{{kind}}.{{RANK}}")
            def wait_for(*names):
                wait_for_files(lambda: all((D / name).exists() for name in names), D, "what others do")
            def meet(kind):
                note(kind)
                wait_for(*(f"{{kind}}.{{r}}" for r in range(WORLD)))
            """
        path = self.dir / name
        path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        return path

    def submit(self, script, *options):
        return slurm.sbatch("#!/bin/bash\n" + textwrap.dedent(script), *options, environment=self.environment)

    def finish(self, job, state="COMPLETED"):
        """What the job has written; all its parts must end in the state."""
        slurm.wait_until(lambda: all(part["JobState"] in OVER for part in slurm.jobs(job)), f"job {job} to end", job)
        states = {part["JobState"] for part in slurm.jobs(job)}
        self.assertEqual(states, {state}, slurm.describe(job) if states != {state} else "")
        return slurm.output(job)

    def run_job(self, script, *options, state="COMPLETED"):
        return self.finish(self.submit(script, *options), state)

    def assert_too_few_are_left(self, job, how):
        """Of three nodes that the job needs, one agent has ended, as srun says it."""
        output = self.finish(job, "FAILED")
        for word in ("have ended", how, "needs 3 nodes, and 2"):
            self.assertIn(word, output)

    def notes(self, kind):
        """{rank: text}"""
        return {int(path.suffix[1:]): path.read_text() for path in self.dir.glob(f"{kind}.*")}

    def wait_for_notes(self, kind, ranks, job):
        def are_there():
            if set(self.notes(kind)) == set(ranks):
                return self.notes(kind)
            if all(part["JobState"] in OVER for part in slurm.jobs(job)) and set(self.notes(kind)) != set(ranks):
                self.fail(f"job {job} has ended without notes {kind} of {ranks}{slurm.describe(job)}")
            return None
        return slurm.wait_until(are_there, f"notes {kind} of {ranks}", job)


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

    def assert_workers_see_the_job_alone(self):
        for text in self.notes("slurm").values():
            names = text.split()
            self.assertLessEqual({"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "SLURM_SUBMIT_DIR"}, set(names))
            self.assertEqual([name for name in names if name.startswith(OF_TASK)], [])
