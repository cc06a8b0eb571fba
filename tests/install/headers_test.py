#!/usr/bin/env python3
"""The installed headers in a project that is stricter than this one: they compile there, each alone too, and what their templates
become there does.

usage: headers_test.py BUILD [HeadersTest] [ClangTest] [EachAloneTest]
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import PUBLIC_HEADERS, ROOT, Build, public_headers

sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "scripts/lib")]
from check_headers import chains  # noqa: E402
from unittest_main import main  # noqa: E402

STRICT = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
USES = Path(__file__).resolve().parent / "uses.cc"


class Installed(unittest.TestCase):
    build: Build

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prefix = Path(folder.name)
        cls.build.install(cls.prefix, "fsdp_runtime")

    def complaints(self, compiler, names, uses=""):
        """What the compiler says of a file that includes these headers, in this order, and goes on like that."""
        torch = self.build.libtorch / "include"
        command = [compiler, *STRICT, "-I", self.prefix / "include", "-isystem", torch, "-isystem",
                   torch / "torch/csrc/api/include", "-x", "c++", "-"]
        text = "".join(f"#include <{name}>\n" for name in names) + uses
        done = subprocess.run(command, input=text, text=True, capture_output=True)
        return "" if done.returncode == 0 else f"{compiler}, {' '.join(names)}: {done.stderr or done.returncode}"

    def check_alone(self, compiler):
        """Rows in which each header is included by the next: what comes before a header is only what it includes itself."""
        rows = [[str(path.relative_to(PUBLIC_HEADERS)) for path in row]
                for row in chains([PUBLIC_HEADERS / name for name in public_headers()], ROOT)]
        self.assertCountEqual(sum(rows, []), public_headers())
        self.assertEqual([said for row in rows if (said := self.complaints(compiler, row))], [])


class HeadersTest(Installed):
    compiler = "g++"

    def test_together_and_used(self):
        self.assertEqual(self.complaints(self.compiler, public_headers(), USES.read_text()), "")

    def test_a_header_that_is_not_clean_is_noticed(self):
        header = self.prefix / "include/fsdp/unclean.h"
        header.write_text("inline int narrowed(long wide) { return wide; }\n")
        self.addCleanup(header.unlink)
        self.assertIn("conver", self.complaints(self.compiler, ["fsdp/unclean.h"]))


class ClangTest(HeadersTest):
    compiler = "clang++-14"


class EachAloneTest(Installed):
    def test_with_gcc(self):
        self.check_alone("g++")

    def test_with_clang(self):
        self.check_alone("clang++-14")


if __name__ == "__main__":
    Installed.build = Build(Path(sys.argv.pop(1)).resolve())
    main()
