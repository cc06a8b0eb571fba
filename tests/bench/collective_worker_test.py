#!/usr/bin/env python3
"""The worker of bench_elastic.py and bench_restarts.py does what they measure: it notes the first collective of each world,
is killed as often as asked, and ends well. The benchmarks themselves are run by scripts/bench only."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("support", "integration/launcher")]
from job_case import BIN, JobCase  # noqa: E402
from unittest_main import main  # noqa: E402


class CollectiveWorkerTest(JobCase):
    def test_two_ranks_one_of_which_is_killed_once(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", BIN / "collective_worker", self.dir, "1")
        self.assertEqual(rc, 0, err)
        notes = [path.name.split(".") for path in self.dir.glob("met.*")]
        self.assertEqual(sorted((size, rank) for _, size, rank, _ in notes), [("2", "0")] * 2 + [("2", "1")] * 2)
        for path in self.dir.glob("met.*"):
            began_ns, met_ns = map(int, path.read_text().split())
            self.assertLess(began_ns, met_ns)

    def test_usage(self):
        rc, _, err = self.run_job(binary="collective_worker")
        self.assertEqual((rc, err), (2, "usage: collective_worker FOLDER [DEATHS]\n"))


if __name__ == "__main__":
    main()
