#!/usr/bin/env python3
"""Tests of scripts/lib/check_headers.py on a small made-up project: the check finds what it is for.

usage: headers_test.py COMPILER
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LIB = Path(__file__).resolve().parents[2] / "scripts/lib"
sys.path.insert(0, str(LIB))
from check_headers import chains  # noqa: E402

INNER = "#pragma once\n#include <string>\ninline std::string Inner() { return {}; }\n"
OUTER = '#pragma once\n#include "base/inner.h"\ninline std::string Outer() { return Inner(); }\n'


class HeadersTest(unittest.TestCase):
    compiler = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.write("build/CMakeCache.txt", f"CMAKE_CXX_COMPILER:FILEPATH={self.compiler}\n")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def check(self) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, LIB / "check_headers.py", self.root, self.root / "build"],
                              capture_output=True, text=True)

    def test_headers_that_include_what_they_use_pass(self):
        self.write("base/inner.h", INNER)
        self.write("launcher/outer.h", OUTER)
        done = self.check()
        self.assertEqual((done.returncode, done.stdout), (0, "2 headers compile alone, in 1 units\n"), done.stderr)

    def test_each_that_does_not_is_named_and_no_other(self):
        self.write("base/inner.h", INNER.replace("#include <string>\n", ""))
        self.write("launcher/outer.h", OUTER.replace("#pragma once\n", "#pragma once\n#include <string>\n"))
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("base/inner.h does not compile alone", done.stdout)
        self.assertNotIn("outer.h does not compile alone", done.stdout)

    def test_a_row_has_each_header_behind_what_it_includes(self):
        inner = self.write("base/inner.h", INNER)
        outer = self.write("launcher/outer.h", OUTER)
        other = self.write("base/other.h", "#pragma once\n")
        self.assertCountEqual(chains([outer, inner, other], self.root), [[inner, outer], [other]])


if __name__ == "__main__":
    HeadersTest.compiler = sys.argv.pop(1)
    unittest.main()
