#!/usr/bin/env python3
"""The two programs that a page shows in pieces, in Python and in C++, print the same on two ranks.

usage: pieces_page_test.py [--page docs/FSDP2.md] --build BUILD --source PIECES.cc --program PROGRAM
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import snippets

ROOT = Path(__file__).resolve().parents[2]
# PyTorch's own teardown of Gloo aborts once in a while.
END = "\nimport os\nos._exit(0)\n"


def lines_of(build: Path, folder: str, *program: str | Path) -> list[str]:
    """What the two ranks print in this folder, in an order that does not depend on which was first."""
    command = [build / "bin/fsdprun", "--standalone", "--nproc-per-node", "2", "--no-python", *program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {program}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return sorted(done.stdout.splitlines())


def main() -> int:
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
    if ours != theirs or not ours:
        print("\n".join(["C++:", *ours, "Python:", *theirs]))
        return 1
    print(f"{len(ours)} lines are the same in both languages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
