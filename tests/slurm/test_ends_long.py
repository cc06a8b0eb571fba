"""Ends of jobs that wait for something that does not end by itself."""

import contextlib
import os
import pathlib
import signal
import sys

import slurm_case
from slurm_case import FSDPRUN, SlurmCase


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class LongEndTest(SlurmCase):
    def test_node_that_is_of_no_use(self):
        """Its agent is released while the job goes on, and is no failure of its own; but srun starts no other."""
        worker = self.worker("""
            note("keeper", os.getppid())
            if RANK == 0:
                wait_for("go")
                sys.exit(1)
            wait_for("never")
            """)
        job = self.submit(f"exec {FSDPRUN} --max-restarts=3 --abort-timeout=1 {worker}", "--nodes=3")
        self.wait_for_notes("keeper", range(3), job)
        keeper = int(self.notes("keeper")[1])
        os.kill(keeper, signal.SIGSTOP)  # Who is to end the workers there does nothing.
        try:
            (self.dir / "go").touch()
            self.assert_too_few_are_left(job, "Exited with exit code")
        finally:  # This cluster loses sight of it; one with cgroups ends it with its job.
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGCONT)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
