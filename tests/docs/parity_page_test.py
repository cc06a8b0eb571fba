#!/usr/bin/env python3
"""docs/PARITY.md has the rows that are tested, each once, and no other: those of tests/parity/rows/table.py."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/parity/rows"))
import table  # noqa: E402

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
        named = set()
        for feature, _, _, rows, _ in table_of("Feature by feature"):
            with self.subTest(feature):
                self.assertRegex(rows, r"^[A-Z]\d\d(, [A-Z]\d\d)*$")
                self.assertLessEqual(set(ROW.findall(rows)), self.tested)
            named |= set(ROW.findall(rows))
        self.assertEqual(self.tested - named, set())

    def test_each_row_is_in_one_table(self):
        others = [row for section in ("Tested without PyTorch", "Not among the rows") for cells in table_of(section)
                  for row in ROW.findall(cells[0])]
        self.assertEqual(len(others), len(set(others)))
        self.assertFalse(set(others) & self.tested)

    def test_the_files_that_are_named_are_there(self):
        named = re.findall(r"`(tests/\S+)`", (ROOT / "docs/PARITY.md").read_text())
        self.assertTrue(named)
        self.assertEqual([name for name in named if not (ROOT / name).is_file()], [])

    def test_the_case_that_is_shown_is_one(self):
        shown = re.findall(r"Rows\.test_(\w+)", (ROOT / "docs/PARITY.md").read_text())
        self.assertTrue(shown)
        self.assertLessEqual(set(shown), {case.name for case in table.CASES})


if __name__ == "__main__":
    unittest.main()
