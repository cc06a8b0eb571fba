#!/usr/bin/env python3
"""Writes a compile database that clang-tidy can read, and prints what to check of the sources that do without LibTorch.

usage: tidy_database.py ROOT COMPILE_COMMANDS OUTPUT [FILE...]
       tidy_database.py ROOT COMPILE_COMMANDS OUTPUT --batches-of FILE...

Without FILEs the database has the batches in which a unity build compiles the sources: the headers that they share are
parsed once. With FILEs, each of them alone; a FILE that is no such source is left out. With --batches-of, the batches
that have any of the FILEs.
"""

import json
import re
import sys
from pathlib import Path

PRODUCT = re.compile(r"^(proto|base|launcher|fsdpctl|agent|formats|worker|fsdp_runtime)/")
TORCH = re.compile(r"#\s*include\s*<(torch|ATen|c10)/")
PROJECT_INCLUDE = re.compile(r'#\s*include\s*[<"]([\w./-]+\.h)[>"]')
BATCH_INCLUDE = re.compile(r'^#include "([^"]+\.cc)"', re.M)
ONLY_GCC = re.compile(r"-Winvalid-pch|-include \S+cmake_pch\.hxx")


def reaches_torch(path: Path, root: Path, known: dict[Path, bool]) -> bool:
    if path in known:
        return known[path]
    known[path] = False
    text = path.read_text(errors="replace")
    near = [base / name for name in PROJECT_INCLUDE.findall(text) for base in (root, root / "fsdp_runtime/include")]
    known[path] = bool(TORCH.search(text)) or any(reaches_torch(p, root, known) for p in near if p.is_file())
    return known[path]


def sources_of(entry: dict) -> list[Path]:
    """The sources that an entry compiles: several if its file is a batch that CMake wrote."""
    file = Path(entry["file"])
    if file.suffix == ".cxx" and file.is_file():
        return [Path(name) for name in BATCH_INCLUDE.findall(file.read_text())]
    return [file]


def is_checked(path: Path, root: Path, known: dict[Path, bool]) -> bool:
    if not path.is_relative_to(root):
        return False
    name = str(path.relative_to(root))
    return bool(PRODUCT.match(name)) and not reaches_torch(path, root, known)


def with_file(entry: dict, file: Path) -> dict:
    """The entry's command, as clang reads it, for one of the entry's sources."""
    command = re.sub(r"^.*?(?=\S*(g\+\+|c\+\+|clang\+\+)\S* )", "", entry["command"])
    command = ONLY_GCC.sub("", command).replace(f"-c {entry['file']}", f"-c {file}")
    return {"directory": entry["directory"], "file": str(file), "command": command}


def main() -> None:
    root, source, output = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    names = sys.argv[4:]
    by_batch = names[:1] == ["--batches-of"]
    only = {(root / name).resolve() for name in names[by_batch:]}
    known: dict[Path, bool] = {}
    chosen = []
    for entry in json.loads(source.read_text()):
        sources = sources_of(entry)
        if by_batch and not only & set(sources):
            continue
        if only and not by_batch:
            chosen += [with_file(entry, path) for path in sources if path in only and is_checked(path, root, known)]
        elif sources and all(is_checked(path, root, known) for path in sources):
            chosen.append(with_file(entry, Path(entry["file"])))
    output.write_text(json.dumps(chosen))
    for file in sorted({entry["file"] for entry in chosen}):
        print(file)


if __name__ == "__main__":
    main()
