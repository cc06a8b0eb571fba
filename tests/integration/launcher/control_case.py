"""Jobs that fsdpctl asks: on this machine, through a socket in a runtime folder of the test's own."""

import json
import subprocess

from coordinator_case import WORKER, CoordinatorCase
from job_case import BIN, wait_until


class ControlCase(CoordinatorCase):
    def setUp(self):
        super().setUp()
        self.runtime = self.dir / "run"
        self.runtime.mkdir()
        self.env["XDG_RUNTIME_DIR"] = str(self.runtime)

    def fsdpctl(self, *words, **env):
        return subprocess.run([BIN / "fsdpctl", *map(str, words)], env={**self.env, **env}, text=True, capture_output=True,
                              timeout=60)

    def answer(self, *words, **env):
        done = self.fsdpctl(*words, **env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def status(self, *words):
        return json.loads(self.answer("status", "--json", *words))

    def follow(self, *words):
        asking = subprocess.Popen([BIN / "fsdpctl", *words], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(asking.stdout.close)
        self.addCleanup(asking.stderr.close)
        self.addCleanup(asking.kill)
        return asking

    def start_job(self, *more, worker=WORKER):
        """Two nodes; the first hosts."""
        words = [*self.meeting(), *more, "--nnodes=2", f"--nproc-per-node={self.per_node}", "--max-restarts=2", self.script(worker)]
        launchers = [self.start(*words)]
        wait_until(lambda: self.job_files(), "the job's file")
        launchers.append(self.start(*words))
        self.pids(1)
        return launchers

    def job_files(self):
        return list(self.runtime.glob("fsdprun/jobs/*.json"))

    def assert_refused(self, done, code, *words):
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
