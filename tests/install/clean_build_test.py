#!/usr/bin/env python3
"""A stranger's project: built with find_package(fsdp) on a clean Debian from what was installed, and trained by two ranks.

usage: clean_build_test.py BUILD consumer                          the change that the documentation shows
       clean_build_test.py BUILD example FOLDER [ARGUMENTS]        the example in FOLDER, whose program has the folder's name
       clean_build_test.py BUILD gpus                              the component nccl, on a machine with a driver and no GPU
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import clean_root
from installed import ROOT, Build

sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402

SKIPPED = 77
CONSUMER = Path(__file__).resolve().parent / "consumer"


class Complaint(Exception):
    """What went wrong, for the reader."""


class Project:
    """A project, compiled inside."""

    def __init__(self, build: Build, source: Path, tmp: Path, target: str = "all"):
        build.install(tmp / "installed", "fsdp_runtime")
        self.tmp = tmp
        self.folders = {source: "source", build.libtorch: "site/torch"}
        # The libraries that a wheel of LibTorch for CUDA needs, where its search path has them.
        nvidia = build.libtorch.parent / "nvidia"
        if nvidia.is_dir():
            self.folders[nvidia] = "site/nvidia"
        self.run("cmake -G Ninja -S source -B build -DCMAKE_PREFIX_PATH='/tmp/installed;/tmp/site/torch'\n"
                 f"cmake --build build -j 1 --target {target}")

    def run(self, script: str) -> str:
        limit = float(os.environ.get("FSDPRUN_TEST_TIMEOUT_S", "600")) * 0.9
        try:
            done = clean_root.run(self.tmp, self.folders, script, limit)
        except subprocess.TimeoutExpired as late:
            raise Complaint(f"did not end within {limit:.0f} s: {script}\n{(late.output or b'')[-5000:].decode(errors='replace')}") from None
        if done.returncode != 0:
            raise Complaint(f"exit code {done.returncode} of: {script}\n{done.stdout[-5000:]}")
        return done.stdout

    def train(self, program: str) -> list[str]:
        """What each of two ranks prints. `program` may have arguments."""
        common = f"WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}"
        ranks = [f"RANK={rank} LOCAL_RANK={rank} {common} build/{program} > rank{rank}.txt 2>&1" for rank in (0, 1)]
        self.run(f"{ranks[0]} & first=$!\n{ranks[1]} || {{ cat rank1.txt rank0.txt; exit 1; }}\nwait $first || {{ cat rank0.txt; exit 1; }}")
        return [(self.tmp / f"rank{rank}.txt").read_text() for rank in (0, 1)]


def changed_lines() -> tuple[list[str], list[str]]:
    """What after.cc has not of before.cc, and what it has instead."""
    text = subprocess.run(["diff", "-U0", CONSUMER / "before.cc", CONSUMER / "after.cc"], text=True, capture_output=True).stdout
    lines = [line for line in text.splitlines() if not re.match(r"---|\+\+\+|@@|[-+]//|\+#include", line)]
    return [line[1:] for line in lines if line[0] == "-"], [line[1:] for line in lines if line[0] == "+"]


def check_change() -> None:
    """Two changed lines beside the process group. (docs_changes holds what the documentation shows against the files.)"""
    removed, added = changed_lines()
    new = [line for line in added if "init_process_group" not in line]
    if len(removed) != 2 or len(new) != 2 or len(added) != 3:
        raise Complaint(f"not two lines: {removed} became {added}")


def check_consumer(build: Build, tmp: Path) -> None:
    """The change, and the same losses on both ranks as before it."""
    check_change()
    project = Project(build, CONSUMER, tmp)
    project.run("test \"$(build/gpus)\" = '0 GPUs'")
    before = project.run("build/before")
    losses = [float(text) for text in re.findall(r"loss (\S+)", before)]
    if len(losses) != 20 or not losses[-1] < losses[0] / 2:
        raise Complaint(f"before.cc learns nothing: {before}")
    for rank, after in enumerate(project.train("after")):
        if after != before:
            raise Complaint(f"rank {rank} of after.cc prints\n{after}instead of before.cc's\n{before}")


def check_example(build: Build, tmp: Path, source: Path, arguments: list[str]) -> None:
    """It trains: the losses of its steps, which rank 0 prints, fall."""
    outputs = Project(build, source, tmp).train(" ".join([source.name, *arguments]))
    losses = [float(text) for text in re.findall(r"^step \d+: loss (\S+)$", outputs[0], re.M)]
    third = len(losses) // 3
    if third == 0 or not sum(losses[-third:]) < sum(losses[:third]):
        raise Complaint(f"the losses of the last third of the steps are not below those of the first: {outputs}")
    print(outputs[0])


def check_gpus(build: Build, tmp: Path) -> None:
    """libfsdp finds its backend and LibTorch's CUDA libraries where they are installed: they say that there is no GPU."""
    project = Project(build, CONSUMER, tmp, "gpus")
    if not (tmp / "build/bundled.so").is_file():
        raise Complaint("find_package(fsdp) has no component nccl, or fsdp::nccl names no file")
    said = project.run("touch /dev/nvidiactl\nbuild/gpus")
    if "0 GPUs\n" not in said or "none is visible" not in said:
        raise Complaint(f"not the answer of LibTorch's CUDA libraries: {said}")


def main() -> int:
    if reason := clean_root.reason_to_skip():
        print(f"skipped: {reason}")
        return SKIPPED
    build, what = Build(Path(sys.argv[1]).resolve()), sys.argv[2]
    with tempfile.TemporaryDirectory() as tmp:
        try:
            if what == "example":
                check_example(build, Path(tmp), Path(sys.argv[3]).resolve(), sys.argv[4:])
            else:
                {"consumer": check_consumer, "gpus": check_gpus}[what](build, Path(tmp))
        except Complaint as complaint:
            print(complaint)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
