#!/usr/bin/env python3
"""docs/PARITY.md has each of PyTorch's tests once, and as tested those that tests/parity/rows/table.py has cases of."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/parity/rows"))
import table  # noqa: E402

# What PyTorch tests of its FSDP, by the page's names.
ALL = """T01 T02 T03 T04 T05 T06 T07 T08 T09 T10 T11 T12 T13 T14 T15 T16 T17 T18 T19 T20 T21 T22 T23 T24 T25 T26 T27 T28
C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 M01 M02 M03 M04 M05 R01 R02 O01 S01 S02 S03 G01 F01 F02 A01 I01 I02 I03 X01 X02 X03 X04 K01 K02
L01 L02 L03 L04 L05 L06 L07 L08 L09 L10 L11 L12 L13 L14 L15 L16 L17 L18 L19 L20 L21""".split()
UNIT_TESTS = "tests/unit/fsdp_runtime"
ROW = re.compile(r"[A-Z]\d\d")


def table_of(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    text = (ROOT / "docs/PARITY.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


class ParityPageTest(unittest.TestCase):
    def setUp(self):
        self.tested = {case.row for case in table.CASES}

    def test_the_rows_are_those_that_are_tested(self):
        rows = [cells[0] for cells in table_of("Rows")]
        self.assertEqual(len(rows), len(set(rows)))
        self.assertEqual(set(rows), self.tested)

    def test_each_feature_names_rows_that_are_tested_and_each_row_has_a_feature(self):
        without_pytorch = {row for cells in table_of("Tested without PyTorch") for row in ROW.findall(cells[0])}
        named = set()
        for feature, _, _, rows, _ in table_of("Feature by feature"):
            with self.subTest(feature):
                self.assertRegex(rows, r"^[A-Z]\d\d(, [A-Z]\d\d)*$")
                self.assertLessEqual(set(ROW.findall(rows)), self.tested | without_pytorch)
            named |= set(ROW.findall(rows))
        self.assertEqual(self.tested - named, set())

    def test_each_row_is_in_one_table(self):
        named = [row for section in ("Rows", "Tested without PyTorch", "Not among the rows") for cells in table_of(section)
                 for row in ROW.findall(cells[0])]
        self.assertEqual(sorted(named), sorted(ALL))

    def test_of_each_row_a_change_runs_a_case_and_what_only_soak_runs_is_said(self):
        rests = {row: rest for row, _, _, rest in table_of("Rows")}
        for row in sorted(self.tested):
            with self.subTest(row):
                of_changes = [bool(case.ranks) for case in table.CASES if case.row == row]
                self.assertTrue(any(of_changes))
                self.assertEqual(all(of_changes), "soak" not in rests[row])

    def test_it_lists_the_cases_that_are_compared_by_a_tolerance(self):
        listed = [(name, behind, why) for cases, behind, why in table_of("Compared by a tolerance") for name in cases.split(", ")]
        rounded = [(case.name, case.rounding.behind, case.rounding.why) for case in table.CASES if case.rounding]
        self.assertEqual(sorted(listed), sorted(rounded))

    def test_the_files_that_are_named_are_there(self):
        named = re.findall(r"`([a-z_]+/[\w/]+\.(?:cc|py))`", (ROOT / "docs/PARITY.md").read_text())
        self.assertGreater(len(named), 30)
        self.assertEqual([name for name in named if not (ROOT / name).is_file() and not (ROOT / UNIT_TESTS / name).is_file()], [])

    def test_the_case_that_is_shown_is_one(self):
        shown = re.findall(r"Rows\.test_(\w+)", (ROOT / "docs/PARITY.md").read_text())
        self.assertTrue(shown)
        self.assertLessEqual(set(shown), {case.name for case in table.CASES})


if __name__ == "__main__":
    unittest.main()
