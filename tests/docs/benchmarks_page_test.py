#!/usr/bin/env python3
"""The aims and limits in docs/BENCHMARKS.md are those of tests/bench/limits.py, and what is not met is said to be."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import limits  # noqa: E402
import measure  # noqa: E402

LIMITS = [limits.LAUNCH[2], limits.LAUNCH[64], limits.RESPAWN, limits.SLURM, limits.TRAIN["shm"], limits.TRAIN["gloo"]]


def tables() -> list[list[list[str]]]:
    """Of the page, each as the cells of its rows; the first row is the head, the second is left out."""
    texts = re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs/BENCHMARKS.md").read_text(), re.M)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if not line.startswith("|-")] for text in texts]


def median(cell: str) -> float:
    return float(cell.split()[0])


class BenchmarksPageTest(unittest.TestCase):
    def test_the_ratios_have_the_aims_and_limits_of_the_benchmarks(self):
        head, *rows = tables()[0]
        self.assertEqual(head[-3:], ["ratio", "aim", "fails below"])
        self.assertEqual(len(rows), len(LIMITS))
        for (what, *_, ratio, aim, fails_below), limit in zip(rows, LIMITS, strict=True):
            with self.subTest(what):
                number, *words = aim.split(":")
                self.assertEqual([f"{float(number):g}", *words], measure.in_words(float(ratio), limit.aim).split(":"))
                self.assertEqual(float(fails_below), limit.fails_below)
                self.assertLessEqual(limit.fails_below, float(ratio) * (2 / 3 if limit in limits.TRAIN.values() else 1 / 2))

    def test_the_times_have_the_aims_and_limits_of_the_benchmarks(self):
        head, *rows = tables()[1]
        self.assertEqual(head[-3:], ["fsdprun", "aim", "fails above"])
        self.assertEqual(len(rows), len(limits.ELASTIC))
        for (what, *_, measured, aim, fails_above), limit in zip(rows, limits.ELASTIC.values(), strict=True):
            with self.subTest(what):
                self.assertEqual((float(aim), float(fails_above)), (limit.aim, limit.fails_above))
                self.assertLessEqual(median(measured), limit.aim)

    def test_the_costs_of_the_engine_have_the_aims_and_limits_of_the_benchmarks(self):
        head, *rows = tables()[2]
        self.assertEqual(head[-3:], ["fsdprun", "aim", "fails above"])
        bounds = [limits.HOST_COST_US, limits.HOST_COST_US, limits.SECOND_RANK_MS]
        for (what, *_, measured, aim, fails_above), bound in zip(rows, bounds, strict=True):
            with self.subTest(what):
                is_met = median(measured) <= bound.aim
                self.assertEqual(aim, f"{bound.aim:g}" + ("" if is_met else ": not met"))
                self.assertEqual(float(fails_above), bound.fails_above)

    def test_the_memory_is_what_the_plan_says(self):
        head, *rows = tables()[3]
        self.assertEqual(head[-3:], ["off", "aim", "fails above"])
        for what, *_, off, aim, fails_above in rows:
            with self.subTest(what):
                self.assertEqual((median(aim), median(fails_above)), (100 * limits.MEMORY_OFF.aim, 100 * limits.MEMORY_OFF.fails_above))
                self.assertLessEqual(abs(median(off)), median(aim))

    def test_many_agents_form_and_fail_within_the_aims(self):
        head, row = next(table for table in tables() if table[0][0] == "agents")
        self.assertEqual(head[:3], ["agents", "s from `join` until all have started", "s until all know of a failure"])
        self.assertEqual(row[0], "1000")
        for measured, bound in zip(row[1:3], (limits.AGENTS["formed_s"], limits.AGENTS["known_s"]), strict=True):
            self.assertLessEqual(median(measured), bound.aim)


if __name__ == "__main__":
    unittest.main()
