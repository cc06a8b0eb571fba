#!/usr/bin/env python3
"""Reads the NEEDED entries of the built programs and libraries, and the symbols of those that may have one half linked into
them: the two halves must not meet in one process."""

import re
import subprocess
import sys
from pathlib import Path

TORCH = r"lib(torch|c10|shm)"
RPC = r"lib(grpc|gpr|protobuf|absl_|address_sorting|upb)"
# What a program may need, and what it must not.
FORBIDDEN = {"fsdprun": TORCH, "fsdp-agent": TORCH, "fsdpctl": TORCH, "fsdp-keeper": f"{TORCH}|{RPC}",
             "fsdp-stacks": f"{TORCH}|{RPC}",
             # It exports a variable that LibTorch has, too; Note [Two libraries with one name] in worker/tokenizers/sentencepiece.
             "fsdp-train": f"{RPC}|libsentencepiece"}
# With gRPC as an archive these are archives, too: another library that needs one of them would bring a second copy.
CXX = r"lib(stdc\+\+|gcc_s|re2)\."
KEEPER_MAY_NEED = r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so"

# Names of gRPC, Protobuf, Abseil and LibTorch as nm -C shows them: who has linked an archive needs no library.
RPC_NAMES = "grpc|gpr_|google::protobuf::|absl::|upb"
TORCH_NAMES = "c10::|at::|torch::"
MUST_NOT_HAVE = {"fsdp-keeper": f"{RPC_NAMES}|{TORCH_NAMES}", "fsdp-train": RPC_NAMES}


def needed(path: Path) -> list[str]:
    """The shared libraries that the ELF file asks for by name."""
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def has_loader(path: Path) -> bool:
    """Whether the kernel starts the dynamic linker for it."""
    return "INTERP" in subprocess.run(["readelf", "-lW", path], check=True, capture_output=True, text=True).stdout


def violations_without_loader(program: str, libraries: list[str]) -> list[str]:
    return [f"{program} needs {lib}, which nobody loads: options of a static and of a shared link were mixed" for lib in libraries]


def violations(program: str, libraries: list[str]) -> list[str]:
    wrong = [lib for lib in libraries if re.match(FORBIDDEN[program], lib)]
    if program == "fsdp-keeper":
        wrong += [lib for lib in libraries if not re.match(KEEPER_MAY_NEED, lib) and lib not in wrong]
    return [f"{program} needs {lib}" for lib in wrong]


def symbols(path: Path, *options: str) -> list[str]:
    return subprocess.run(["nm", "-C", *options, path], check=True, capture_output=True, text=True).stdout.splitlines()


def having(name: str, lines: list[str], forbidden: str) -> list[str]:
    """`lines` of nm: what the file has, and what it needs of others (U)."""
    return [f"{name} has {line.strip()}" for line in lines if re.search(rf"\s[A-Za-z] ({forbidden})", line)]


def violations_within(program: str, lines: list[str]) -> list[str]:
    if not any(re.search(r"\s[Tt] main$", line) for line in lines):
        return [f"{program} has no symbol main: nothing can be said of what is in it"]
    return having(program, lines, MUST_NOT_HAVE[program])


def violations_within_library(name: str, lines: list[str]) -> list[str]:
    """`lines` of nm -D. libfsdp is held to the worker's rule, where it is a library of its own."""
    if not any(re.search(r"\s[TWV] fsdp", line) for line in lines):
        return [f"{name} exports nothing of fsdp: nothing can be said of what is in it"]
    return having(name, lines, RPC_NAMES)


def links_archives(cache: str) -> bool:
    """Whether CMakeCache.txt says that gRPC and what belongs to it is in the programs."""
    return re.search(r"^FSDPRUN_STATIC_RPC:[A-Z]+=(ON|1|TRUE|YES|Y)$", cache, re.MULTILINE | re.IGNORECASE) is not None


def violations_of_archives(program: str, libraries: list[str]) -> list[str]:
    """Half of that code shared is two copies of it in one process."""
    return [f"{program} needs {lib}, although FSDPRUN_STATIC_RPC is ON" for lib in libraries if re.match(f"{RPC}|{CXX}", lib)]


def self_test() -> None:
    own = "000401000 T main"
    keeper, trainer = (lambda *lines, p=p: violations_within(p, list(lines)) for p in ("fsdp-keeper", "fsdp-train"))
    assert keeper() and keeper(own, "000401010 W absl::Mutex::Lock()") and keeper(own, "000402000 T grpc_init")
    assert not keeper(own, "000401010 t fsdprun::Run(absl::Status)")
    assert violations_within_library("libfsdp.so", []) and not violations_within_library("libfsdp.so", ["0001 T fsdp::Init()"])
    assert violations_within_library("libfsdp.so", ["0001 T fsdp::Init()", "                 U grpc_init"])
    assert violations_within_library("libfsdp.so", ["0001 T fsdp::Init()", "0002 W absl::Mutex::Lock()@@V1"])
    assert links_archives("A:BOOL=ON\nFSDPRUN_STATIC_RPC:BOOL=ON\n") and not links_archives("FSDPRUN_STATIC_RPC:BOOL=OFF\n")
    assert violations_of_archives("fsdprun", ["libprotobuf.so.32"]) and not violations_of_archives("fsdprun", ["libssl.so.3"])
    assert violations_of_archives("fsdprun", ["libstdc++.so.6"]) and violations_without_loader("fsdp-keeper", ["libc.so.6"])
    assert trainer() and trainer(own, "000402000 T grpc_init") and not trainer(own, "000402000 W at::Tensor::size(long)")
    assert violations("fsdprun", ["libc.so.6", "libtorch_cpu.so"])
    assert violations("fsdp-train", ["libgrpc++.so.1.51"]) and violations("fsdp-train", ["libsentencepiece.so.0"])
    assert violations("fsdp-keeper", ["libabsl_base.so.2"]) and violations("fsdp-keeper", ["libz.so.1"])
    assert not violations("fsdp-keeper", ["libc.so.6", "libstdc++.so.6"])


def main() -> int:
    self_test()
    bin_dir, programs = Path(sys.argv[1]), sys.argv[2:]
    problems = []
    has_archives = links_archives((bin_dir.parent / "CMakeCache.txt").read_text())
    for program in programs:
        if not (bin_dir / program).exists():
            problems.append(f"{bin_dir / program} was not built")
            continue
        libraries = needed(bin_dir / program)
        problems += violations(program, libraries)
        if not has_loader(bin_dir / program):
            problems += violations_without_loader(program, libraries)
        if has_archives and program != "fsdp-train":
            problems += violations_of_archives(program, libraries)
        print(f"{program}: {' '.join(libraries)}")
        if program in MUST_NOT_HAVE:
            problems += violations_within(program, symbols(bin_dir / program))
    for library in sorted(bin_dir.parent.rglob("libfsdp*.so*")):
        if library.is_file() and not library.is_symlink():
            problems += [f"{library.name} needs {lib}" for lib in needed(library) if re.match(RPC, lib)]
            problems += violations_within_library(library.name, symbols(library, "-D"))
    print("\n".join(problems) or "the programs need only what they may")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
