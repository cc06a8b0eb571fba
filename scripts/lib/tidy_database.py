#!/usr/bin/env python3
"""Writes a compile database that clang-tidy can read, and prints what to check of the sources that do without LibTorch.

usage: tidy_database.py ROOT COMPILE_COMMANDS OUTPUT [FILE...]
       tidy_database.py ROOT COMPILE_COMMANDS OUTPUT --batches-of FILE...
       tidy_database.py ROOT COMPILE_COMMANDS OUTPUT --all-of FILE...

Without FILEs the database has the batches in which a unity build compiles the sources: the headers that they share are
parsed once. Of a batch with a source that needs LibTorch, the others are looked at each alone. With FILEs, each of them
alone; a FILE that is no such source is left out. With --batches-of, the batches that have any of the FILEs. With --all-of,
what there is without FILEs; that one of the FILEs is not compiled at all is an error.
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


def chosen_entries(entries: list[dict], root: Path, only: set[Path] | None, alone: bool) -> list[dict]:
    """What to check: of all sources, or of `only`; each alone, or in its batch, if all of that can be checked."""
    known: dict[Path, bool] = {}
    chosen = []
    for entry in entries:
        sources = sources_of(entry)
        checked = [path for path in sources if is_checked(path, root, known)]
        named = [path for path in checked if only is None or path in only]
        if named and checked == sources and not alone:
            chosen.append(with_file(entry, Path(entry["file"])))
        else:
            chosen += [with_file(entry, path) for path in named]
    return chosen


def not_compiled(entries: list[dict], root: Path, files: set[Path]) -> list[str]:
    """Those of the files that should be checked, and that no entry compiles."""
    compiled = {path for entry in entries for path in sources_of(entry)}
    return sorted(str(path.relative_to(root)) for path in files - compiled if is_checked(path, root, {}))


def main() -> None:
    root, source, output = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    names = sys.argv[4:]
    option = names.pop(0) if names[:1] in (["--batches-of"], ["--all-of"]) else ""
    entries = json.loads(source.read_text())
    only = {(root / name).resolve() for name in names} if names or option == "--batches-of" else None
    if option == "--all-of":
        missing = not_compiled(entries, root, only or set())
        if missing:
            sys.exit(f"{source} does not compile {', '.join(missing)}: list them in a CMakeLists.txt, or remove them")
        only = None
    chosen = chosen_entries(entries, root, only, alone=option == "" and only is not None)
    output.write_text(json.dumps(chosen))
    for file in sorted({entry["file"] for entry in chosen}):
        print(file)


if __name__ == "__main__":
    main()
