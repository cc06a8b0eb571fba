"""What the benchmarks share: where the programs are, how numbers are summed up, how a table is written."""

import os
import platform
import statistics
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
