#!/usr/bin/env python3
"""Builds and runs what needs one NVIDIA GPU, most important first, within the minutes given, and writes one report: see scripts/gpu."""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import gpu_pack
from gpu_report import BUILD_LOG, TESTS_LOG, Report, Versions

BEGIN = time.monotonic()  # the minutes are those of the process
ROOT = Path(__file__).resolve().parents[2]
IS_PACK = (ROOT / "third_party").exists()
NO_GPU = 3  # the exit code
# One of them is there where a process can use a GPU: what libfsdp looks at.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")
BUILD_SHARE = 0.7  # of the time, at most
RESERVE_S = 5  # for the report
TAIL = 3000  # characters of output that the report has of a part that did not pass
LOG_LIMIT = 2 << 20  # bytes of each log
SKIPPED = 77


@dataclass
class Part:
    """One command with a limit of its own. What it writes to `output`, JSON, goes into the report."""

    name: str
    command: list[str]
    limit_s: float
    what: str
    output: str = ""
    needs: Path | None = None  # a program
    log: Path | None = None  # what it prints is added to


@dataclass
class Plan:
    device: str
    tree: Path  # the sources
    build: Path
    report: Path
    environment: dict[str, str] = field(default_factory=dict)

    def test(self, name: str) -> Path:
        return self.build / "tests" / name

    def tests(self) -> list[tuple[str, str]]:
        return [test for test in TESTS if self.device == "cuda" or test[0] in WITHOUT_GPU]

    def program(self) -> Path:
        return self.build / "bin/gpu_train"

    def script(self, path: str, *arguments: str) -> list[str]:
        return [sys.executable, str(self.tree / path), "--device", self.device, "--program", str(self.program()), *arguments]


# The tests in the order in which they run; each of their cases is a process.
TESTS = [
    ("fsdp_gpu_nccl_test", "NCCL at one rank, its collectives counted; peers that never arrive"),
    ("fsdp_gpu_engine_test", "steady state: addresses and allocations; a step as a CUDA graph"),
    ("fsdp_gpu_order_test", "late lanes on real streams; activations that are offloaded"),
    ("fsdp_gpu_fused_test", "the fused operations' kernels beside the reference"),
    ("fsdp_mirrored_collectives_test", "the group of two on one device, on the CPU"),
]
WITHOUT_GPU = ("fsdp_mirrored_collectives_test",)
CASE_LIMIT_S = 90


def parity(plan: Plan) -> Part:
    output = str(plan.report / "parity.json")
    return Part("parity", plan.script("tests/gpu/gpu_parity.py", "--output", output), 240,
                "each row of training at one rank, beside PyTorch's FSDP2", output, plan.program(), plan.report / TESTS_LOG)


def benchmark(plan: Plan, seconds: float) -> Part:
    output = str(plan.report / "benchmark.json")
    return Part("benchmark", plan.script("tests/bench/bench_gpu.py", "--output", output, "--seconds", f"{seconds:.0f}"), seconds + 5,
                "a Llama of 1.1 billion parameters, beside the bare model and FSDP2", output, plan.program(), plan.report / TESTS_LOG)


def excerpt(text: str, status: str) -> str:
    """The end of it; before that, of what failed and printed more, the first errors."""
    if status == "passed" or len(text) <= TAIL:
        return text[-TAIL:]
    errors = [line[:300] for line in text[:-TAIL].splitlines() if re.search(r"\berror\b|undefined reference|FAILED", line, re.IGNORECASE)][:20]
    return "\n".join([*(["first errors:", *errors] if errors else []), "end of what it printed:", text[-TAIL:]])


def shorten(log: Path) -> None:
    """Where errors begin and what was last is kept."""
    data = log.read_bytes()
    if len(data) > LOG_LIMIT:
        half = LOG_LIMIT // 2
        log.write_bytes(data[:half] + f"\n[{len(data) - 2 * half} bytes left out]\n".encode() + data[-half:])


def status_of(command: list[str], environment: dict[str, str], output: IO[bytes], limit_s: float) -> str:
    """Runs it, and ends all that it has started if it takes longer."""
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=limit_s)
        return {0: "passed", SKIPPED: "skipped"}.get(code, f"failed ({code})")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return f"timed out ({limit_s:.0f} s)"


def run(part: Part, environment: dict[str, str], left_s: float) -> dict:
    """A record for the report. Nothing of what `part` started is left."""
    record = {"name": part.name, "what": part.what}
    if part.needs and not part.needs.exists():
        return {**record, "status": "not built", "seconds": 0, "output": f"there is no {part.needs}"}
    limit = min(part.limit_s, left_s)
    if limit < 3:
        return {**record, "status": "not reached", "seconds": 0, "output": ""}
    begin = time.monotonic()
    # Into a file, which is there even if this process is ended in the middle of it.
    with open(part.log, "a+b") if part.log else tempfile.TemporaryFile() as output:
        if part.log:
            output.write(f"--- {part.name}: {' '.join(part.command)}\n".encode())
            output.flush()
        start = output.seek(0, os.SEEK_END)
        status = status_of(part.command, {**os.environ, **environment}, output, limit)
        output.seek(start)
        text = output.read().decode(errors="replace")
    if part.log:
        shorten(part.log)
    return {**record, "status": status, "seconds": round(time.monotonic() - begin, 1), "output": excerpt(text, status)}


def cases_of(program: Path, environment: dict[str, str], limit_s: float) -> list[str]:
    try:
        done = subprocess.run([str(program), "--gtest_list_tests"], capture_output=True, text=True, check=False,
                              timeout=max(min(60, limit_s), 0.1), env={**os.environ, **environment})
    except (OSError, subprocess.TimeoutExpired):
        return []
    cases, suite = [], ""
    for line in done.stdout.splitlines():
        if re.fullmatch(r"\S+\.", line):
            suite = line
        elif line.startswith("  ") and suite:
            cases.append(suite + line.split()[0])
    return cases


def test_parts(plan: Plan, name: str, what: str, left_s: float) -> list[Part]:
    program, log = plan.test(name), plan.report / TESTS_LOG
    cases = cases_of(program, plan.environment, left_s) if program.exists() else []
    if not cases:  # one record that says so
        return [Part(name, [str(program)], CASE_LIMIT_S, what, needs=program, log=log)]
    return [Part(f"{name}: {case}", [str(program), f"--gtest_filter={case}"], CASE_LIMIT_S, what, log=log) for case in cases]


def jobs() -> int:
    """A compiler that reads LibTorch's headers needs 1.5 GB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory >> 31))


def torch_folder() -> Path:
    """Of this Python, which does not load it for that."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        sys.exit(f"gpu: {sys.executable} has no torch, whose libraries and headers are needed")
    return Path(found.submodule_search_locations[0]).resolve()


def build_parts(plan: Plan, limit_s: float) -> list[Part]:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(plan.tree), "-B", str(plan.build), *generator, "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O2", f"-DTORCH_DIR={torch_folder()}"]
    # What can be built is built, whatever cannot; but not all of what has one cause.
    build = ["cmake", "--build", str(plan.build), "-j", str(jobs()), "--target", "gpu_tests", "--", "-k", *(["20"] if generator else [])]
    log = plan.report / BUILD_LOG
    return [Part("configure", configure, 120, "CMake", log=log), Part("build", build, limit_s, f"{jobs()} jobs", log=log)]


def make_plan(options: argparse.Namespace) -> Plan:
    report = (options.report or ROOT / "build/gpu").resolve()
    tree = ROOT if IS_PACK else ROOT / "build/gpu/tree"
    build = options.programs.resolve() if options.programs else ROOT / ("build" if IS_PACK else "build/gpu/build")
    if options.programs:
        tree = ROOT
    # Kernels of cuBLAS that give the same bits each time.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONDONTWRITEBYTECODE": "1"}
    return Plan(options.device, tree, build, report, environment)


def dry_run(plan: Plan, options: argparse.Namespace) -> int:
    print(f"within {options.minutes:g} minutes, with the torch of {sys.executable}, in {plan.build}; report in {plan.report}:")
    if not options.programs:
        print("  configure, build    libfsdp with NCCL, gpu_train and the tests (target gpu_tests)")
    scripts = [(part.name, part.what) for part in (parity(plan), benchmark(plan, 0))]
    tests = plan.tests()
    for name, what in [] if options.build_only else [*tests[:1], scripts[0], *tests[1:], scripts[1]]:
        print(f"  {name:<32} {what}")
    return 0


def run_all(plan: Plan, options: argparse.Namespace, report: Report) -> None:
    versions = Versions()
    deadline = BEGIN + options.minutes * 60 - RESERVE_S

    def left() -> float:
        return deadline - time.monotonic()

    def run_and_note(parts: list[Part]) -> None:
        for part in parts:
            report.add(run(part, plan.environment, left()), part.output)

    if not options.programs:
        if not IS_PACK:
            gpu_pack.unpacked(gpu_pack.project_entries() + gpu_pack.system_entries(), plan.tree)
        run_and_note(build_parts(plan, options.minutes * 60 * (1 if options.build_only else BUILD_SHARE)))
    report.know(versions.found(left()))
    if options.build_only:
        return
    tests = plan.tests()
    run_and_note(test_parts(plan, *tests[0], left()))
    run_and_note([parity(plan)])
    for name, what in tests[1:]:
        run_and_note(test_parts(plan, name, what, left()))
    run_and_note([benchmark(plan, max(left() - 5, 0))])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="for all of it, the build included (30)")
    parser.add_argument("--report", type=Path, help="where report.json and report.md are written (build/gpu)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: what of it needs no GPU, to try a pack")
    parser.add_argument("--programs", type=Path, metavar="BUILD", help="does not build, and takes what has been built there")
    parser.add_argument("--build-only", action="store_true", help="ends behind the build, which a later run finds done")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be run")
    options = parser.parse_args()
    if options.programs and options.build_only:
        parser.error("--programs and --build-only: one of them expected")
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes:g}: more than 0, and at most a day, expected")
    return options


def main() -> int:
    options = parse_options()
    plan = make_plan(options)
    if options.dry_run:
        return dry_run(plan, options)
    if options.device == "cuda" and not any(os.path.exists(path) for path in DRIVER_FILES):
        print(f"gpu: this machine has no NVIDIA GPU that can be used ({DRIVER_FILES[0]} is not there): nothing was built or run. "
              "Run it where there is one: scripts/gpu pack FILE.tar.xz makes what such a machine needs", file=sys.stderr)
        return NO_GPU
    torch_folder()  # both sides of the comparisons need it
    plan.report.mkdir(parents=True, exist_ok=True)
    report = Report(plan.report, plan.device, ROOT, BEGIN)
    run_all(plan, options, report)
    report.end()
    print(f"report: {plan.report / 'report.md'}")
    return 0 if report.has_passed() else 1


if __name__ == "__main__":
    sys.exit(main())
