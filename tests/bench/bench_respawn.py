#!/usr/bin/env python3
"""kill -9 of one of two workers to both running again: fsdprun against the installed torchrun, in turns.

The workers are shells that write their process id down and wait, so that nothing but the launcher is measured.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

# In a file, since torchrun substitutes dollar signs in arguments.
WORKER = 'echo $$ > "$1/$RANK.$TORCHELASTIC_RESTART_COUNT"; exec tail -f /dev/null\n'


def wait_for_workers(folder: Path, restart: int, limit_s: float) -> list[int]:
    """The process ids of both workers of that restart, as soon as both have written theirs."""
    deadline = time.perf_counter() + limit_s
    files = [folder / f"{rank}.{restart}" for rank in range(2)]
    while time.perf_counter() < deadline:
        try:
            texts = [file.read_text() for file in files]
            if all(text.endswith("\n") for text in texts):
                return [int(text) for text in texts]
        except FileNotFoundError:
            pass
        time.sleep(0.0002)
    sys.exit(f"workers of restart {restart} did not appear within {limit_s:g} s")


def respawn_ms(launcher: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.sh"
        script.write_text(WORKER)
        process = subprocess.Popen(
            [launcher, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", str(script),
             folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            victim = wait_for_workers(Path(folder), 0, 60)[1]
            time.sleep(0.5)  # the launcher is at rest
            started = time.perf_counter()
            os.kill(victim, signal.SIGKILL)
            wait_for_workers(Path(folder), 1, 60)
            return (time.perf_counter() - started) * 1e3
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-least", type=float, default=5.0, help="fail below this ratio")
    options = parser.parse_args()
    times: dict[str, list[float]] = {measure.FSDPRUN: [], measure.TORCHRUN: []}
    for _ in range(options.repeats):
        for launcher, values in times.items():
            values.append(respawn_ms(launcher))
    ratio = statistics.median(times[measure.TORCHRUN]) / statistics.median(times[measure.FSDPRUN])
    print(measure.table(["kill -9 of a worker to all respawned, ms", "median (range)", "times faster"], [
        ["torchrun", measure.summary(times[measure.TORCHRUN]), "1"],
        ["fsdprun", measure.summary(times[measure.FSDPRUN]), f"{ratio:.1f}"]]))
    return 0 if ratio >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
