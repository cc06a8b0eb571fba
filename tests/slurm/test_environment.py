"""What launcher/slurm reads, against what a running Slurm says and sets."""

import json
import os
import pathlib
import random
import sys
import unittest

from cluster import Cluster, reason_to_skip

SKIP = reason_to_skip()
PROBE = pathlib.Path(os.environ.get("SLURM_PROBE", "build/release/tests/slurm_probe")).resolve()
RECORDED = pathlib.Path(__file__).resolve().parents[1] / "unit/launcher/slurm/environments"
LISTS = 200
# How many names a random list has at most, of one bracket to another.
LARGEST = 12


def setUpModule():
    global slurm
    if SKIP:
        raise unittest.SkipTest(SKIP)
    slurm = Cluster().__enter__()
    unittest.addModuleCleanup(slurm.close)


def random_bracket(random_):
    def item():
        low = random_.choice([0, 1, 7, 8, 9, 95, 99, 998])
        high = low + random_.randrange(LARGEST)
        width = random_.randrange(5)
        return f"{low:0{width}}" if random_.random() < 0.4 else f"{low:0{width}}-{high:0{random_.choice([1, width])}}"
    return "[" + ",".join(item() for _ in range(random_.randrange(1, 4))) + "]"


def random_list(random_):
    """What Slurm itself could have written, and a little more."""
    def element():
        word = lambda: random_.choice(["n", "gpu-", "r1c", "a0", "x_", "node"])  # noqa: E731
        brackets = random_.choice([0, 1, 1, 2, 3])
        return "".join(word() + random_bracket(random_) for _ in range(brackets)) or word() + str(random_.randrange(30))
    return ",".join(element() for _ in range(random_.randrange(1, 4)))


class NodeListTest(unittest.TestCase):
    def test_names_are_those_of_scontrol(self):
        seed = int(os.environ.get("FSDPRUN_SEED", random.randrange(1 << 30)))
        print(f"seed {seed} (set FSDPRUN_SEED to repeat it)", file=sys.stderr)
        random_ = random.Random(seed)
        lists = [random_list(random_) for _ in range(LISTS)]
        ours = slurm.run(PROBE, "lists", input="\n".join(lists)).stdout.splitlines()
        for text, names in zip(lists, ours, strict=True):
            self.assertEqual(names.split(), slurm.scontrol("show", "hostnames", text).split(), f"{text}, seed {seed}")


class EnvironmentTest(unittest.TestCase):
    """Each kind of process, and beside it the names of the variables that the unit tests take it to have."""

    def read(self, text):
        return [json.loads(line) for line in text.splitlines()]

    def finish(self, script, *options):
        job = slurm.sbatch(script, *options)
        slurm.wait_until(lambda: all(part["JobState"] == "COMPLETED" for part in slurm.jobs(job)), "the job's end", job)
        return job

    def assert_recorded(self, kind, text):
        recorded = {line.split("=")[0] for line in (RECORDED / kind).read_text().splitlines()}
        found = {line.split("=")[0] for line in text.splitlines()}
        self.assertEqual(recorded - found, set(), f"{RECORDED / kind} has variables that Slurm does not set")

    def test_batch_shell_and_tasks(self):
        job = self.finish(f"#!/bin/sh\n{PROBE} allocation\nsrun {PROBE} allocation\n", "--nodes=2", "--ntasks=3",
                          "--cpus-per-task=2")
        batch, *tasks = self.read(slurm.output(job))
        nodes = batch["nodes"]
        self.assertEqual(batch, {"job": job, "nodes": nodes, "here": nodes[0], "restarts": 0, "cpus_per_task": 2})
        self.assertEqual(sorted(task["task"] for task in tasks), [[0, 0, 0, 3], [1, 0, 1, 3], [2, 1, 0, 3]])
        self.assertEqual({task["here"]: task["task"][1] for task in tasks}, {nodes[0]: 0, nodes[1]: 1})

    def test_recorded_variables(self):
        job = self.finish("#!/bin/sh\nenv\necho ---\nsrun -n1 -N1 env\n", "--nodes=2")
        batch, step = slurm.output(job).split("---\n")
        self.assert_recorded("batch", batch)
        self.assert_recorded("step", step)

    def test_shell_of_salloc(self):
        done = slurm.run("salloc", "--nodes=3", "sh", "-c", f"{PROBE} allocation; srun {PROBE} allocation")
        shell, *tasks = self.read(done.stdout)
        self.assertEqual(shell["here"], "")
        self.assertEqual(len(shell["nodes"]), 3)
        self.assertNotIn("task", shell)
        self.assertEqual({task["here"] for task in tasks}, set(shell["nodes"]))

    def test_heterogeneous_job(self):
        job = self.finish(f"#!/bin/sh\nenv | grep SLURM >batch.env\n{PROBE} allocation\nsrun --het-group=0,1 {PROBE} allocation\n"
                          f"srun --het-group=1 {PROBE} allocation\n",
                          "--nodes=1", "--ntasks-per-node=1", ":", "--nodes=2", "--ntasks-per-node=2")
        batch, *tasks = self.read(slurm.output(job))
        self.assertEqual(len(set(batch["nodes"])), 3)
        self.assertEqual(sorted(task["task"] for task in tasks[:5]),
                         [[0, 0, 0, 5], [1, 1, 0, 5], [2, 1, 1, 5], [3, 2, 0, 5], [4, 2, 1, 5]])
        self.assertEqual(tasks[0]["nodes"], batch["nodes"])
        self.assertEqual(tasks[5]["nodes"], batch["nodes"][1:])
        self.assert_recorded("batch_of_heterogeneous_job", (slurm.folder / "jobs/batch.env").read_text())

    def test_array(self):
        job = self.finish(f"#!/bin/sh\n{PROBE} allocation >array.$SLURM_ARRAY_TASK_ID\n", "--array=3,5")
        names = [json.loads((slurm.folder / f"jobs/array.{n}").read_text())["job"] for n in (3, 5)]
        self.assertEqual(names, [f"{job}_3", f"{job}_5"])

    def test_requeued_job(self):
        job = slurm.sbatch(f"#!/bin/sh\n{PROBE} allocation\n[ -n \"$SLURM_RESTART_COUNT\" ] && exit\n"
                           "scontrol requeue $SLURM_JOB_ID\nsleep 600\n", "--open-mode=append")
        slurm.wait_until(lambda: slurm.job(job)["Restarts"] == "1", "the requeue", job)
        slurm.start_now(job)
        slurm.wait_for_state(job, "COMPLETED")
        restarts = [json.loads(line)["restarts"] for line in slurm.output(job).splitlines() if line.startswith("{")]
        self.assertEqual(restarts, [0, 1])


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
