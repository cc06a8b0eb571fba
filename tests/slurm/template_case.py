"""Batch files that are submitted as a user would: from a folder of its own, with fsdprun on PATH."""

import json
import os
import textwrap

import slurm_case
from queue_case import QueueCase
from slurm_case import BIN, HERE

ROOT = HERE.parents[1]
TEMPLATES = ROOT / "deploy/slurm"


# --nproc-per-node=auto is a worker for each of them, on every node of the cluster.
CPUS = 2


def start_small_cluster(**options):
    """For setUpModule(): a cluster whose nodes have few CPUs, however many this machine has."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    return slurm_case.start_cluster(**options)


class TemplateCase(QueueCase):
    """The test's folder is that of the user."""

    def setUp(self):
        super().setUp()
        self.tools = self.dir / "bin"
        self.tools.mkdir()
        self.environment["PATH"] = f"{self.tools}:{BIN}:{slurm_case.slurm.environment['PATH']}"

    def tool(self, name, text):
        (self.tools / name).write_text(f"#!/bin/bash\n{textwrap.dedent(text)}")
        (self.tools / name).chmod(0o755)

    def command(self, *words, check=True):
        return slurm_case.slurm.run(*words, check=check, cwd=self.dir, env={**slurm_case.slurm.environment, **self.environment})

    def submit_file(self, path):
        return self.command("sbatch", "--parsable", path).stdout.strip()

    def hold_template(self, job, nodes=2):
        """Until as many workers as --nproc-per-node=auto starts on the nodes wait to be stopped. How many those are."""
        ranks = nodes * len(os.sched_getaffinity(0))
        self.hold(job, ranks)
        return ranks

    def assert_told(self, ranks, number):
        """Each worker of the first run was stopped by this signal alone, which more than one may have sent."""
        told = {rank: set(json.loads(text)) for rank, text in self.notes("stops-0").items()}
        self.assertEqual(told, dict.fromkeys(range(ranks), {number.value}))

    def output(self, job):
        return "".join(path.read_text(errors="replace") for path in self.dir.glob(f"*-{job}.out"))

    def finish(self, job, state="COMPLETED"):
        super().finish(job, state)
        return self.output(job)
