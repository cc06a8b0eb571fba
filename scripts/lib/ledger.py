#!/usr/bin/env python3
"""Where the minutes of a test run went, and what was skipped.

usage: ledger.py FOLDER [BUILD...]

FOLDER holds phases.tsv (name, seconds, exit status; written by scripts/test and scripts/soak) and what ctest wrote,
*.junit.xml.
Each BUILD is a folder with a .ninja_log.
"""

import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SHOWN = 10
CUT_OFF = "124"  # phases.bash: the time was not enough, which is no failure


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:3d} min {int(seconds) % 60:02d} s"


def read_phases(path: Path) -> list[tuple[str, float, bool]]:
    """Name, seconds and whether it failed."""
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [(name, float(seconds), status not in ("0", CUT_OFF)) for name, seconds, status in rows]


def slow_files(build: Path, since: float) -> list[tuple[float, str]]:
    """Seconds that each output took which was made after `since` (seconds since the epoch)."""
    log, rows = build / ".ninja_log", {}
    for line in log.read_text().splitlines()[1:] if log.is_file() else []:
        start, end, _mtime, output, _hash = line.split("\t")
        path = build / output
        if path.is_file() and path.stat().st_mtime >= since:
            rows[output] = (int(end) - int(start)) / 1000
    return [(seconds, f"{build.name}: {output}") for output, seconds in rows.items()]


def read_tests(folder: Path) -> tuple[list[tuple[float, str]], list[str], list[str]]:
    """All tests with their seconds; names of those that were skipped, with the last that they said, and of those that failed."""
    times, skipped, failed = [], [], []
    for report in sorted(folder.glob("*.junit.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = case.get("name", "?")
            times.append((float(case.get("time", 0)), name))
            if case.find("skipped") is not None:
                said = (case.findtext("system-out") or "").strip().splitlines()
                skipped.append(": ".join([name, *said[-1:]]))
            if case.find("failure") is not None:
                failed.append(name)
    return times, skipped, failed


def print_slowest(title: str, rows: list[tuple[float, str]]) -> None:
    if rows:
        print(f"\n{title}")
        for seconds, name in sorted(rows, reverse=True)[:SHOWN]:
            print(f"  {seconds:7.1f} s  {name}")


def main() -> None:
    folder, builds = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    phases = read_phases(folder / "phases.tsv")
    started = (folder / "started").stat().st_mtime
    print("phase                                        time")
    for name, seconds, has_failed in phases:
        print(f"  {name:38s} {minutes(seconds)}{'   FAILED' if has_failed else ''}")
    print(f"  {'all':38s} {minutes(time.time() - started)}")
    print_slowest("slowest files to build", [row for build in builds for row in slow_files(build, started)])
    times, skipped, failed = read_tests(folder)
    print_slowest("slowest tests", times)
    print(f"\n{len(times)} tests, {len(failed)} failed, {len(skipped)} skipped")
    for name in failed:
        print(f"  failed: {name}")
    for name in skipped:
        print(f"  skipped: {name}")
    for name in [name for name, _, has_failed in phases if has_failed]:
        print(f"  failed phase: {name} (what it found is above, behind '==> {name}')")


if __name__ == "__main__":
    main()
