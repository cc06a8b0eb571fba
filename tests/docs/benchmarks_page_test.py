#!/usr/bin/env python3
"""The aims and limits in docs/BENCHMARKS.md are those of tests/bench/limits.py, and what is not met is said to be. The tables of
training are those that bench_train.py prints, which also says and fails what is below its limit."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import bench_library  # noqa: E402
import bench_train  # noqa: E402
import limits  # noqa: E402
import measure  # noqa: E402

LIMITS = [limits.LAUNCH[2], limits.LAUNCH[64], limits.RESPAWN, limits.SLURM, limits.TRAIN["shm", "1 x 256"],
          limits.TRAIN["gloo", "1 x 256"]]


def tables() -> list[list[list[str]]]:
    """Of the page, each as the cells of its rows; the first row is the head, the second is left out."""
    texts = re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs/BENCHMARKS.md").read_text(), re.M)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if not line.startswith("|-")] for text in texts]


def median(cell: str) -> float:
    return float(cell.split()[0])


def best(cell: str) -> float | None:
    """Of a median with its range; a median alone says nothing about it."""
    found = re.fullmatch(r"\S+ \(\S+ to (\S+)\)", cell)
    return float(found[1]) if found else None


def train_case(mode: str, batch: str) -> bench_train.Case:
    micro_batch, length = batch.split(" x ")
    return bench_train.Case(steps=15, micro_batch=int(micro_batch), length=int(length), mode=mode)


def judged(mode: str, batch: str, **medians: float) -> tuple[list[str], bool]:
    """bench_train.py's row of shared memory beside other sides, and whether it fails."""
    return bench_train.row("shm", train_case(mode, batch), {side: [value] for side, value in medians.items()})


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

    def assert_judged(self, ratio: float, limit: limits.Ratio | None, words: str):
        """What follows from rounded numbers, which a ratio at its aim may miss."""
        nearly = {bench_train.judge(ratio + off, limit)[0] for off in (-2e-3, 0, 2e-3)}
        self.assertIn(words, nearly)

    def test_training_beside_each_other_side_is_judged_as_the_benchmark_does(self):
        for mode, batch in limits.TRAIN_DDP:
            case = train_case(mode, batch)
            found = [rows for head, *rows in tables() if head == bench_train.head(case)]
            self.assertEqual(len(found), 1, f"the table of bench_train.py with {batch}")
            rows = dict(zip(bench_train.NAMES, found[0], strict=True))
            self.assertEqual([row[0] for row in rows.values()], list(bench_train.NAMES.values()))
            for side, (_, speed, *cells) in rows.items():
                for base, ratios, words in zip(bench_train.BASES, cells[::2], cells[1::2], strict=True):
                    with self.subTest(batch, side=side, base=base):
                        if base == side:
                            self.assertEqual((ratios, words), ("-", "-"))
                            continue
                        ratio = median(speed) / median(rows[base][1])
                        self.assert_judged(ratio, bench_train.limit_beside(base, side, case), words)
                        self.assertAlmostEqual(median(ratios), ratio, delta=0.011)
                        if best(speed) and best(rows[base][1]):
                            self.assertAlmostEqual(float(ratios.split(" / ")[1]), best(speed) / best(rows[base][1]), delta=0.011)

    def test_the_other_modes_beside_no_communication_are_judged_as_the_benchmark_does(self):
        head, *rows = next(table for table in tables() if table[0][0] == "mode")
        self.assertEqual(head[1:], ["command", "without communication", "shared memory", "medians", "bests", "aim"])
        modes = []
        for what, command, alone, shm, medians, bests, words in rows:
            with self.subTest(what):
                modes.append(re.search(r"--mode (\S+)", command)[1])
                limit = bench_train.limit_beside("alone", "shm", train_case(modes[-1], "1 x 256"))
                self.assert_judged(median(shm) / median(alone), limit, words)
                self.assertAlmostEqual(float(medians), median(shm) / median(alone), delta=0.011)
                self.assertAlmostEqual(float(bests), best(shm) / best(alone), delta=0.011)
        self.assertEqual(set(modes), {mode for mode, _ in limits.TRAIN_ALONE} - {"fp32"})

    def test_the_other_ways_to_train_are_judged_as_the_benchmark_does(self):
        for (what, batch), limit in limits.LIBRARY.items():
            title = f"33.6 M parameters, {bench_library.RANKS} ranks, {batch}, {what}, tokens/s"
            found = [rows for head, *rows in tables() if head[0] == title]
            self.assertEqual(len(found), 1, title)
            comparison = bench_library.COMPARISONS[what]
            self.assertEqual([row[0] for row in found[0]], [side.name for side in comparison.sides])
            base, ours, *_ = found[0]
            for row in found[0]:
                with self.subTest(title, side=row[0]):
                    _, speed, ratios, words, differ_by = row
                    self.assertLessEqual(float(differ_by), comparison.losses_differ_by)
                    if row is base:
                        self.assertEqual((ratios, words), ("-", "-"))
                        continue
                    ratio = median(speed) / median(base[1])
                    self.assert_judged(ratio, limit if row is ours else None, words)
                    self.assertAlmostEqual(median(ratios), ratio, delta=0.011)
                    self.assertAlmostEqual(float(ratios.split(" / ")[1]), best(speed) / best(base[1]), delta=0.011)

    def test_the_benchmark_fails_and_says_so_below_a_limit(self):
        cells, failed = judged("fp32", "4 x 128", FSDP2=100, DDP=139, alone=144, shm=140)
        self.assertEqual((cells[2:], failed), (["1.40 / 1.40", "1.38; fails below 1", "1.01 / 1.01", "1", "0.97 / 0.97", "0.97"], False))
        for mode, batch in limits.TRAIN_ALONE:
            limit = limits.TRAIN_ALONE[mode, batch].fails_below
            cells, failed = judged(mode, batch, alone=1000, shm=1000 * limit - 1)
            self.assertEqual((cells[-1], failed), (f"{limit:g}: not met", True), (mode, batch))
        for mode, batch in limits.TRAIN_DDP:
            limit = limits.TRAIN_DDP[mode, batch].fails_below
            cells, failed = judged(mode, batch, DDP=1000, shm=1000 * limit - 1)
            self.assertEqual((cells[-3], failed), (f"{limit:g}: not met", True), (mode, batch))
        cells, failed = judged("fp32", "1 x 256", FSDP2=100, shm=101)
        self.assertEqual((cells[3], failed), ("1.85: not met; fails below 1", False))
        self.assertTrue(judged("fp32", "1 x 256", FSDP2=100, shm=99)[1])
        self.assertFalse(judged("fp32", "2 x 64", DDP=100, alone=100, shm=1)[1], "nothing is promised for this batch")


if __name__ == "__main__":
    unittest.main()
