#!/usr/bin/env python3
"""Whether the engine of this build costs the host more than that of another, and what each prefetch policy costs.

    FSDPRUN_BIN=build/release/bin bench_host_builds.py --base OTHER/build/release/bin

The host cost of bench_host.py, per unit and iteration, by host_cost of both builds in turns, and the steps of fsdp-train with a
Llama of 32 layers, 64 wide, on 1 x 16 tokens, as a job of two ranks over shared memory, in turns. The builds need the same compiler
flags. Then the policies, of this build alone. Exit code 1 if this build costs more than the limit (limits.py).

--instructions counts the instructions of host_cost with valgrind instead, which no other work on the machine changes.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import bench_host
import bench_train
import limits
import measure

ITERATIONS = 200  # of a turn, host_cost's default
FEW_ITERATIONS, MORE_ITERATIONS = 10, 40  # that instructions are counted of
MODELS = ["gathered into slots", "gathered through windows"]
POLICIES = ["default: kBackwardPre, forward_prefetch", "backward_prefetch kBackwardPost", "backward_prefetch unset",
            "forward_prefetch false", "limit_all_gathers 1"]


def medians(turns: int, sides: int, command: list[str], *arguments: str) -> list[float]:
    """Of the turns of one run, for each side beside the plain model."""
    measured = bench_host.run(command, turns, *arguments)
    return [statistics.median(bench_host.costs(measured, side)) for side in range(1, sides + 1)]


def compare_builds(base: Path, repeats: int, turns: int) -> bool:
    """Whether this build is within the limit. Differences are those of runs that follow each other."""
    of_base: list[list[float]] = []
    of_this: list[list[float]] = []
    for number in range(repeats):
        pair = [(of_base, base), (of_this, measure.BIN)]
        for values, programs in pair if number % 2 == 0 else reversed(pair):
            values.append(medians(turns, len(MODELS), [str(programs / "host_cost")]))
    rows, is_within = [], True
    for index, name in enumerate(MODELS):
        base_costs, costs = ([run[index] for run in runs] for runs in (of_base, of_this))
        added = [one - other for one, other in zip(costs, base_costs, strict=True)]
        ratio = statistics.median(costs) / statistics.median(base_costs)
        rows.append([name, measure.summary(base_costs), measure.summary(costs), f"{ratio:.2f}", measure.summary(added),
                     bench_host.in_words(statistics.median(added), limits.ADDED_HOST_COST_US)])
        is_within &= statistics.median(added) <= limits.ADDED_HOST_COST_US.fails_above
    print(measure.table(["host cost per unit and iteration, CPU microseconds", "base (range)", "this build (range)", "ratio", "added (range)",
                         "aim"], rows) + "\n")
    return is_within


def compare_steps(base: Path, repeats: int, steps: int) -> None:
    case = bench_train.Case(steps, micro_batch=1, length=16, mode="fp32", model="deep")
    times: dict[Path, list[float]] = {base: [], measure.BIN: []}
    for number in range(repeats):
        for programs in list(times) if number % 2 == 0 else reversed(times):
            times[programs].append(1000 * statistics.median(bench_train.train("shm", case, 2, programs)))
    ratio = statistics.median(times[measure.BIN]) / statistics.median(times[base])
    print(measure.table(["a step of two ranks, ms", "base (range)", "this build (range)", "ratio"], [
        [f"{bench_host.LAYERS} layers", measure.summary(times[base]), measure.summary(times[measure.BIN]), f"{ratio:.3f}"]]) + "\n")


def compare_policies(repeats: int, turns: int) -> None:
    command = [str(measure.BIN / "host_cost")]
    runs = [medians(turns, len(POLICIES), command, str(ITERATIONS), "policies") for _ in range(repeats)]
    rows = []
    for index, name in enumerate(POLICIES):
        added = [run[index] - run[0] for run in runs]
        rows.append([name, measure.summary([run[index] for run in runs]), "-" if index == 0 else measure.summary(added)])
    print(measure.table(["host cost per unit and iteration, CPU microseconds", "median (range)", "more than the default (range)"], rows))


def instructions(programs: Path, iterations: int) -> int:
    """Of host_cost, from its start to its end."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", str(programs / "host_cost"), "1",
               str(iterations)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1200, check=False)
    counted = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode != 0 or counted is None:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{done.stderr[-4000:]}")
    return int(counted[1].replace(",", ""))


def compare_instructions(base: Path, repeats: int) -> None:
    """What further iterations take, plain and sharded: the start counts for neither, the plain model for both alike."""
    counts: dict[Path, list[float]] = {base: [], measure.BIN: []}
    for _ in range(repeats):
        for programs, values in counts.items():
            added = instructions(programs, FEW_ITERATIONS + MORE_ITERATIONS) - instructions(programs, FEW_ITERATIONS)
            values.append(added / MORE_ITERATIONS / bench_host.UNITS)
    of_base, of_this = (statistics.median(counts[programs]) for programs in (base, measure.BIN))
    cells = [f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" for values in counts.values()]
    print(measure.table(["instructions per unit and iteration, of three models: plain, slots, windows", "base (range)", "this build (range)",
                         "added to one that is sharded"], [
        ["host_cost", *cells, f"{(of_this - of_base) / len(MODELS):+.0f}"]]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="folder with the other build's host_cost and fsdp-train")
    parser.add_argument("--repeats", type=int, default=10, help="runs of each program")
    parser.add_argument("--turns", type=int, default=10, help="of a run")
    parser.add_argument("--steps", type=int, default=40, help="of a job of two ranks")
    parser.add_argument("--instructions", action="store_true", help="count them, once per repeat, and measure no time")
    options = parser.parse_args()
    for program in ("host_cost", "fsdp-train"):
        if not os.access(options.base / program, os.X_OK):
            parser.error(f"--base: {options.base / program} is no program; build host_cost and fsdp-train there")
    if options.instructions:
        compare_instructions(options.base, options.repeats)
        return 0
    is_within = compare_builds(options.base, options.repeats, options.turns)
    compare_steps(options.base, options.repeats, options.steps)
    compare_policies(options.repeats, options.turns)
    return int(not is_within)


if __name__ == "__main__":
    sys.exit(main())
