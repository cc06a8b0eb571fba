#!/usr/bin/env python3
"""Where tests cannot run in a clean Debian, they are skipped and say why."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import clean_root

sys.path.insert(0, str(clean_root.ROOT / "tests/support"))
from unittest_main import main  # noqa: E402


class ReasonToSkipTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.root = self.system("root", "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian 12\"\n")
        programs = self.root / "usr/bin"
        programs.mkdir(parents=True)
        for name in ("g++", "cmake", "ninja"):
            (programs / name).touch(0o755)

    def system(self, name, text=None):
        root = self.folder / name
        (root / "etc").mkdir(parents=True)
        if text is not None:
            (root / "etc/os-release").write_text(text)
        return root

    def test_no_compiler(self):
        (self.root / "usr/bin/g++").unlink()
        self.assertIn("scripts/setup --tests", clean_root.reason_to_skip(self.root, self.root))

    def test_another_release(self):
        for name, text, said in (("newer", "ID=debian\nVERSION_ID=13\nPRETTY_NAME='Debian 13'\n", "compiled on Debian 13"),
                                 ("other", "ID=ubuntu\nVERSION_ID=12\nPRETTY_NAME=Ubuntu\n", "compiled on Ubuntu"),
                                 ("silent", None, "compiled on an unknown system")):
            reason = clean_root.reason_to_skip(self.root, self.system(name, text))
            self.assertIn(said, reason)
            self.assertIn("those of Debian 12", reason)

    def test_it_is_entered_as_by_every_test(self):
        """A mount that is refused is any of those that tests make."""
        for code, output, reason in ((0, "", ""), (32, "mount: permission denied\n",
                                                   "only root may mount file systems and make namespaces (mount: permission denied)")):
            done = subprocess.CompletedProcess([], code, output)
            with mock.patch.object(clean_root, "run", return_value=done) as entered:
                self.assertEqual(clean_root.reason_to_skip(self.root, self.root), reason)
            self.assertEqual((entered.call_args.args[2], entered.call_args.args[4]), ("true", self.root))


if __name__ == "__main__":
    main()
