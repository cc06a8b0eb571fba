#!/usr/bin/env python3
"""The programs of bench_host.py, bench_host_builds.py and bench_memory.py print what these read. The benchmarks themselves are run by
scripts/bench only."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("support", "bench")]
import bench_host  # noqa: E402
import bench_host_builds  # noqa: E402
import bench_memory  # noqa: E402
import bench_train  # noqa: E402
import measure  # noqa: E402
from unittest_main import main  # noqa: E402


class EngineProgramsTest(unittest.TestCase):
    def test_a_line_for_each_turn_with_the_time_of_each_model(self):
        done = subprocess.run([measure.BIN / "host_cost", "2", "1"], capture_output=True, text=True, check=True)
        times = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
        self.assertEqual([len(turn) for turn in times], [3, 3])
        self.assertGreater(min(value for turn in times for value in turn), 0)

    def test_a_time_for_the_plain_model_and_each_prefetch_policy(self):
        times = bench_host.run(bench_host.LIBFSDP, 1, "1", "policies")
        self.assertEqual([len(turn) for turn in times], [1 + len(bench_host_builds.POLICIES)])
        self.assertGreater(min(times[0]), 0)

    def test_the_plan_of_a_rank(self):
        case = bench_train.Case(steps=1, micro_batch=1, length=16, mode="fp32", model="deep")
        with tempfile.TemporaryDirectory() as folder:
            config = bench_train.write_case(Path(folder), case)
            alone, one_of_two = bench_memory.planned(config, 1), bench_memory.planned(config, 2)
        for plan in (alone, one_of_two):
            self.assertEqual(plan.pop("peak"), sum(plan.values()))
        self.assertEqual((alone["parameter_slots"], alone["gradient_slots"]), (0, 0))
        self.assertEqual(one_of_two["parameter_slots"], 0)
        self.assertGreater(one_of_two["gradient_slots"], 0)
        self.assertLess(one_of_two["optimizer"], alone["optimizer"])

    def test_usage(self):
        for program, arguments, usage in [("host_cost", ["0"], "host_cost [TURNS [ITERATIONS [policies]]]"),
                                          ("planned_memory", [], "planned_memory CONFIG RANKS")]:
            done = subprocess.run([measure.BIN / program, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (2, f"usage: {usage}\n"))

    def test_a_configuration_that_is_not_there(self):
        done = subprocess.run([measure.BIN / "planned_memory", "/nowhere.json", "2"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere.json", done.stderr)


if __name__ == "__main__":
    main()
