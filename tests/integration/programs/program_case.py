"""Runs programs as they are, under fsdprun on one node or on two, and under the installed torchrun."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

from events import patience
from job_case import JobCase, describe_process, free_port, processes_with

HERE = pathlib.Path(__file__).resolve().parent
# PyTorch's threads may outlive the interpreter: then a worker that has done everything aborts, under torchrun as well.
ABORTED_AT_ITS_END = "terminate called without an active exception"
TORCHRUN = pathlib.Path(sys.prefix) / "bin/torchrun"


class ProgramCase(JobCase):
    def setUp(self):
        super().setUp()
        # One compute thread: sums have one order. Neither a GPU nor the network is to be looked for.
        self.env.update({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true",
                         "HF_HUB_OFFLINE": "1", "HOME": str(self.dir), "PYTHONFAULTHANDLER": "1"})

    def words_of_launchers(self):
        """Workers that are left say where in Python each of their threads is."""
        left = [pid for pid in processes_with(self.marker) if pid not in [launcher.pid for launcher in self.launchers]]
        places = [describe_process(pid) for pid in left]
        for pid in left:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("python"):
                    os.kill(pid, signal.SIGABRT)
        for launcher in self.launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(timeout=patience() / 2)
        return [*places, *super().words_of_launchers()]

    def run_program(self, *program, **how):
        """All output of a program that ends well."""
        codes, output = self.try_program(*program, **how)
        if any(codes) and ABORTED_AT_ITS_END in output:
            codes, output = self.try_program(*program, **how)
        self.assertFalse(any(codes), output[-16000:])
        return output

    def try_program(self, *program, nodes=1, ranks=2, roles=(), restarts=0, env=None, launcher="fsdprun"):
        """(exit codes, all output) of the launchers, on that many nodes with as many ranks each."""
        arguments = [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        if nodes == 1:
            arguments.append("--standalone")
        else:
            arguments += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                          f"--rdzv-id={self.marker}"]
        launchers = [
            self.start(*arguments, *([f"--role={roles[node]}"] if roles else []), *program, binary=launcher, env=env)
            for node in range(nodes)]
        results = [self.finish(started) for started in launchers]
        return [code for code, _, _ in results], "".join(out + err for _, out, err in results)

    def losses(self, script, *arguments, **how):
        """What the training has written."""
        output = self.dir / "losses.json"
        self.run_program(HERE / script, output, *arguments, **how)
        return json.loads(output.read_text())
