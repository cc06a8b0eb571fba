"""What the benchmarks share: where the programs are, how numbers are summed up, how a table is written."""

import argparse
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

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


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}"


def compare_launchers(description: str, cases: dict[str, Callable[[str], float]], *, at_least: float, warm_up: bool) -> int:
    """Measures both launchers in turns, in ms, and prints a table for each case; 1 if fsdprun is not as many times faster
    as it must be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-least", type=float, default=at_least, help="fail below this ratio")
    options = parser.parse_args()
    failed = False
    for what, measure_ms in cases.items():
        times: dict[str, list[float]] = {FSDPRUN: [], TORCHRUN: []}
        if warm_up:
            for launcher in times:
                measure_ms(launcher)  # files into the page cache
        for _ in range(options.repeats):
            for launcher, values in times.items():
                values.append(measure_ms(launcher))
        ratio = statistics.median(times[TORCHRUN]) / statistics.median(times[FSDPRUN])
        failed |= ratio < options.at_least
        print(table([f"{what}, ms", "median (range)", "times faster"], [
            ["torchrun", summary(times[TORCHRUN]), "1"],
            ["fsdprun", summary(times[FSDPRUN]), f"{ratio:.1f}"]]) + "\n")
    return int(failed)
