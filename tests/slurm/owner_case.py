"""Clusters whose owner is killed, as ctest ends a test that takes too long: with all its children."""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

from cluster import HERE
from guard import processes_with

OWNER = """\
import sys
import time
from cluster import Cluster
slurm = Cluster(nodes=1, accounting=sys.argv[1:] == ["accounting"]).__enter__()
job = slurm.sbatch("#!/bin/sh\\nsleep 600\\n")
slurm.wait_for_state(job, "RUNNING")
slurm.wait_until(slurm.processes, "the job's processes")
print(slurm.folder, flush=True)
time.sleep(600)
"""


def children_of(pid):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            head, rest = path.read_text().rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == pid:
            found.append(int(head.split()[0]))
    return found


class OwnerCase(unittest.TestCase):
    def assert_killed_owner_leaves_nothing(self, slurm, *options, with_children=True):
        owner = subprocess.Popen([sys.executable, "-c", OWNER, *options], stdout=subprocess.PIPE, text=True, cwd=HERE)
        folder = owner.stdout.readline().strip()
        for pid in [owner.pid, *(children_of(owner.pid) if with_children else [])]:
            os.kill(pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        slurm.wait_until(lambda: not processes_with(folder), "the other cluster's processes to end")
        subprocess.run(["rm", "-r", folder], check=True)
