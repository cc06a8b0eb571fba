#!/usr/bin/env python3
"""Negates one guard after the other in programs that were built from rewritten sources, and judges who noticed.

usage: guard_harness.py FOLDER ACCEPTED.json [--minutes N] [--only FILE[:LINE]] [--both]

FOLDER holds guards.json and build/ (see guard_rewriter.py) and gets results.jsonl, which the next run goes on from as
long as programs and fault mixes are what they were. ACCEPTED lists the guards whose negation nothing has to notice,
each with the reason. --both asks the simulator also where a unit test has noticed.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from guard_rewriter import Guard

Key = tuple[str, str, str, int]  # file, function, text, occurrence
Accepted = list[dict[str, Any]]

NOTICED_AT_LEAST = 0.9
MEMORY_BYTES = 2 << 30  # a loop that never ends may also fill memory
CPU_SECONDS_MIN, CPU_FACTOR = 2, 10  # what a negated run may take: so many times the run without
WALL_FACTOR = 12  # a busy machine lengthens the time on the wall; only what waits forever gets there
PROGRESS_EVERY = 50
UNIT_TESTS = ("coordinator_test", "node_machine_test", "cluster_test")
CLUSTERS = ((3, 30), (16, 15))  # (nodes, seeds)
TIMEOUT_CODES = (124, 137, 128 + 24)  # timeout's own, SIGKILL, SIGXCPU


@dataclass(frozen=True)
class Oracle:
    """A program that fails if it notices a negated guard."""

    kind: str  # unit or sim
    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Who noticed a negated guard, and how; "" if nobody did, None if it was not asked."""

    unit: str
    sim: str | None

    @property
    def noticed(self) -> bool:
        return bool(self.unit or self.sim)


Verdicts = dict[Key, Verdict]


# --- Running


def oracles(build: Path, source: Path) -> list[Oracle]:
    """The unit tests of the machines, then simulated clusters under every mix of faults that comes to an end."""
    found = [Oracle("unit", name, (str(build / "tests" / name), "--gtest_fail_fast", "--gtest_color=no"))
             for name in UNIT_TESTS]
    for mix in sorted((source / "tests/sim/faults").glob("*.json")):
        if json.loads(mix.read_text()).get("work_s", 1) > 0:
            found += [Oracle("sim", f"{mix.stem}, {nodes} nodes",
                             (str(build / "tests/sim_main"), "--nodes", str(nodes), "--runs", str(seeds),
                              "--faults", str(mix))) for nodes, seeds in CLUSTERS]
    return found


def run(oracle: Oracle, guard: int, cpu_seconds: int) -> str:
    """Empty if the program passes, else what went wrong."""
    command = ["timeout", "-k", "1", str(cpu_seconds * WALL_FACTOR), "prlimit", "--core=0", f"--as={MEMORY_BYTES}",
               f"--cpu={cpu_seconds}:{cpu_seconds + 1}", *oracle.command]
    done = subprocess.run(command, env=os.environ | {"FSDPRUN_NEGATE": str(guard)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return "" if code == 0 else f"{oracle.name}: {describe(code, done.stdout)}"


def describe(code: int, output: str) -> str:
    """The failing test, else the simulator's complaint, else how the process ended and in which test."""
    failed = re.search(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", output, re.M)
    if failed:
        return failed[1]
    complaint = re.search(r"^(VIOLATION|[A-Z]{2}[A-Z ]+:) *(.*)", output, re.M)
    if complaint:
        return re.sub(r"^at [\d.]+ s: ", "", complaint[2])
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    where = f" in {started[-1]}" if started else ""
    if code in TIMEOUT_CODES:
        return f"does not end{where}"
    last = output.strip().splitlines()[-1:] or [""]
    return f"ends with {code}{where}: {last[0][:160]}"


def measure(oracle: Oracle) -> int:
    """Seconds of CPU time that a negated run may take; ends the program if the run without fails."""
    before = os.times()
    complaint = run(oracle, 0, 600)
    if complaint:
        sys.exit(f"without a negated guard there must be nothing to notice, yet: {complaint}")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return max(CPU_SECONDS_MIN, round(CPU_FACTOR * used))


def try_guard(guard: int, limits: dict[Oracle, int], both: bool) -> Verdict:
    noticed: dict[str, str] = {}
    for kind in ("unit", "sim"):
        if kind == "sim" and noticed["unit"] and not both:
            return Verdict(noticed["unit"], None)
        asked = (run(oracle, guard, limit) for oracle, limit in limits.items() if oracle.kind == kind)
        noticed[kind] = next((complaint for complaint in asked if complaint), "")
    return Verdict(noticed["unit"], noticed["sim"])


# --- Results


class Results:
    """What is known of each guard, in a file that survives an interrupted run. Results of other inputs are dropped."""

    def __init__(self, file: Path, inputs: str):
        self.file, self.inputs = file, inputs
        self.verdicts: Verdicts = {}
        lines = file.read_text().splitlines() if file.is_file() else []
        for record in map(json.loads, lines):
            if record["inputs"] == inputs:
                self.verdicts[tuple(record["guard"])] = Verdict(record["unit"], record["sim"])
        file.write_text("".join(self._line(key, verdict) for key, verdict in self.verdicts.items()))

    def add(self, guard: Guard, verdict: Verdict) -> None:
        self.verdicts[guard.key] = verdict
        with self.file.open("a") as out:
            out.write(self._line(guard.key, verdict))

    def _line(self, key: Key, verdict: Verdict) -> str:
        return json.dumps({"inputs": self.inputs, "guard": key, "unit": verdict.unit, "sim": verdict.sim}) + "\n"


def fingerprint(asked: list[Oracle], guards: list[Guard]) -> str:
    """Changes with everything that a verdict depends on, and not with a comment."""
    digest = hashlib.sha256(repr([guard.key for guard in guards]).encode())
    for oracle in asked:
        digest.update(repr(oracle).encode())
        for argument in oracle.command:
            if Path(argument).is_file():
                digest.update(Path(argument).read_bytes())
    return digest.hexdigest()[:16]


def try_all(todo: list[Guard], results: Results, limits: dict[Oracle, int], both: bool, until: float) -> None:
    """Tries the guards until all are done or the time is over, as many at once as there are cores."""
    todo = todo[::-1]
    running: dict[Future[Verdict], Guard] = {}
    with ThreadPoolExecutor(jobs()) as pool:
        while running or (todo and time.monotonic() < until):
            while todo and len(running) < jobs() and time.monotonic() < until:
                guard = todo.pop()
                running[pool.submit(try_guard, guard.number, limits, both)] = guard
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                guard = running.pop(future)
                results.add(guard, future.result())
                if len(results.verdicts) % PROGRESS_EVERY == 0:
                    print(f"{len(results.verdicts)} done", flush=True)


def jobs() -> int:
    return int(os.environ.get("JOBS") or os.cpu_count() or 1)


def show(guard: Guard) -> str:
    return f"{guard.file}:{guard.line} {guard.function}: {guard.text}"


# --- Judging


def judge(guards: list[Guard], verdicts: Verdicts, accepted: Accepted) -> list[str]:
    """What is wrong: survivors that nobody has accepted, acceptances that are out of date, too few noticed."""
    known, reasons = {guard.key for guard in guards}, reasons_by_key(accepted)
    wrong = [f"accepted without a reason: {' '.join(map(str, key))}" for key, reason in reasons.items() if not reason]
    wrong += [f"accepted, but there is no such guard: {' '.join(map(str, key))}" for key in reasons if key not in known]
    tried = [guard for guard in guards if guard.key in verdicts]
    for guard in tried:
        verdict = verdicts[guard.key]
        if verdict.noticed and guard.key in reasons:
            wrong.append(f"accepted as unnoticed, but noticed by {verdict.unit or verdict.sim}: {show(guard)}")
        elif not verdict.noticed and guard.key not in reasons:
            wrong.append(f"no test notices that this guard is negated: {show(guard)}")
    noticed = sum(verdicts[guard.key].noticed for guard in tried)
    if len(tried) == len(guards) and noticed < NOTICED_AT_LEAST * len(guards):
        wrong.append(f"only {noticed} of {len(guards)} negated guards are noticed; at least "
                     f"{NOTICED_AT_LEAST:.0%} must be")
    return wrong


def reasons_by_key(accepted: Accepted) -> dict[Key, str]:
    return {(a["file"], a["function"], a["guard"], a.get("occurrence", 1)): a.get("reason", "") for a in accepted}


def survivors(guards: list[Guard], verdicts: Verdicts, accepted: Accepted) -> list[str]:
    """The accepted ones with their reasons; judge() tells of the others."""
    reasons = reasons_by_key(accepted)
    return [f"not noticed: {show(guard)}\n    {reasons[guard.key]}" for guard in guards
            if guard.key in reasons and guard.key in verdicts and not verdicts[guard.key].noticed]


def summary(guards: list[Guard], verdicts: Verdicts) -> list[str]:
    tried = [verdicts[guard.key] for guard in guards if guard.key in verdicts]
    noticed = sum(verdict.noticed for verdict in tried)

    def share(holds: Callable[[Verdict], object]) -> str:
        return str(sum(bool(holds(verdict)) for verdict in tried))

    lines = [f"{len(guards)} guards, {len(tried)} negated, {noticed} noticed ({noticed / max(1, len(tried)):.1%}): "
             f"{share(lambda v: v.unit)} by unit tests, {share(lambda v: v.sim and not v.unit)} by the simulator only, "
             f"{share(lambda v: not v.noticed)} by nobody"]
    if tried and all(verdict.sim is not None for verdict in tried):
        lines.append(f"the simulator by itself notices {share(lambda v: v.sim)}; "
                     f"{share(lambda v: v.unit and not v.sim)} are noticed by unit tests only")
    if len(tried) < len(guards):
        lines.append(f"{len(guards) - len(tried)} are left; the next run goes on with them")
    return lines


# --- The command


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("accepted", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--both", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    until = time.monotonic() + options.minutes * 60
    guards = [Guard(**guard) for guard in json.loads((options.folder / "guards.json").read_text())]
    accepted = json.loads(options.accepted.read_text())
    asked = oracles(options.folder / "build", options.folder / "src")
    results = Results(options.folder / "results.jsonl", fingerprint(asked, guards))
    file, _, line = options.only.partition(":")
    chosen = [g for g in guards if g.file.endswith(file) and line in ("", str(g.line))]
    if not chosen:
        sys.exit(f"--only {options.only}: no guard there")
    known = results.verdicts
    todo = [g for g in chosen if g.key not in known or (options.both and known[g.key].sim is None)]
    print(f"{len(chosen)} guards, {len(todo)} of them still to be negated, {jobs()} at a time", flush=True)
    if todo and time.monotonic() < until:
        try_all(todo, results, {oracle: measure(oracle) for oracle in asked}, options.both, until)
    if options.only:
        for guard in chosen:
            verdict = known.get(guard.key)
            told = "not tried yet" if verdict is None else verdict.unit or verdict.sim or "NOT NOTICED"
            print(f"{show(guard)}\n    {told}")
        return 0
    wrong = judge(guards, known, accepted)
    print("\n".join(survivors(guards, known, accepted) + wrong + summary(guards, known)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
