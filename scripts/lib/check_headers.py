#!/usr/bin/env python3
"""Compiles headers alone: each must include what it uses. All that do without LibTorch, and libfsdp's public ones.

usage: check_headers.py [--jobs N] ROOT BUILD [FILE...]     FILEs restrict which headers are compiled
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidy_database import PROJECT_INCLUDE, reaches_torch

FOLDERS = ("proto", "base", "launcher", "fsdpctl", "agent", "formats", "worker", "fsdp_runtime")
PUBLIC = "fsdp_runtime/include"


def includes_of(header: Path, root: Path) -> list[Path]:
    near = (base / name for name in PROJECT_INCLUDE.findall(header.read_text()) for base in (root, root / PUBLIC))
    return [path for path in near if path.is_file()]


def reached(header: Path, root: Path, known: dict[Path, set[Path]]) -> set[Path]:
    """What it includes, directly or not."""
    if header not in known:
        known[header] = set()
        for path in includes_of(header, root):
            known[header] |= {path} | reached(path, root, known)
    return known[header]


def chains(headers: list[Path], root: Path) -> list[list[Path]]:
    """The headers in as few rows as possible, in which each is included by the next: compiled in one unit, the first shows
    that it needs nothing before it, and the others find before them only what they include anyway. Dilworth: a largest
    matching of each header with one that includes it."""
    known: dict[Path, set[Path]] = {}
    wider = {path: [] for path in headers}
    for outer in headers:
        for inner in reached(outer, root, known):
            if inner in wider:
                wider[inner].append(outer)
    inner_of: dict[Path, Path] = {}

    def match(inner: Path, tried: set[Path]) -> bool:
        for outer in wider[inner]:
            if outer not in tried:
                tried.add(outer)
                if outer not in inner_of or match(inner_of[outer], tried):
                    inner_of[outer] = inner
                    return True
        return False

    for inner in headers:
        match(inner, set())
    outer_of = {inner: outer for outer, inner in inner_of.items()}
    rows = []
    for path in (path for path in headers if path not in inner_of):
        row = [path]
        while row[-1] in outer_of:
            row.append(outer_of[row[-1]])
        rows.append(row)
    return rows


def compile_unit(headers: list[Path], root: Path, build: Path, compiler: str, torch: list[str]) -> str:
    """Empty, or what the compiler says."""
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
               "-DUSE_DISTRIBUTED", "-I", root, "-I", root / PUBLIC, "-isystem", build / "generated"]
    command += [word for folder in torch for word in ("-isystem", folder)] + ["-x", "c++", "-"]
    text = "".join(f'#include "{header}"\n' for header in headers)
    done = subprocess.run([str(part) for part in command], input=text, text=True, capture_output=True)
    return "" if done.returncode == 0 else done.stderr or f"{compiler} ended with {done.returncode}\n"


def check(row: list[Path], root: Path, *how) -> str:
    """Empty, or which of them do not compile alone."""
    if not compile_unit(row, root, *how):
        return ""
    said = {header: compile_unit([header], root, *how) for header in row}
    return "\n".join(f"{header.relative_to(root)} does not compile alone:\n{text}" for header, text in said.items() if text)


def cached(build: Path, name: str) -> str:
    """A value of CMake's cache; empty if it is not there."""
    match = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return match.group(1) if match else ""


def main() -> int:
    words = sys.argv[1:]
    jobs = os.cpu_count() or 1
    if words[:1] == ["--jobs"]:
        jobs, words = int(words[1]), words[2:]
    root, build = Path(words[0]), Path(words[1])
    only = {(root / name).resolve() for name in words[2:]}
    compiler, include = cached(build, "CMAKE_CXX_COMPILER"), cached(build, "LibTorch_INCLUDE_DIR")
    torch = [include, f"{include}/torch/csrc/api/include"] if include else []
    known: dict[Path, bool] = {}
    headers = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.h"))]
    plain = [path for path in headers if not reaches_torch(path, root, known)]
    public = [path for path in headers if torch and path not in plain and path.is_relative_to(root / PUBLIC)]
    if not plain or (torch and not public):
        sys.exit(f"found no headers under {root}")
    # Those with LibTorch take ten times as long, so they come first; each needs a gigabyte.
    chosen = [[path for path in paths if not only or path in only] for paths in (public, plain)]
    todo = [(row, folders) for paths, folders in zip(chosen, (torch, [])) for row in chains(paths, root)]
    with ThreadPoolExecutor(jobs) as pool:
        answers = pool.map(lambda item: check(item[0], root, build, compiler, item[1]), todo)
    complaints = list(filter(None, answers))
    print("\n".join(complaints) or f"{sum(map(len, chosen))} headers compile alone, in {len(todo)} units")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
