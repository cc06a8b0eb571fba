#!/usr/bin/env python3
"""Writes a compile database that clang-tidy can read, and prints the project's sources in it that do without LibTorch.

usage: tidy_database.py ROOT COMPILE_COMMANDS OUTPUT [FILE...]     FILEs restrict what is printed
"""

import json
import re
import sys
from pathlib import Path

PRODUCT = re.compile(r"^(proto|base|launcher|agent|worker|fsdp_runtime)/")
# clang 14 has no _Float16 for plain x86-64, which g++ 12 compiles this file with.
BEYOND_CLANG_14 = {"fsdp_runtime/shm/reduce.cc"}
TORCH = re.compile(r"#\s*include\s*<(torch|ATen|c10)/")
PROJECT_INCLUDE = re.compile(r'#\s*include\s*[<"]([\w./-]+\.h)[>"]')


def reaches_torch(path: Path, root: Path, known: dict[Path, bool]) -> bool:
    if path in known:
        return known[path]
    known[path] = False
    text = path.read_text(errors="replace")
    near = [base / name for name in PROJECT_INCLUDE.findall(text) for base in (root, root / "fsdp_runtime/include")]
    known[path] = bool(TORCH.search(text)) or any(reaches_torch(p, root, known) for p in near if p.is_file())
    return known[path]


def main() -> None:
    root, source, output = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    only = {str((root / name).resolve()) for name in sys.argv[4:]}
    entries, known = [], {}
    for entry in json.loads(source.read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(root) or not PRODUCT.match(str(path.relative_to(root))):
            continue
        if str(path.relative_to(root)) in BEYOND_CLANG_14:
            continue
        if reaches_torch(path, root, known) or (only and str(path) not in only):
            continue
        command = re.sub(r"^.*?(?=\S*(g\+\+|c\+\+|clang\+\+)\S* )", "", entry["command"])
        command = re.sub(r"-fpch-preprocess|-Winvalid-pch|-include \S+cmake_pch\.hxx", "", command)
        entries.append({"directory": entry["directory"], "file": str(path), "command": command})
    output.write_text(json.dumps(entries))
    print("\n".join(sorted({entry["file"] for entry in entries})))


if __name__ == "__main__":
    main()
