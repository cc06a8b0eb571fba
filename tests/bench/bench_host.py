#!/usr/bin/env python3
"""What wrapping and a second rank cost the host.

Wrapping, per unit and iteration: 16 units of 9 linears of 8 x 8, forward and backward, one thread, rank 0 of a group of two whose
collectives are over when they are issued. libfsdp (host_cost.cc) against FSDP2 (fsdp2_host_cost.py), plain and sharded in turns,
and the two programs in turns. In CPU time of the thread that does it, which never waits.

A second rank, per layer and step: fsdp-train with a Llama of 32 layers, 64 wide, on 1 x 16 tokens, as a job of two ranks over shared
memory and as two jobs of one rank at once, in turns.
"""

import argparse
import concurrent.futures
import os
import statistics
import subprocess
import sys
from pathlib import Path

import bench_train
import limits
import measure

UNITS = 16
FSDP2 = [str(measure.ROOT / ".venv/bin/python"), str(Path(__file__).with_name("fsdp2_host_cost.py"))]
LAYERS = bench_train.DEEP_MODEL["num_hidden_layers"]
LIBFSDP = [str(measure.BIN / "host_cost")]


def run(command: list[str], turns: int, *arguments: str) -> list[list[float]]:
    """By turn: microseconds per iteration of the plain model, then of those that are sharded. `arguments`: behind the turns."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(turns), *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")
    return [[float(value) for value in line.split()] for line in done.stdout.splitlines()]


def costs(turns: list[list[float]], side: int) -> list[float]:
    """Of each turn, so that what slows the machine for longer slows both of what is subtracted."""
    return [(turn[side] - turn[0]) / UNITS for turn in turns]


def in_words(cost: float, bound: limits.Bound) -> str:
    return f"{bound.aim:g}" + ("" if cost <= bound.aim else ": not met")


def compare_second_rank(repeats: int, steps: int) -> bool:
    """Whether it is within the limit."""
    case = bench_train.Case(steps, micro_batch=1, length=16, mode="fp32", model="deep")
    alone, together = [], []
    for _ in range(repeats):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = [pool.submit(bench_train.train, "alone", case, 1) for _ in range(2)]
            alone.append(1000 * statistics.mean(job.result() for job in jobs))
        together.append(1000 * bench_train.train("shm", case, 2))
    added = [(both - one) / LAYERS for both, one in zip(together, alone, strict=True)]
    print(measure.table(["a step of two ranks, ms", "two jobs of one rank at once", "added per layer (range)", "aim"], [[
        measure.summary(together), measure.summary(alone), measure.summary(added),
        in_words(statistics.median(added), limits.SECOND_RANK_MS)]]))
    return statistics.median(added) <= limits.SECOND_RANK_MS.fails_above


def compare_wrapping(repeats: int, turns: int, at_most: float) -> bool:
    """Whether libfsdp is within the limit."""
    fsdp2: list[list[float]] = []
    libfsdp: list[list[float]] = []
    for _ in range(repeats):
        fsdp2 += run(FSDP2, turns)
        libfsdp += run(LIBFSDP, turns)
    sides = {"FSDP2": costs(fsdp2, 1), "libfsdp, gathered into slots": costs(libfsdp, 1),
             "libfsdp, gathered through windows": costs(libfsdp, 2)}
    base = statistics.median(sides["FSDP2"])
    rows = []
    for name, values in sides.items():
        cost = statistics.median(values)
        rows.append([name, measure.summary(values), f"{base / cost:.0f}", "" if name == "FSDP2" else in_words(cost, limits.HOST_COST_US)])
    print(measure.table(["host cost of wrapping per unit and iteration, CPU microseconds", "median (range)", "times less", "aim"], rows))
    plain = [statistics.median(turn[0] for turn in turns) for turns in (fsdp2, libfsdp)]
    print(f"\nThe plain model takes {plain[0]:.0f} microseconds in Python and {plain[1]:.0f} in C++.\n")
    return all(statistics.median(values) <= at_most for name, values in sides.items() if name != "FSDP2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each program")
    parser.add_argument("--turns", type=int, default=10, help="of a run")
    parser.add_argument("--steps", type=int, default=40, help="of a job of the second comparison")
    parser.add_argument("--at-most", type=float, default=limits.HOST_COST_US.fails_above, help="fail above so many microseconds")
    options = parser.parse_args()
    is_within = compare_wrapping(options.repeats, options.turns, options.at_most)
    is_within &= compare_second_rank(options.repeats, options.steps)
    return int(not is_within)


if __name__ == "__main__":
    sys.exit(main())
