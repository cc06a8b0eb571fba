#!/usr/bin/env python3
"""Launch to end of 2 x `true`: fsdprun against the installed torchrun, in turns."""

import argparse
import statistics
import subprocess
import sys
import time

import measure

ARGUMENTS = ["--standalone", "--nproc-per-node=2", "--no-python", "true"]


def launch_ms(launcher: str) -> float:
    started = time.perf_counter()
    subprocess.run([launcher, *ARGUMENTS], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    return (time.perf_counter() - started) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-least", type=float, default=20.0, help="fail below this ratio")
    options = parser.parse_args()
    times: dict[str, list[float]] = {measure.FSDPRUN: [], measure.TORCHRUN: []}
    for launcher in times:
        launch_ms(launcher)  # files into the page cache
    for _ in range(options.repeats):
        for launcher, values in times.items():
            values.append(launch_ms(launcher))
    ratio = statistics.median(times[measure.TORCHRUN]) / statistics.median(times[measure.FSDPRUN])
    print(measure.table(["launch of 2 x true, ms", "median (range)", "times faster"], [
        ["torchrun", measure.summary(times[measure.TORCHRUN]), "1"],
        ["fsdprun", measure.summary(times[measure.FSDPRUN]), f"{ratio:.1f}"]]))
    return 0 if ratio >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
