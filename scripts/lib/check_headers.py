#!/usr/bin/env python3
"""Compiles headers alone: each must include what it uses. All that do without LibTorch, and libfsdp's public ones.

usage: check_headers.py ROOT BUILD [FILE...]     FILEs restrict which headers are compiled
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidy_database import reaches_torch

FOLDERS = ("proto", "base", "launcher", "fsdpctl", "agent", "worker", "fsdp_runtime")
PUBLIC = "fsdp_runtime/include"


def compile_alone(header: Path, root: Path, build: Path, compiler: str, torch: list[str]) -> str:
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
               "-DUSE_DISTRIBUTED", "-I", root, "-I", root / PUBLIC, "-isystem", build / "generated"]
    command += [word for folder in torch for word in ("-isystem", folder)] + ["-x", "c++", "-"]
    done = subprocess.run([str(part) for part in command], input=f'#include "{header}"\n', text=True,
                          capture_output=True)
    return "" if done.returncode == 0 else f"{header.relative_to(root)} does not compile alone:\n{done.stderr}"


def cached(build: Path, name: str) -> str:
    """A value of CMake's cache; empty if it is not there."""
    match = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return match.group(1) if match else ""


def main() -> int:
    root, build = Path(sys.argv[1]), Path(sys.argv[2])
    only = {(root / name).resolve() for name in sys.argv[3:]}
    compiler, include = cached(build, "CMAKE_CXX_COMPILER"), cached(build, "LibTorch_INCLUDE_DIR")
    torch = [include, f"{include}/torch/csrc/api/include"] if include else []
    known: dict[Path, bool] = {}
    headers = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.h"))]
    plain = [path for path in headers if not reaches_torch(path, root, known)]
    public = [path for path in headers if torch and path not in plain and path.is_relative_to(root / PUBLIC)]
    if not plain or (torch and not public):
        sys.exit(f"found no headers under {root}")
    # Those with LibTorch take ten times as long, so they come first; each needs a gigabyte.
    todo = [(path, torch) for path in public] + [(path, []) for path in plain]
    todo = [(path, folders) for path, folders in todo if not only or path in only]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        answers = pool.map(lambda item: compile_alone(item[0], root, build, compiler, item[1]), todo)
    complaints = list(filter(None, answers))
    print("\n".join(complaints) or f"{len(todo)} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
