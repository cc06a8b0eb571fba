"""fsdpctl slurm as a user calls it, with the folder and the variables of the test."""

import slurm_case
from queue_case import QueueCase
from slurm_case import BIN

FSDPCTL = BIN / "fsdpctl"


class ControlCase(QueueCase):
    def control(self, *words, check=True, **environment):
        # As from a shell that wants to hear nothing of its children (trap '' CHLD).
        return slurm_case.slurm.run("env", "--ignore-signal=CHLD", FSDPCTL, "slurm", *words, check=check, errors="surrogateescape",
                                    env={**slurm_case.slurm.environment, **self.environment, **environment})

    def submit_by_control(self, *words):
        """The id of the new job, whose output the cluster's output() finds."""
        done = self.control("submit", f"--output={slurm_case.slurm.folder}/jobs/%j.out", *words)
        self.assertRegex(done.stdout, r"\ASubmitted batch job \d+\n\Z")
        return done.stdout.split()[-1]

    def assert_refused(self, code, *expected, words=()):
        before = set(slurm_case.slurm.queue())
        done = self.control(*words, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.startswith("fsdpctl")]
        self.assertEqual(len(lines), 1, done.stderr)
        for text in expected:
            self.assertIn(text, lines[0])
        self.assertLessEqual(set(slurm_case.slurm.queue()), before)
        return done.stderr
