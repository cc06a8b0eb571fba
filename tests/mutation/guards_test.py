#!/usr/bin/env python3
"""Holds scripts/guards against a made-up machine: which guards it finds, what it calls noticed, how it judges.

usage: guards_test.py ROOT COMPILER
"""

import sys
import tempfile
from pathlib import Path

ROOT, COMPILER = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))

import subprocess  # noqa: E402

import guard_harness as harness  # noqa: E402
import guard_rewriter as rewriter  # noqa: E402

SAMPLE = "tests/mutation/sample.cc"
FOUND = [
    ("IsShut()", "!is_open"),
    ("On(int)", "value == SAMPLE_ZERO || (value > 100 && !door_.is_open)"),
    ("On(int)", "value == SAMPLE_ZERO"),
    ("On(int)", "(value > 100 && !door_.is_open)"),
    ("On(int)", "value > 100"),
    ("On(int)", "!door_.is_open"),
    ("Sum()", "i < values_.size()"),
    ("Sum()", "sum < 0"),
    ("Absolute(int)", "value == 0"),
    ("Absolute(int)", "value > 0"),
    ("First()", "const int* first = values_.empty() ? nullptr : values_.data()"),
    ("First()", "values_.empty()"),
    ("Last()", "size > 0"),
    ("Rounds()", "rounds == 0"),
    ("Count()", "value > 10"),
    ("Count()", "!values_.empty()"),
    ("Count()", "any && i < values_.size()"),
    ("Count()", "any"),
    ("Count()", "i < values_.size()"),
]
# What the sample's own test overlooks: a function that it never calls, and a count that comes out equal by chance.
UNNOTICED = {("IsShut()", "!is_open"), ("Count()", "value > 10")}


def expect(holds: bool, what: object) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")


def equal_guards_of_a_function_are_told_apart() -> None:
    places = [rewriter.Place(0, 3, "F()"), rewriter.Place(4, 7, "F()"), rewriter.Place(8, 11, "G()")]
    named = rewriter.name_guards("a.cc", b"x>0\nx>0\nx>0\n", places, 7)
    expect([(g.number, g.line, g.occurrence) for g in named] == [(7, 1, 1), (8, 2, 2), (9, 3, 1)], named)


def build_sample(folder: Path) -> tuple[list[rewriter.Guard], Path]:
    source, places = (ROOT / SAMPLE).read_bytes(), rewriter.find_places(ROOT, SAMPLE)
    guards = rewriter.name_guards(SAMPLE, source, places, 1)
    expect([(g.function, g.text) for g in guards] == FOUND, "\n".join(map(str, guards)))
    for guard in guards:
        line = source.decode().splitlines()[guard.line - 1]
        expect(guard.text.split()[0] in line, f"{guard} is not on its line: {line}")
    rewritten, program = folder / "sample.cc", folder / "sample"
    rewritten.write_bytes(rewriter.rewrite(source, places, guards))
    subprocess.run([COMPILER, "-std=c++20", "-O1", f"-I{ROOT}", str(rewritten), "-o", str(program)], check=True)
    return guards, program


def only_what_the_test_overlooks_survives(guards: list[rewriter.Guard], program: Path) -> None:
    oracle = harness.Oracle("unit", "sample", (str(program),))
    expect(harness.run(oracle, 0, 5) == "", "the sample passes its own test")
    verdicts = {guard.key: harness.try_guard(guard.number, {oracle: 1}, False) for guard in guards}
    unnoticed = {(g.function, g.text) for g in guards if not verdicts[g.key].noticed}
    expect(unnoticed == UNNOTICED, unnoticed)
    told = {(g.function, g.text): verdicts[g.key].unit for g in guards}
    expect("values are summed" in told["Sum()", "sum < 0"], told)
    expect("does not end" in told["Rounds()", "rounds == 0"], told)
    expect("ends with" in told["Last()", "size > 0"], told)


def the_simulator_is_asked_where_unit_tests_are_silent() -> None:
    silent, loud = harness.Oracle("unit", "silent", ("true",)), harness.Oracle("unit", "loud", ("false",))
    simulator = harness.Oracle("sim", "seeds", ("sh", "-c", "echo 'VIOLATION at 1.5 s: ranks overlap'; exit 1"))
    verdict = harness.try_guard(1, {silent: 5, simulator: 5}, False)
    expect(verdict == harness.Verdict("", "seeds: ranks overlap"), verdict)
    expect(harness.try_guard(1, {loud: 5, simulator: 5}, False).sim is None, "asked although a unit test has noticed")
    expect(harness.try_guard(1, {loud: 5, simulator: 5}, True).sim == "seeds: ranks overlap", "not asked with --both")


def how_a_test_failed_is_told() -> None:
    output = "[ RUN      ] A.B\n[       OK ] A.B\n[ RUN      ] A.C\n"
    expect(harness.describe(1, output + "[  FAILED  ] A.C (1 ms)\n") == "A.C", "failed")
    expect(harness.describe(124, output) == "does not end in A.C", "hang")
    expect(harness.describe(134, output + "check failed: x\n") == "ends with 134 in A.C: check failed: x", "crash")


def judgement() -> None:
    guards = [rewriter.Guard(i, "a.cc", i, "F()", f"x > {i}", 1) for i in range(1, 21)]
    noticed, silent = harness.Verdict("A.B", None), harness.Verdict("", "")

    def entry(guard: rewriter.Guard, reason: str = "equivalent") -> dict[str, str]:
        return {"file": guard.file, "function": guard.function, "guard": guard.text, "reason": reason}

    def verdicts(survivors: int) -> dict:
        return {g.key: silent if g.number <= survivors else noticed for g in guards}

    cases = [
        ("all noticed", verdicts(0), [], None),
        ("an accepted survivor", verdicts(1), [entry(guards[0])], None),
        ("a survivor", verdicts(1), [], "no test notices that this guard is negated: a.cc:1 F(): x > 1"),
        ("out of date", verdicts(0), [entry(guards[0])], "accepted as unnoticed, but noticed by A.B"),
        ("no such guard", verdicts(0), [entry(guards[0]) | {"guard": "gone"}], "there is no such guard"),
        ("no reason", verdicts(1), [entry(guards[0], "")], "without a reason"),
        ("exactly 90 %", verdicts(2), [entry(g) for g in guards[:2]], None),
        ("below 90 %", verdicts(3), [entry(g) for g in guards[:3]], "only 17 of 20"),
        ("unfinished, too few so far", {guards[0].key: silent}, [entry(guards[0])], None),
    ]
    for name, known, accepted, complaint in cases:
        wrong = harness.judge(guards, known, accepted)
        expect(len(wrong) == (complaint is not None) and all(complaint in line for line in wrong), f"{name}: {wrong}")
    listed = harness.survivors(guards, verdicts(2), [entry(guards[1], "pure optimisation")])
    expect(len(listed) == 1 and "x > 2" in listed[0] and "pure optimisation" in listed[0], listed)
    text = " ".join(harness.summary(guards, {guards[0].key: silent, guards[1].key: noticed}))
    expect("20 guards, 2 negated, 1 noticed (50.0%)" in text and "18 are left" in text, text)


def an_interrupted_run_goes_on(folder: Path) -> None:
    guard = rewriter.Guard(1, "a.cc", 1, "F()", "x > 1", 1)
    file = folder / "results.jsonl"
    harness.Results(file, "inputs").add(guard, harness.Verdict("A.B", None))
    again = harness.Results(file, "inputs").verdicts
    expect(again == {guard.key: harness.Verdict("A.B", None)}, again)
    expect(harness.Results(file, "other inputs").verdicts == {}, "a verdict on other programs is kept")


def main() -> None:
    equal_guards_of_a_function_are_told_apart()
    the_simulator_is_asked_where_unit_tests_are_silent()
    how_a_test_failed_is_told()
    judgement()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        an_interrupted_run_goes_on(folder)
        only_what_the_test_overlooks_survives(*build_sample(folder))
    print(f"{len(FOUND)} guards of the sample found, {len(FOUND) - len(UNNOTICED)} noticed")


if __name__ == "__main__":
    main()
