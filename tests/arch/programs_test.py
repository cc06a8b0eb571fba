#!/usr/bin/env python3
"""Reads the NEEDED entries of the built programs: the two halves must not meet in one process."""

import re
import subprocess
import sys
from pathlib import Path

TORCH = r"lib(torch|c10|shm)"
RPC = r"lib(grpc|gpr|protobuf|absl_|address_sorting|upb)"
# What a program may need, and what it must not.
FORBIDDEN = {"fsdprun": TORCH, "fsdp-agent": TORCH, "fsdp-keeper": f"{TORCH}|{RPC}", "fsdp-train": RPC}
KEEPER_MAY_NEED = r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so"


def needed(path: Path) -> list[str]:
    """The shared libraries that the ELF file asks for by name."""
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def violations(program: str, libraries: list[str]) -> list[str]:
    wrong = [lib for lib in libraries if re.match(FORBIDDEN[program], lib)]
    if program == "fsdp-keeper":
        wrong += [lib for lib in libraries if not re.match(KEEPER_MAY_NEED, lib) and lib not in wrong]
    return [f"{program} needs {lib}" for lib in wrong]


def self_test() -> None:
    assert violations("fsdprun", ["libc.so.6", "libtorch_cpu.so"])
    assert violations("fsdp-train", ["libgrpc++.so.1.51"])
    assert violations("fsdp-keeper", ["libabsl_base.so.2"]) and violations("fsdp-keeper", ["libz.so.1"])
    assert not violations("fsdp-keeper", ["libc.so.6", "libstdc++.so.6"])


def main() -> int:
    self_test()
    bin_dir, programs = Path(sys.argv[1]), sys.argv[2:]
    problems = []
    for program in programs:
        if not (bin_dir / program).exists():
            problems.append(f"{bin_dir / program} was not built")
            continue
        libraries = needed(bin_dir / program)
        problems += violations(program, libraries)
        print(f"{program}: {' '.join(libraries)}")
    # libfsdp, where it is a library of its own, is held to the worker's rule.
    for library in sorted(bin_dir.parent.rglob("libfsdp*.so*")):
        if library.is_file() and not library.is_symlink():
            problems += [f"{library.name} needs {lib}" for lib in needed(library) if re.match(RPC, lib)]
    print("\n".join(problems) or "the programs need only what they may")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
