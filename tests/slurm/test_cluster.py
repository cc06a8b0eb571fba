"""The cluster that the other tests of this folder use."""

import pathlib
import subprocess
import sys
import time
import unittest

from cluster import Cluster, reason_to_skip
from owner_case import OwnerCase

SKIP = reason_to_skip()


def setUpModule():
    global slurm
    if SKIP:
        raise unittest.SkipTest(SKIP)
    begin = time.monotonic()
    slurm = Cluster().__enter__()
    unittest.addModuleCleanup(slurm.close)
    print(f"a cluster of {len(slurm.nodes)} nodes was up after {time.monotonic() - begin:.1f} s", file=sys.stderr)


class ClusterTest(OwnerCase):
    def test_a_job_runs_on_all_nodes(self):
        job = slurm.sbatch("#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME'\n", "--nodes=4")
        slurm.wait_for_state(job, "COMPLETED")
        self.assertEqual(sorted(slurm.output(job).split()), slurm.nodes)

    def test_exit_code_is_known(self):
        job = slurm.sbatch("#!/bin/sh\nexit 3\n")
        self.assertEqual(slurm.wait_for_state(job, "FAILED")["ExitCode"], "3:0")

    def test_lost_node_ends_a_job_that_cannot_be_requeued(self):
        job = slurm.sbatch("#!/bin/sh\nsrun sleep 600\n", "--nodes=2", "--no-requeue")
        node = slurm.scontrol("show", "hostnames", slurm.wait_for_state(job, "RUNNING")["NodeList"]).split()[1]
        slurm.node_down(node)
        try:
            slurm.wait_for_state(job, "NODE_FAIL")
        finally:
            slurm.node_up(node)

    def test_scancel_leaves_nothing(self):
        job = slurm.sbatch("#!/bin/sh\nsrun sleep 600\n", "--nodes=4")
        slurm.wait_for_state(job, "RUNNING")
        slurm.scancel(job)
        slurm.wait_for_state(job, "CANCELLED")
        slurm.wait_until(lambda: not slurm.processes(), "the job's processes to end", job)

    def test_requeued_job_counts_its_restarts(self):
        job = slurm.sbatch("#!/bin/sh\n[ -n \"$SLURM_RESTART_COUNT\" ] && exit\nscontrol requeue $SLURM_JOB_ID\nsleep 600\n")
        slurm.wait_until(lambda: slurm.job(job)["Restarts"] == "1", "the requeue", job)
        slurm.start_now(job)
        slurm.wait_for_state(job, "COMPLETED")

    def test_jobs_do_not_get_the_libraries(self):
        self.assertNotIn("LD_LIBRARY_PATH", slurm.srun("env").stdout)

    def test_another_cluster_beside_it(self):
        with Cluster(nodes=1, name="other") as other:
            self.assertEqual(other.srun("sh", "-c", "echo $SLURMD_NODENAME").stdout, "other1\n")
            self.assertEqual(slurm.srun("sh", "-c", "echo $SLURM_CLUSTER_NAME").stdout, "test\n")
        self.assertFalse(other.folder.exists())

    def test_killed_owner_leaves_nothing(self):
        self.assert_killed_owner_leaves_nothing(slurm)

    def test_own_namespace(self):
        if subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode != 0:
            self.skipTest("network namespaces cannot be made here")
        code = "from cluster import Cluster\nwith Cluster(nodes=2) as c: print(c.srun('-N2', 'echo', 'here').stdout)"
        done = subprocess.run(["unshare", "-n", "sh", "-c", f"ip link set lo up; exec {sys.executable} -c \"$0\"", code],
                              cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout.split(), ["here", "here"], done.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
