#!/usr/bin/env python3
"""A coordinator and many agents on this machine, over loopback, without keepers and workers (many_agents.cc): how soon all form
a generation, how soon all know of the failure of one, and what that costs the coordinator."""

import argparse
import json
import statistics
import subprocess
import sys

import limits
import measure

COLUMNS = {
    "formed_s": "s from `join` until all have started",
    "known_s": "s until all know of a failure",
    "cpu_to_form_s": "coordinator's CPU s for that",
    "cpu_running_per_s": "CPU s per s while it runs",
    "peak_mib": "coordinator's memory, MiB",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    runs = []
    for _ in range(options.repeats):
        command = [str(measure.BIN / "many_agents"), str(options.agents), str(options.processes)]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout))
    row = [str(options.agents), *(measure.summary([run[key] for run in runs]) for key in COLUMNS),
           str(sum(run["losses"] for run in runs))]
    print(measure.table(["agents", *COLUMNS.values(), "nodes lost"], [row]))
    medians = {key: statistics.median(run[key] for run in runs) for key in limits.AGENTS}
    return int(any(medians[key] > limit.fails_above for key, limit in limits.AGENTS.items()))


if __name__ == "__main__":
    sys.exit(main())
