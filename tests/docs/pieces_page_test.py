#!/usr/bin/env python3
"""The two programs that a page shows in pieces, in Python and in C++, print the same on two ranks.

Numbers agree to one in 100,000: a clipped gradient's norm is added up in another order, and which processor it is decides whether
that shows in what is printed.

usage: pieces_page_test.py [--page docs/FSDP2.md] --build BUILD --source PIECES.cc --program PROGRAM
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import snippets

ROOT = Path(__file__).resolve().parents[2]
# PyTorch's own teardown of Gloo aborts once in a while.
END = "\nimport os\nos._exit(0)\n"
RELATIVE = 1e-5


def lines_of(build: Path, folder: str, *program: str | Path) -> list[str]:
    """What the two ranks print in this folder, in an order that does not depend on which was first."""
    command = [build / "bin/fsdprun", "--standalone", "--nproc-per-node", "2", "--no-python", *program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {program}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return sorted(done.stdout.splitlines())


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def are_same(ours: str, theirs: str) -> bool:
    """Of two lines."""
    pairs = list(zip(ours.split(), theirs.split()))
    return len(ours.split()) == len(theirs.split()) and all(
        math.isclose(float(one), float(other), rel_tol=RELATIVE) if is_number(one) and is_number(other) else one == other
        for one, other in pairs)


def differences(ours: list[str], theirs: list[str]) -> list[str]:
    if len(ours) != len(theirs):
        return [f"{len(ours)} lines of C++, {len(theirs)} of Python"]
    return [f"C++: {one}   Python: {other}" for one, other in zip(ours, theirs) if not are_same(one, other)]


def check_itself() -> None:
    """That it can fail."""
    assert are_same("train 8 9.65134", "train 8 9.65133")
    assert not are_same("train 8 9.6515", "train 8 9.6513")
    assert not are_same("train 8 9.6", "train 7 9.6") and not are_same("a 1", "b 1") and not are_same("a 1", "a 1 2")
    assert differences(["a"], []) and differences(["a"], ["b"]) and not differences(["a 1"], ["a 1"])


def main() -> int:
    check_itself()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="the C++ program as this build extracted it")
    parser.add_argument("--program", type=Path, required=True, help="and as it linked it")
    parser.add_argument("--page", default="docs/FSDP2.md")
    options = parser.parse_args()
    page = options.page
    if snippets.cpp_of_pieces(snippets.pieces(ROOT, page, "cpp")) != options.source.read_text():
        sys.exit(f"{page} is not what was compiled: build again")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "page.py"
        script.write_text("\n".join(block.text for block in snippets.pieces(ROOT, page, "python")) + END)
        theirs = lines_of(options.build.resolve(), folder, sys.executable, script)
        ours = lines_of(options.build.resolve(), folder, options.program.resolve())
    if differences(ours, theirs) or not ours:
        print("\n".join([*differences(ours, theirs), "C++:", *ours, "Python:", *theirs]))
        return 1
    print(f"{len(ours)} lines are the same in both languages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
