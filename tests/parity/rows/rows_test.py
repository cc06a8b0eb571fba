#!/usr/bin/env python3
"""Runs the rows of table.py with libfsdp and with PyTorch, and compares what both have noted: a test for each case.

All cases of a number of ranks run in one start of PyTorch, and one of libfsdp for each backend, before the first test. Without
--long only the ranks of every change: an even number with shared memory, an odd one with Gloo.

To see one: rows_test.py --program PROGRAM Rows.test_T06_one_unit_even
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BEGIN = time.monotonic()
# Before LibTorch is loaded. A second compute thread would add up in another order.
os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]
import noted_files  # noqa: E402
import operations  # noqa: E402
import reference  # noqa: E402
import table  # noqa: E402
import torch  # noqa: E402
from free_port import free_port  # noqa: E402

BACKENDS = ("shm", "gloo")


def ranks_of(case: operations.Case, is_long: bool) -> list[int]:
    return sorted({*case.ranks, *(case.long_ranks if is_long else ())})


def backends_of(ranks: int, is_long: bool) -> tuple[str, ...]:
    if ranks == 1:
        return ("single",)
    return BACKENDS if is_long else (BACKENDS[ranks % 2],)


def limit_s() -> float:
    """Of one start: half of what is left of ctest's limit, so that it is this script that ends what hangs, and says where."""
    return max(1.0, BEGIN + float(os.environ.get("FSDPRUN_TEST_TIMEOUT_S", 1200)) - time.monotonic()) / 2


def run_libfsdp(program: Path, backend: str, ranks: int, cases: Path, output: Path) -> None:
    common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [subprocess.Popen([program, backend, cases, output], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(ranks)]
    deadline = time.monotonic() + limit_s()
    try:
        outputs = [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for process in started]
    except subprocess.TimeoutExpired:
        raise SystemExit(f"libfsdp with {backend} at {ranks} ranks has not ended in time, in {reference.cases_at(output)}")
    finally:
        for process in started:
            process.kill()
    if any(process.returncode != 0 for process in started):
        raise SystemExit(f"libfsdp with {backend} at {ranks} ranks ends with {[p.returncode for p in started]} in {reference.cases_at(output)}:\n" +
                         "\n".join(outputs)[-4000:])


class Results:
    """What both sides have noted, by who ran it, case, number of ranks and rank."""

    def __init__(self, program: Path, cases: list[operations.Case], is_long: bool):
        self.noted: dict[tuple[str, str, int, int], noted_files.Noted] = {}
        with tempfile.TemporaryDirectory() as folder:
            for ranks in sorted({ranks for case in cases for ranks in ranks_of(case, is_long)}):
                chosen = [operations.case_for(case, ranks) for case in cases if ranks in ranks_of(case, is_long)]
                path = Path(folder) / f"cases{ranks}.json"
                path.write_text(json.dumps(chosen))
                output = Path(folder) / f"pytorch{ranks}"
                # As libfsdp reads it: a tuple is a list.
                reference.run(ranks, free_port(), json.loads(path.read_text()), output, limit_s())
                for rank, of_rank in enumerate(reference.read(ranks, output)):
                    self.noted |= {("pytorch", name, ranks, rank): noted for name, noted in of_rank.items()}
                for backend in backends_of(ranks, is_long):
                    output = Path(folder) / f"{backend}{ranks}"
                    run_libfsdp(program, backend, ranks, path, output)
                    for rank in range(ranks):
                        self.noted |= {(backend, name, ranks, rank): noted
                                       for name, noted in noted_files.read(Path(f"{output}.{rank}")).items()}


def events_as(compare: str | None, events: list[str]) -> object:
    """What of the events has to be the same."""
    parts = [event.split() for event in events]
    if compare == operations.COUNTS:
        return dict(collections.Counter(kind for kind, *_ in parts))
    if compare == operations.ORDER:
        return [f"{kind} {unit}" for kind, unit, *_ in parts]
    if compare == operations.DTYPES:
        return [f"{kind} {unit} {dtype}" for kind, unit, _, dtype in parts]
    if compare == operations.VOLUME:
        volume: collections.Counter[str] = collections.Counter()
        for kind, unit, numel, _ in parts:
            if kind == "reduce":
                volume[unit] += int(numel)
        return dict(volume)
    return None


def difference(case: operations.Case, ranks: int, key: str, ours, theirs, tolerance: dict | None) -> str | None:
    """In words; none: they are the same, or as near as the case allows."""
    if isinstance(theirs, list):
        if key.endswith(" events"):
            ours, theirs = events_as(case.compare, ours), events_as(case.compare, theirs)
            if case.compare == operations.VOLUME and set(ours) == set(theirs):
                # A shard fills whole pages here, and each parameter 256 bytes: that much more, and no less.
                ours = {unit: theirs[unit] if 0 <= ours[unit] - theirs[unit] <= 1024 * ranks + 256 else ours[unit] for unit in ours}
        return None if ours == theirs else f"{key}: {ours}, with PyTorch {theirs}"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{key}: {ours.dtype} {tuple(ours.shape)}, with PyTorch {theirs.dtype} {tuple(theirs.shape)}"
    # Losses are kept in float64, whatever they were computed in.
    what = "losses" if key.endswith(" losses") else str(theirs.dtype).removeprefix("torch.")
    rtol, atol = (0, 0) if tolerance is None else tolerance.get(what, tolerance["float32"])
    if torch.equal(ours, theirs) or torch.allclose(ours, theirs, rtol, atol):
        return None
    return f"{key}: differs by {(ours.double() - theirs.double()).abs().max():.2e} of {theirs.abs().max():.2e}"


class Rows(unittest.TestCase):
    results: Results
    is_long: bool

    def check(self, case: operations.Case) -> None:
        for ranks in ranks_of(case, self.is_long):
            for backend in backends_of(ranks, self.is_long):
                for rank in range(ranks):
                    with self.subTest(ranks=ranks, backend=backend, rank=rank):
                        self.compare(case, ranks, self.results.noted[backend, case.name, ranks, rank],
                                     self.results.noted["pytorch", case.name, ranks, rank])

    def compare(self, case: operations.Case, ranks: int, ours: noted_files.Noted, theirs: noted_files.Noted) -> None:
        for who, noted in (("PyTorch", theirs), ("libfsdp", ours)):
            if "error" in noted:
                self.fail(f"{who} fails: {noted['error']}")
        self.assertEqual(sorted(ours), sorted(theirs), "not the same has been noted")
        wrong = [message for key in sorted(theirs)
                 if (message := difference(case, ranks, key, ours[key], theirs[key], case.tolerance(ranks, int(key.split()[0]))))]
        if wrong:
            self.fail("\n".join([f"{len(wrong)} of {len(theirs)} results differ:", *wrong[:6]]))


def self_test() -> None:
    """What differs must be noticed."""
    script = [operations.LOSSES, ("clip", {}), operations.EVENTS]
    case = operations.Case("X00", "nothing", {}, script, compare=operations.ORDER, rounding=operations.CLIPPED)
    assert [case.tolerance(2, position) for position in range(3)] == [None, operations.CLOSE, operations.CLOSE]
    for wrong in ({"compare": None}, {"script": script[:2]}, {"script": script[::2]}):
        try:
            dataclasses.replace(case, **wrong)
        except AssertionError:
            continue
        raise SystemExit(f"a case may have {wrong}")
    one, more = torch.tensor([1.0]), torch.tensor([1.0000001])
    events = [["gather root 8 Float", "reduce root 8 Float"], ["reduce root 8 Float", "gather root 8 Float"]]
    for key, ours, theirs, tolerance in (("parameter", more, one, None), ("parameter", one.double(), one, None),
                                         ("parameter", one + 1e-3, one, operations.CLOSE), ("parameter", one * float("nan"), one, operations.CLOSE),
                                         ("000 events", *events, None), ("000 dtypes", ["a"], ["b"], None)):
        assert difference(case, 2, key, theirs, theirs, tolerance) is None, key
        assert difference(case, 2, key, ours, theirs, tolerance), f"{key}: {ours} passes for {theirs}"
    assert difference(case, 2, "parameter", more, one, operations.CLOSE) is None
    volumes = [f"reduce root {numel} Float" for numel in (4096, 4160, 9000)]
    measured = dataclasses.replace(case, compare=operations.VOLUME)
    assert difference(measured, 2, "000 events", volumes[1:2], volumes[:1], None) is None, "padding is too much"
    assert difference(measured, 2, "000 events", volumes[2:], volumes[:1], None), "twice as much is not too much"
    assert difference(measured, 2, "000 events", volumes[:1], volumes[1:2], None), "less is not too little"


def add_tests() -> None:
    for case in table.CASES:
        name = f"test_{case.name}"
        assert not hasattr(Rows, name), f"two cases {case.name}"
        setattr(Rows, name, functools.partialmethod(Rows.check, case))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="parity_rows")
    parser.add_argument("--long", action="store_true", help="at all numbers of ranks")
    parser.add_argument("only", nargs="*", help="tests, such as Rows.test_T06_one_unit_even")
    options = parser.parse_args()
    chosen = [case for case in table.CASES if not options.only or any(case.name in name for name in options.only)]
    self_test()
    add_tests()
    # Gloo's threads poll while another of them has the lock: it must not be interrupted by what wakes up.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    Rows.is_long = options.long
    Rows.results = Results(options.program.resolve(), chosen, options.long)
    unittest.main(argv=[sys.argv[0], *options.only])


if __name__ == "__main__":
    main()
