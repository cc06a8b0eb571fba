#!/usr/bin/env python3
"""How soon a job that has lost or gained a node does its next collective: fsdprun against the installed torchrun.

Workers are C++ programs that reduce with Gloo (collective_worker). Loading LibTorch is in the times, and shown apart; a
Python program would take seconds for its imports. All nodes are on this machine. A node is lost when all its processes
are killed (connections break) or stopped (they stay open, and the node is silent).
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import limits
import measure
from nodes import Job

START_LIMIT_S = 60.0
# Until a launcher that has been started has joined: torchrun imports PyTorch first.
JOINED_S = {measure.FSDPRUN: 1.0, measure.TORCHRUN: 6.0}

Times = tuple[float, float] | None


def begin(job: Job, nodes: int, world: int) -> None:
    for _ in range(nodes):
        job.add_node()
    if job.first_collective(world, 0, START_LIMIT_S) is None:
        sys.exit(f"no world of {world} within {START_LIMIT_S:g} s; the launchers said:\n{job.said()}")


def lost(launcher: str, folder: Path, nproc: int, limit_s: float, number: int) -> Times:
    with Job(launcher, folder, "1:2", nproc) as job:
        begin(job, 2, 2 * nproc)
        return job.first_collective(nproc, job.nodes[1].signal_all(number), limit_s)


def killed(*how: object) -> Times:
    return lost(*how, signal.SIGKILL)


def silent(*how: object) -> Times:
    return lost(*how, signal.SIGSTOP)


def replaced(launcher: str, folder: Path, nproc: int, limit_s: float) -> Times:
    with Job(launcher, folder, "2", nproc) as job:
        begin(job, 2, 2 * nproc)
        job.add_node()
        time.sleep(JOINED_S[launcher])
        return job.first_collective(2 * nproc, job.nodes[1].signal_all(signal.SIGKILL), limit_s)


def joined(launcher: str, folder: Path, nproc: int, limit_s: float) -> Times:
    with Job(launcher, folder, "1:2", nproc, "--rdzv-conf=last_call_timeout=1") as job:
        begin(job, 1, nproc)
        now = time.monotonic_ns()
        job.add_node()
        return job.first_collective(2 * nproc, now, limit_s)


@dataclass
class Case:
    what: str
    run: Callable[..., Times]
    limit: limits.Time


CASES = {
    "killed": Case("a node is killed, survivors reduce again", killed, limits.ELASTIC["killed"]),
    "silent": Case("a node falls silent, survivors reduce again", silent, limits.ELASTIC["silent"]),
    "spare": Case("a node is killed, a spare takes its place", replaced, limits.ELASTIC["spare"]),
    "join": Case("a launcher is started, the larger world reduces", joined, limits.ELASTIC["join"]),
}


def one(case: Case, launcher: str, nproc: int, limit_s: float) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        return case.run(launcher, Path(folder), nproc, limit_s)


def in_words(found: list[Times], limit_s: float) -> str:
    in_time = [times[0] for times in found if times]
    if not found or len(in_time) == len(found):
        return measure.summary(in_time) if found else "-"
    return f"{len(in_time)} of {len(found)} within {limit_s:g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--torchrun-repeats", type=int, default=1, help="it may take its whole limit each time")
    parser.add_argument("--torchrun-limit", type=float, default=30.0, help="seconds after which it has not recovered")
    parser.add_argument("--nproc", type=int, default=2, help="workers of each node")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    rows, failed = [], False
    for name in options.cases:
        case = CASES[name]
        theirs, ours = [], []
        for turn in range(max(options.repeats, options.torchrun_repeats)):
            if turn < options.torchrun_repeats:
                theirs.append(one(case, measure.TORCHRUN, options.nproc, options.torchrun_limit))
            if turn < options.repeats:
                ours.append(one(case, measure.FSDPRUN, options.nproc, START_LIMIT_S))
        times = [found[0] for found in ours if found]
        in_time = [found[0] for found in theirs if found]
        failed |= len(times) < len(ours) or statistics.median(times) > case.limit.fails_above
        rows.append([
            case.what,
            in_words(theirs, options.torchrun_limit),
            measure.summary(times) if times else "never", f"{statistics.median([f[1] for f in ours if f] or [0]):.0f}",
            f"{statistics.median(in_time) / statistics.median(times):.1f}" if in_time and times else "-",
            f"{case.limit.aim:g}",
            f"{case.limit.fails_above:g}" + ("" if len(times) == len(ours) else f"; {len(times)} of {len(ours)} recovered")])
    print(measure.table(["ms until the next collective", "torchrun", "fsdprun", "of it loading LibTorch", "times faster",
                         "aim", "fails above"], rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
