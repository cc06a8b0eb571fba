#!/usr/bin/env python3
"""scripts/setup --tests says at once that an etcd is missing: the tests that need one would be skipped, and skips are an
error only at the end of a long run. Tried on a copy of scripts/, which has neither .venv nor .cache."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("bash", "cat", "dirname", "grep", "mkdir", "touch", "flock", "sed", "rm", "tr", "mktemp", "dpkg-query")


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.path = self.root / "bin"
        self.path.mkdir()
        for name in NEEDED:
            if found := shutil.which(name):
                (self.path / name).symlink_to(found)

    def run_setup(self, *words, **env):
        """(exit code, all that it said) with programs that have no etcd among them, and no package tools."""
        done = subprocess.run([shutil.which("bash"), self.root / "scripts/setup", *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={"PATH": str(self.path), "HOME": os.environ.get("HOME", "/"), **env}, check=False)
        return done.returncode, done.stdout

    def test_no_etcd_and_no_apt_to_fetch_it(self):
        code, said = self.run_setup("--tests", "--no-apt")
        self.assertEqual(code, 1, said)
        for word in ("there is no etcd", "--no-apt", "TORCHELASTIC_ETCD_BINARY_PATH", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)
        self.assertNotIn(".venv", said)  # Before gigabytes of wheels are fetched.

    def test_check_names_it(self):
        code, said = self.run_setup("--tests", "--no-apt", "--check")
        self.assertEqual(code, 1, said)
        self.assertIn("missing for launcher_etcd", said)
        self.assertIn("run scripts/setup --tests", said)
        self.assertNotIn("etcd", self.run_setup("--no-apt", "--check")[1])

    def test_any_etcd_will_do(self):
        (self.path / "etcd").symlink_to(shutil.which("true"))
        self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check")[1])
        (self.path / "etcd").unlink()
        self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check", TORCHELASTIC_ETCD_BINARY_PATH=shutil.which("true"))[1])

    def test_skips_may_be_allowed(self):
        self.assertNotIn("etcd", self.run_setup("--tests", "--no-apt", "--check", FSDPRUN_ALLOW_SKIPS="1")[1])

    def test_a_download_that_fails(self):
        """apt-get says why; nothing is left of the attempt."""
        for name, text in (("apt-get", 'echo "E: no route to the mirror" >&2; exit 100'), ("dpkg-query", "echo installed")):
            (self.path / name).unlink(missing_ok=True)
            (self.path / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
            (self.path / name).chmod(0o755)
        code, said = self.run_setup("--tests")
        if "Install the equivalents" in said:
            return  # Not on Debian 12, whose packages these are: refused before anything is fetched.
        self.assertEqual(code, 1, said)
        for word in ("apt-get download etcd-server", "/etc/apt", "E: no route to the mirror", "FSDPRUN_ALLOW_SKIPS=1"):
            self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
