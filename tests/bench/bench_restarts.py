#!/usr/bin/env python3
"""How many restarts of a Gloo job succeed, and how long each takes: the last rank is killed in each world as soon as all
have reduced once, until the restarts are used up. fsdprun against the installed torchrun."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import measure
from nodes import WORKER


def count_worlds(folder: Path, ranks: int) -> int:
    """In how many worlds all ranks have reduced: each leaves a note of each rank."""
    notes = Counter(int(path.name.split(".")[2]) for path in folder.glob(f"met.{ranks}.*"))
    return min((notes[rank] for rank in range(ranks)), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--torchrun-restarts", type=int, default=20, help="0: without torchrun")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    rows, failed = [], False
    for launcher, restarts in ((measure.TORCHRUN, options.torchrun_restarts), (measure.FSDPRUN, options.restarts)):
        if restarts == 0:
            continue
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            done = subprocess.run(
                [launcher, "--standalone", f"--nproc-per-node={options.ranks}", f"--max-restarts={restarts}",
                 "--no-python", str(WORKER), folder, str(restarts)], capture_output=True, text=True, check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder})
            seconds = time.perf_counter() - started
            worlds = count_worlds(Path(folder), options.ranks)
        is_good = done.returncode == 0 and worlds == restarts + 1
        failed |= launcher == measure.FSDPRUN and not is_good
        rows.append([Path(launcher).name, f"{max(0, worlds - 1)} of {restarts}", f"{seconds / (restarts + 1) * 1e3:.0f}"])
        if not is_good:
            print(f"{launcher} ended with {done.returncode}:\n{done.stderr[-2000:]}", file=sys.stderr)
    print(measure.table([f"restarts of a Gloo job with {options.ranks} C++ workers", "succeeded", "ms for each"], rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
