#!/usr/bin/env python3
"""A build with sanitizers is not installed, and says why.

usage: refused_test.py BUILD
"""

import sys
import tempfile
import unittest
from pathlib import Path

from installed import ROOT, Build

sys.path.insert(0, str(ROOT / "tests/support"))
from unittest_main import main  # noqa: E402


class RefusedTest(unittest.TestCase):
    build: Build

    def test_every_component(self):
        with tempfile.TemporaryDirectory() as prefix:
            for component in ("", "fsdp_runtime", "fsdprun"):
                with self.assertRaises(AssertionError) as refused:
                    self.build.install(Path(prefix), component)
                for word in (f"FSDPRUN_SANITIZE={self.build.cache['FSDPRUN_SANITIZE']}", "nothing is", "scripts/build release"):
                    self.assertIn(word, str(refused.exception))
            self.assertEqual(list(Path(prefix).iterdir()), [])


if __name__ == "__main__":
    RefusedTest.build = Build(Path(sys.argv.pop(1)).resolve())
    main()
