"""What a shell offers after fsdprun, asked of bash itself."""

import subprocess

from job_case import BIN, JobCase
from unittest_main import main

ASK = """
source <("$1" --completion bash)
COMP_LINE=$2
COMP_POINT=${#2}
_fsdprun
printf '%s\\n' "${COMPREPLY[@]}"
"""


class BashCompletionTest(JobCase):
    def offered(self, line):
        """At the end of the line after fsdprun."""
        done = subprocess.run(["bash", "-c", ASK, "bash", BIN / "fsdprun", f"fsdprun {line}"], cwd=self.dir, text=True,
                              capture_output=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_options(self):
        self.assertEqual(self.offered("--rdzv-b"), ["--rdzv-backend"])
        self.assertIn("--nproc-per-node", self.offered("-"))
        for before in ("--nnodes=2", "--nnodes 1:2", "--nnodes=1:2", "--standalone", "--rdzv-endpoint h:29400",
                       "--rdzv-endpoint=[::1]:1", "--rdzv-conf join_timeout=5,a=b", "--log_dir /tmp", "-m"):
            with self.subTest(before):
                self.assertEqual(self.offered(f"{before} --max-r"), ["--max-restarts"])

    def test_values(self):
        for line in ("--rdzv-backend ", "--rdzv-backend=", "--rdzv_backend ", "--rdzv_backend="):
            with self.subTest(line):
                self.assertEqual(self.offered(line), ["c10d", "static"])
                self.assertEqual(self.offered(line + "c"), ["c10d"])
        (self.dir / "logs").mkdir()
        (self.dir / "log.txt").touch()
        self.assertEqual(self.offered("--log-dir lo"), ["logs"])
        self.assertEqual(sorted(self.offered("--token-file=lo")), ["log.txt", "logs"])

    def test_nothing_of_ours_after_the_program(self):
        for line in ("train.py --rdzv-b", "--nnodes 2 train.py --", "-- --rdzv-b"):
            with self.subTest(line):
                self.assertEqual(self.offered(line), [])

    def test_shells_that_are_not_known_are_named(self):
        self.assert_one_line_error(self.run_job("--completion", "csh"), 2, "--completion", "'csh'", "bash, zsh or fish")


if __name__ == "__main__":
    main()
