#!/usr/bin/env python3
"""Saves and loads a checkpoint with both, in turns: ours and torch.distributed.checkpoint.

    bench_checkpoint.py [--folder DIR] [--parameters N] [--repeats N]

On a disk, beside it what `dd conv=fsync` reaches there with as many bytes. Also how long training waits for a save beside it: with
fsdprun the steps are as long as a save takes that nothing is beside.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

BENCH = Path(__file__).resolve().parent
RANKS = 2
BYTES_OF_PARAMETER = 12  # float32, with two moments


def run(launcher: str, program: list[str], folder: Path, parameters: int) -> dict[str, float]:
    command = [launcher, "--standalone", f"--nproc-per-node={RANKS}", *program, str(folder), str(parameters), "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")
    return json.loads(lines[-1])


def dd_seconds(folder: Path, size: int) -> float:
    start = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={folder}/dd", "bs=4M", f"count={size >> 22}", "conv=fsync"], check=True, capture_output=True)
    seconds = time.monotonic() - start
    (folder / "dd").unlink()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the checkpoints go (default: a tmpfs)")
    parser.add_argument("--parameters", type=int, default=112_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size = options.parameters * BYTES_OF_PARAMETER
    ours, theirs, dd = [], [], []
    for number in range(options.repeats):
        sides = [(ours, measure.FSDPRUN, ["--no-python", str(measure.BIN / "checkpoint_io")]),
                 (theirs, measure.TORCHRUN, [str(BENCH / "dcp_io.py")])]
        for values, launcher, program in sides if number % 2 == 0 else reversed(sides):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                values.append(run(launcher, program, Path(folder), options.parameters))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            dd.append(dd_seconds(Path(folder), size))
    rows = []
    for key in ("save", "save_cpu", "load", "load_cpu"):
        one, other = ([values[key] for values in side] for side in (ours, theirs))
        rows.append([key.replace("_cpu", ", CPU of a rank"), measure.summary(one), measure.summary(other),
                     f"{statistics.median(one) / statistics.median(other):.2f}"])
    one, other = ([values["stall"] for values in side] for side in (ours, theirs))
    rows.append(["training waits for a save beside it", measure.summary(one), measure.summary(other),
                 f"{statistics.median(one) / statistics.median(other):.2f}"])
    beside = statistics.median([values["beside"] for values in ours])
    rows.append([f"which takes {beside:.2f}: percent of it", f"{100 * statistics.median(one) / beside:.1f}", "-", "-"])
    rows.append(["the same of the first one, whose memory is new", measure.summary([values["first_stall"] for values in ours]), "-", "-"])
    rows.append(["dd conv=fsync of as many bytes", measure.summary(dd), "-", "-"])
    print(f"{size / 1e9:.2f} GB, {RANKS} ranks, in {options.folder}, on {measure.machine()}\n")
    print(measure.table(["seconds", "fsdprun (range)", "DCP (range)", "ratio"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
