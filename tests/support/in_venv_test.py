#!/usr/bin/env python3
"""A test that needs .venv is skipped without it, and says why; with it, its result is the script's."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).with_name("in_venv.py")


class InVenvTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        (self.root / "tests/support").mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "tests/support")

    def run_script(self) -> tuple[int, str]:
        done = subprocess.run([sys.executable, self.root / "tests/support/in_venv.py", "a_test.py", "--with=words"], text=True,
                              stdout=subprocess.PIPE, check=False)
        return done.returncode, done.stdout

    def test_without_one_the_script_is_skipped(self):
        code, said = self.run_script()
        self.assertEqual(code, 77)
        self.assertIn(f"skipped: a_test.py --with=words needs PyTorch, and there is no {self.root}/.venv/bin/python", said)
        self.assertIn("run scripts/setup --tests", said)

    def test_with_one_it_is_run_and_its_exit_code_kept(self):
        (self.root / ".venv/bin").mkdir(parents=True)
        python = self.root / ".venv/bin/python"
        python.write_text('#!/bin/sh\necho "ran: $*"\nexit 3\n')
        python.chmod(0o755)
        self.assertEqual(self.run_script(), (3, "ran: a_test.py --with=words\n"))


if __name__ == "__main__":
    unittest.main()
