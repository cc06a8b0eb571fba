#!/usr/bin/env python3
"""Tokens per second of fsdp-train with model.kernels = fused, beside those with reference: one rank, the model of bench_train.py, in
turns. The losses of both have to agree.

usage: bench_fused.py [--micro-batch 4 --length 128] [--repeats 3]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "parity")]
import bench_train  # noqa: E402
import measure  # noqa: E402

STEPS, SKIPPED = 12, 3
KERNELS = ("reference", "fused")
LOSS_TOLERANCE = 1e-4


def run(folder: Path, config: Path, kernels: str) -> tuple[float, float]:
    """Median seconds of a step, and the last loss."""
    command = [measure.FSDPRUN, "--standalone", "--nproc-per-node=1", "--no-python", measure.BIN / "fsdp-train", "--config", config]
    settings = ("parallel.backend=auto", f"model.kernels={kernels}")
    done = subprocess.run([*map(str, command), *(word for setting in settings for word in ("--set", setting))], text=True,
                          capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"{kernels} ended with {done.returncode}: {done.stderr[-2000:]}")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "step_seconds" in record]
    return statistics.median(record["step_seconds"] for record in steps[SKIPPED:]), steps[-1]["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found = {kernels: [] for kernels in KERNELS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = bench_train.write_case(folder, bench_train.Case(STEPS, options.micro_batch, options.length, "fp32"))
        for number in range(options.repeats):
            for kernels in KERNELS if number % 2 == 0 else reversed(KERNELS):
                found[kernels].append(run(folder, config, kernels))
    losses = [loss for runs in found.values() for _, loss in runs]
    if max(losses) - min(losses) > LOSS_TOLERANCE:
        sys.exit(f"the losses differ by {max(losses) - min(losses)}: {found}")
    tokens = options.micro_batch * options.length
    rates = {kernels: [tokens / seconds for seconds, _ in runs] for kernels, runs in found.items()}
    for kernels, values in rates.items():
        print(f"{kernels}: {statistics.median(values):.0f} tokens/s ({min(values):.0f} to {max(values):.0f})")
    print(f"ratio of the medians: {statistics.median(rates['fused']) / statistics.median(rates['reference']):.2f}; "
          f"losses differ by {max(losses) - min(losses):.1e}")


if __name__ == "__main__":
    main()
