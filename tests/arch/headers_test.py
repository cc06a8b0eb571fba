#!/usr/bin/env python3
"""Compiles every header that does without LibTorch alone: each must include what it uses."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("proto", "base", "launcher", "agent", "worker", "fsdp_runtime")
TORCH = re.compile(r"#\s*include\s*<(torch|ATen|c10)/")
PROJECT = re.compile(r'#\s*include\s*[<"]([\w./-]+\.h)[>"]')


def needs_torch(header: Path, root: Path, known: dict[Path, bool]) -> bool:
    """True if the header reaches one of LibTorch's through any chain of project headers."""
    if header in known:
        return known[header]
    known[header] = False
    text = header.read_text()
    includes = [root / name for name in PROJECT.findall(text)]
    includes += [root / "fsdp_runtime/include" / name for name in PROJECT.findall(text)]
    known[header] = bool(TORCH.search(text)) or any(
        needs_torch(path, root, known) for path in includes if path.is_file())
    return known[header]


def compile_alone(header: Path, root: Path, build: Path, compiler: str) -> str:
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
               "-I", root, "-I", root / "fsdp_runtime/include", "-isystem", build / "generated", "-x", "c++", "-"]
    done = subprocess.run([str(part) for part in command], input=f'#include "{header}"\n', text=True,
                          capture_output=True)
    return "" if done.returncode == 0 else f"{header.relative_to(root)} does not compile alone:\n{done.stderr}"


def main() -> int:
    root, build, compiler = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    known: dict[Path, bool] = {}
    headers = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.h"))]
    headers = [path for path in headers if not needs_torch(path, root, known)]
    if not headers:
        sys.exit(f"found no headers under {root}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = list(filter(None, pool.map(lambda h: compile_alone(h, root, build, compiler), headers)))
    print("\n".join(complaints) or f"{len(headers)} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
