#!/usr/bin/env python3
"""Compiles headers alone: each must include what it uses. All that do without LibTorch, and libfsdp's public ones.

usage: headers_test.py ROOT BUILD COMPILER [LIBTORCH_INCLUDE_DIR...]     without the last, only those without LibTorch
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/lib"))
from tidy_database import reaches_torch  # noqa: E402

FOLDERS = ("proto", "base", "launcher", "agent", "worker", "fsdp_runtime")
PUBLIC = "fsdp_runtime/include"


def compile_alone(header: Path, root: Path, build: Path, compiler: str, torch: list[str]) -> str:
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
               "-DUSE_DISTRIBUTED", "-I", root, "-I", root / PUBLIC, "-isystem", build / "generated"]
    command += [word for folder in torch for word in ("-isystem", folder)] + ["-x", "c++", "-"]
    done = subprocess.run([str(part) for part in command], input=f'#include "{header}"\n', text=True,
                          capture_output=True)
    return "" if done.returncode == 0 else f"{header.relative_to(root)} does not compile alone:\n{done.stderr}"


def complaints_about(headers: list[Path], jobs: int, *arguments) -> list[str]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(filter(None, pool.map(lambda header: compile_alone(header, *arguments), headers)))


def main() -> int:
    root, build, compiler, torch = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    known: dict[Path, bool] = {}
    headers = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.h"))]
    plain = [path for path in headers if not reaches_torch(path, root, known)]
    public = [path for path in sorted((root / PUBLIC).rglob("*.h")) if path not in plain] if torch else []
    if not plain or (torch and not public):
        sys.exit(f"found no headers under {root}")
    complaints = complaints_about(plain, os.cpu_count() or 1, root, build, compiler, [])
    complaints += complaints_about(public, 2, root, build, compiler, torch)  # each takes a gigabyte
    print("\n".join(complaints) or f"{len(plain) + len(public)} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
