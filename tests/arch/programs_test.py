#!/usr/bin/env python3
"""Reads the NEEDED entries of the built programs, and the symbols of one that is linked statically: the two halves must not
meet in one process."""

import re
import subprocess
import sys
from pathlib import Path

TORCH = r"lib(torch|c10|shm)"
RPC = r"lib(grpc|gpr|protobuf|absl_|address_sorting|upb)"
# What a program may need, and what it must not.
FORBIDDEN = {"fsdprun": TORCH, "fsdp-agent": TORCH, "fsdp-keeper": f"{TORCH}|{RPC}", "fsdp-train": RPC}
KEEPER_MAY_NEED = r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so"

# Names of gRPC, Protobuf, Abseil and LibTorch as nm -C shows them: a keeper that is linked statically needs no library.
KEEPER_MUST_NOT_HAVE = r"\s[A-Za-z] (grpc|gpr_|google::protobuf::|absl::|upb|c10::|at::|torch::)"


def needed(path: Path) -> list[str]:
    """The shared libraries that the ELF file asks for by name."""
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def violations(program: str, libraries: list[str]) -> list[str]:
    wrong = [lib for lib in libraries if re.match(FORBIDDEN[program], lib)]
    if program == "fsdp-keeper":
        wrong += [lib for lib in libraries if not re.match(KEEPER_MAY_NEED, lib) and lib not in wrong]
    return [f"{program} needs {lib}" for lib in wrong]


def symbols(path: Path) -> list[str]:
    return subprocess.run(["nm", "-C", path], check=True, capture_output=True, text=True).stdout.splitlines()


def keeper_violations(lines: list[str]) -> list[str]:
    if not any(re.search(r"\s[Tt] main$", line) for line in lines):
        return ["fsdp-keeper has no symbol main: nothing can be said of what is in it"]
    return [f"fsdp-keeper has {line.split(maxsplit=2)[-1]}" for line in lines if re.search(KEEPER_MUST_NOT_HAVE, line)]


def self_test() -> None:
    own = "000401000 T main"
    assert keeper_violations([]) and keeper_violations([own, "000401010 W absl::Mutex::Lock()"]) and keeper_violations([own, "000402000 T grpc_init"])
    assert not keeper_violations([own, "000401010 t fsdprun::Run(absl::Status)"])
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
        if program == "fsdp-keeper":
            problems += keeper_violations(symbols(bin_dir / program))
    # libfsdp, where it is a library of its own, is held to the worker's rule.
    for library in sorted(bin_dir.parent.rglob("libfsdp*.so*")):
        if library.is_file() and not library.is_symlink():
            problems += [f"{library.name} needs {lib}" for lib in needed(library) if re.match(RPC, lib)]
    print("\n".join(problems) or "the programs need only what they may")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
