#!/usr/bin/env python3
"""Whether training takes the memory that the plan says: two ranks of fsdp-train on one host, by the proportional set size (PSS), in
which a page that both map counts once.

What does not belong to the engine (LibTorch, activations, the data) is measured: two jobs of one rank at once, less what the plan
says of them. To that the plan of two ranks is added; the sum is what the job of two ranks is expected to take. A process counts
with the most memory that it has had (VmHWM), less what others have of the pages that it shares with them (RSS less PSS): two jobs
do not come to their peaks together, as two ranks do, and no peak is too short. Memory that is freed goes back to the system at
once (MALLOC_MMAP_THRESHOLD_), or what malloc keeps would count, too.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import bench_train
import limits
import measure

LOOK_EVERY_S = 0.05
MIB = 1 << 20


def bytes_in(path: Path) -> dict[str, int]:
    """The lines "name: number kB" of a file of /proc; none if the process is gone."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


@dataclass
class Peak:
    """Of one process, as far as it has been looked at."""

    most: int = 0  # resident
    of_others: int = 0  # of that, by their share of the pages

    def look(self, pid: int) -> None:
        status, rollup = bytes_in(Path(f"/proc/{pid}/status")), bytes_in(Path(f"/proc/{pid}/smaps_rollup"))
        self.most = max(self.most, status.get("VmHWM:", 0))
        self.of_others = max(self.of_others, rollup.get("Rss:", 0) - rollup.get("Pss:", 0))

    def pss(self) -> int:
        return self.most - self.of_others


def workers_in(folder: Path) -> list[int]:
    """The fsdp-train processes whose configuration lies there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if Path(os.fsdecode(command[0])).name == "fsdp-train" and any(os.fsencode(folder) in part for part in command):
                found.append(int(entry.name))
    return found


class PeakPss:
    """The peaks of the workers below `folder`, which are looked at while the context lasts."""

    def __init__(self, folder: Path, workers: int):
        self._of_worker: dict[int, Peak] = {}
        self._folder, self._workers = folder, workers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def sum(self) -> int:
        return sum(peak.pss() for peak in self._of_worker.values())

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            if len(self._of_worker) < self._workers:
                self._of_worker |= {pid: Peak() for pid in workers_in(self._folder) if pid not in self._of_worker}
            for pid, peak in self._of_worker.items():
                peak.look(pid)


def run_job(config: Path, ranks: int) -> None:
    bench_train.run([*bench_train.launcher_of("shm"), f"--nproc-per-node={ranks}", "--no-python", str(measure.BIN / "fsdp-train"),
                     "--config", str(config), "--set", f"parallel.backend={'shm' if ranks > 1 else 'auto'}"], config.parent)


def planned(config: Path, ranks: int) -> dict[str, int]:
    """Of one rank."""
    done = subprocess.run([str(measure.BIN / "planned_memory"), str(config), str(ranks)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def peak_of(case: bench_train.Case, jobs: int, ranks: int) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        configs = []
        for job in range(jobs):
            (folder / str(job)).mkdir()
            configs.append(bench_train.write_case(folder / str(job), case))
        with PeakPss(folder, jobs * ranks) as peak, concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda config: run_job(config, ranks), configs))
        return peak.sum()


def plans(case: bench_train.Case) -> dict[int, dict[str, int]]:
    with tempfile.TemporaryDirectory() as temporary:
        config = bench_train.write_case(Path(temporary), case)
        return {ranks: planned(config, ranks) for ranks in (1, 2)}


def mib(values: list[int]) -> str:
    return measure.summary([value / MIB for value in values])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--modes", nargs="+", default=["fp32", "bf16"], choices=list(bench_train.MODES))
    options = parser.parse_args()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(64 * 1024)
    rows, is_off = [], False
    for mode in options.modes:
        case = bench_train.Case(options.steps, options.micro_batch, options.length, mode)
        plan = plans(case)
        alone, together = [], []
        for _ in range(options.repeats):
            alone.append(peak_of(case, jobs=2, ranks=1))
            together.append(peak_of(case, jobs=1, ranks=2))
        expected = statistics.median(alone) + 2 * (plan[2]["peak"] - plan[1]["peak"])
        off = statistics.median(together) / expected - 1
        is_off |= abs(off) > limits.MEMORY_OFF.fails_above
        aim = limits.MEMORY_OFF.aim
        rows.append([mode, f"{2 * plan[2]['peak'] / MIB:.1f}", f"{2 * plan[1]['peak'] / MIB:.1f}", mib(alone), f"{expected / MIB:.1f}",
                     mib(together), f"{100 * off:+.2f} %", f"{100 * aim:g} %" + ("" if abs(off) <= aim else ": not met")])
    what = f"33.6 M parameters, 2 ranks, {options.micro_batch} x {options.length}, MiB of both"
    print(measure.table([what, "plan", "plan of two alone", "two alone, PSS", "expected", "two ranks, PSS", "off", "aim"], rows))
    return int(is_off)


if __name__ == "__main__":
    sys.exit(main())
