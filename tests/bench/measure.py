"""What the benchmarks share: where the programs are, how numbers are summed up, how a table is written."""

import argparse
import os
import platform
import select
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from limits import Ratio

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("FSDPRUN_BIN", ROOT / "build/bin"))
FSDPRUN = str(BIN / "fsdprun")
TORCHRUN = str(ROOT / ".venv/bin/torchrun")


def summary(values: list[float]) -> str:
    """Median with the range around it: the range says how much the machine wavered."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def in_words(ratio: float, aim: float) -> str:
    return f"{aim:g}" + ("" if ratio >= aim else ": not met")


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}"


@dataclass
class LauncherCase:
    """`measure_ms` takes the path of a launcher and a directory for its temporary files.

    `alone_ms` takes that directory and does the same to the same processes with nothing but posix_spawn, kill and waitpid: what
    the processes cost themselves, started one by one by a Python that runs already, which takes its share (encoding the
    environment for each of them, for example). A launcher may do that in less, but has to start itself.
    """

    what: str
    measure_ms: Callable[[str, str], float]
    alone_ms: Callable[[str], float]
    limit: Ratio


def await_end(process: subprocess.Popen, limit_s: float) -> None:
    """Without wait(timeout), which looks after 15.5, 31.5, 63.5 and 113.5 ms and then every 50 ms."""
    pidfd = os.pidfd_open(process.pid)
    try:
        if not select.select([pidfd], [], [], limit_s)[0]:
            process.kill()
    finally:
        os.close(pidfd)
    if process.wait() != 0:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def measure_once(case: LauncherCase, launcher: str | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return case.alone_ms(folder) if launcher is None else case.measure_ms(launcher, folder)


def compare_launchers(description: str, cases: list[LauncherCase], *, warm_up: bool) -> int:
    """Measures both launchers in turns and prints a table for each case; 1 if one misses its limit."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-least", type=float, help="fail below this ratio, instead of each case's own (limits.py)")
    options = parser.parse_args()
    failed = False
    for case in cases:
        times: dict[str | None, list[float]] = {FSDPRUN: [], TORCHRUN: [], None: []}
        if warm_up:
            for launcher in times:
                measure_once(case, launcher)  # files into the page cache
        for _ in range(options.repeats):
            for launcher, values in times.items():
                values.append(measure_once(case, launcher))
        ratio, alone_ratio = (statistics.median(times[TORCHRUN]) / statistics.median(times[which]) for which in (FSDPRUN, None))
        at_least = case.limit.fails_below if options.at_least is None else options.at_least
        failed |= ratio < at_least
        print(table([f"{case.what}, ms", "median (range)", "times faster", "aim", "fails below"], [
            ["torchrun", summary(times[TORCHRUN]), "1", "", ""],
            ["fsdprun", summary(times[FSDPRUN]), f"{ratio:.1f}", in_words(ratio, case.limit.aim), f"{at_least:g}"],
            ["the processes without a launcher", summary(times[None]), f"{alone_ratio:.1f}", "", ""]]) + "\n")
    return int(failed)
