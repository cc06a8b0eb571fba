#!/usr/bin/env python3
"""The trainings of library_train, which bench_library.py compares with PyTorch, compute the same on two ranks. The benchmark itself
is run by scripts/bench only."""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("support", "integration/launcher", "bench")]
import bench_library  # noqa: E402
import bench_train  # noqa: E402
from job_case import BIN, JobCase  # noqa: E402
from unittest_main import main  # noqa: E402

STEPS = 4


class LibraryTrainTest(JobCase):
    def losses(self, *arguments: str) -> list[float]:
        case = bench_train.Case(steps=STEPS, micro_batch=2, length=16, mode="fp32", model="deep")
        config, output = bench_train.write_case(self.dir, case), self.dir / "steps.jsonl"
        (self.dir / "config.json").write_text(json.dumps({**bench_train.DEEP_MODEL, "num_hidden_layers": 2}))
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--no-python", BIN / "library_train", config, output, "shm", *arguments)
        self.assertEqual(rc, 0, err)
        records = bench_train.step_records(output)
        self.assertEqual([record["step"] for record in records], list(range(1, STEPS + 1)))
        return [record["loss"] for record in records]

    def test_all_ways_to_train_give_the_same_losses(self):
        expected = self.losses("no_shard")
        self.assertLess(expected[-1], expected[0])
        for strategy in ("ddp", "ddp_fused"):
            self.assertLess(bench_library.difference(self.losses(strategy), expected), 1e-5, strategy)
        offloaded = self.losses("full_shard", "offload")
        self.assertLess(bench_library.difference(offloaded, expected), 1e-5)
        in_half = self.losses("full_shard", "float16")
        self.assertNotEqual(in_half[0], expected[0])
        self.assertLess(bench_library.difference(in_half[:1], expected[:1]), 1e-3)
        self.assertLess(in_half[-1], in_half[0])

    def test_usage(self):
        rc, _, err = self.run_job(binary="library_train")
        self.assertEqual((rc, err), (2, "usage: library_train CONFIG OUTPUT BACKEND STRATEGY [float16|offload]\n"))


if __name__ == "__main__":
    main()
