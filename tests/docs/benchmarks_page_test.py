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

LIMITS = [limits.LAUNCH[2], limits.LAUNCH[64], limits.RESPAWN, limits.TRAIN["shm"], limits.TRAIN["gloo"]]


class BenchmarksPageTest(unittest.TestCase):
    def test_the_table_has_the_numbers_of_the_limits(self):
        lines = re.findall(r"^\| .*\|$", (ROOT / "docs/BENCHMARKS.md").read_text(), re.M)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
        self.assertEqual(rows[0][-3:], ["ratio", "aim", "fails below"])
        self.assertEqual(len(rows), 1 + len(LIMITS))
        for (what, *_, ratio, aim, fails_below), limit in zip(rows[1:], LIMITS, strict=True):
            with self.subTest(what):
                number, *words = aim.split(":")
                self.assertEqual([f"{float(number):g}", *words], measure.in_words(float(ratio), limit.aim).split(":"))
                self.assertEqual(float(fails_below), limit.fails_below)
                self.assertLessEqual(limit.fails_below, float(ratio) * (2 / 3 if limit in limits.TRAIN.values() else 1 / 2))


if __name__ == "__main__":
    unittest.main()
