#!/usr/bin/env python3
"""The program that bench_checkpoint.py compares with PyTorch prints what that reads, on two ranks. The benchmark itself is run by
scripts/bench only."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("support", "integration/launcher", "bench")]
import bench_checkpoint  # noqa: E402
import measure  # noqa: E402
from job_case import BIN, JobCase  # noqa: E402
from unittest_main import main  # noqa: E402

PARAMETERS = 8192  # of each rank, with their moments, 48 KB


class CheckpointIoTest(JobCase):
    def test_the_times_of_a_save_a_load_and_a_save_beside_steps(self):
        times = bench_checkpoint.run(measure.FSDPRUN, ["--no-python", str(BIN / "checkpoint_io")], self.dir, PARAMETERS)
        self.assertEqual(list(times), ["save", "save_cpu", "load", "load_cpu", "beside", "stall", "first_stall"])
        for what in ("save", "load", "beside"):
            self.assertGreater(times[what], 0, what)
        self.assertEqual([path.name for path in self.dir.glob("step-*")], ["step-3"])

    def test_usage(self):
        rc, _, err = self.run_job(binary="checkpoint_io")
        self.assertEqual((rc, err), (2, "usage: checkpoint_io DIR PARAMETERS REPEATS\n"))


if __name__ == "__main__":
    main()
