#!/usr/bin/env python3
"""Packs what the tests and benchmarks of one GPU need on a machine that has nothing of this project: see scripts/gpu.

gpu_pack.py FILE.tar.xz | --dry-run
"""

import argparse
import fnmatch
import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "fsdprun-gpu"  # the folder that the pack unpacks to
# Of the project's files: libfsdp, the models of fsdp-train, and the tests and benchmarks on them.
SOURCES = ("LICENSE", "cmake/FindLibTorch.cmake", "cmake/FindLibdeflate.cmake", "cmake/FsdprunTargets.cmake", "cmake/FsdprunTests.cmake",
           "cmake/FsdprunToolchain.cmake", "fsdp_runtime/*", "formats/json/*", "formats/models/*", "proto/CMakeLists.txt",
           "proto/lone_worker.h", "proto/release.h", "proto/standard_streams.h", "proto/worker_*", "scripts/gpu", "scripts/lib/common.bash", "scripts/lib/gpu_*.py", "tests/bench/bench_gpu.py",
           "tests/gpu/*", "tests/parity/llama_reference.py", "tests/test_main.cc", "tests/test_pch.cc", "tests/torch_test_pch.h",
           "tests/unit/fsdp_runtime/engine/*.h", "tests/unit/fsdp_runtime/streams/*.h",
           "tests/unit/fsdp_runtime/streams/gpu_order_test.cc", "tests/unit/worker/models/fused/cuda/fused_on_device_test.cc",
           "worker/models/*")
PROJECT = "tests/gpu/pack/CMakeLists.txt"  # becomes the pack's own
# Of the machine's packages: where they lie, what of it is taken, and what that is called in third_party/.
SYSTEM_FOLDERS = (("/usr/include", ("libdeflate.h", "nlohmann/*"), "include"),
                  ("/usr/src/googletest", ("*/CMakeLists.txt", "*/cmake/*", "*/include/*", "*/src/*", "CMakeLists.txt"), "googletest"))
ARCHIVES = ("/usr/lib/x86_64-linux-gnu/libdeflate.a", "/usr/lib/aarch64-linux-gnu/libdeflate.a")


@dataclass(frozen=True)
class Entry:
    source: Path
    path: str  # in the pack's folder


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def project_entries(root: Path = ROOT) -> list[Entry]:
    """Of the files that git knows, new ones that are not ignored among them."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True)
    paths = [path for path in sorted(set(listed.stdout.splitlines())) if matches(path, SOURCES) and (root / path).is_file()]
    return [Entry(root / path, path) for path in paths if path != PROJECT] + [Entry(root / PROJECT, "CMakeLists.txt")]


def system_entries() -> list[Entry]:
    entries = []
    for folder, patterns, name in SYSTEM_FOLDERS:
        for source in sorted(Path(folder).glob("*")):
            for path in [source, *sorted(source.rglob("*"))]:
                inside = str(path.relative_to(folder))
                if path.is_file() and matches(inside, patterns):
                    entries.append(Entry(path, f"third_party/{name}/{inside}"))
    entries += [Entry(Path(path), "third_party/lib/libdeflate.a") for path in ARCHIVES if Path(path).exists()][:1]
    for needed in ("include/libdeflate.h", "include/nlohmann/json.hpp", "lib/libdeflate.a", "googletest/CMakeLists.txt"):
        if not any(entry.path == f"third_party/{needed}" for entry in entries):
            sys.exit(f"gpu: there is no {needed} of libdeflate-dev, nlohmann-json3-dev or googletest here; run scripts/setup first")
    return entries


def git_commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def pack(entries: list[Entry], file: Path) -> None:
    temporary = file.with_name(file.name + ".part")
    with tarfile.open(temporary, "w:xz", preset=6) as archive:
        for entry in entries:
            archive.add(entry.source, f"{NAME}/{entry.path}", recursive=False, filter=plain)
        text = git_commit().encode() + b"\n"
        commit = tarfile.TarInfo(f"{NAME}/COMMIT")
        commit.size = len(text)
        archive.addfile(commit, io.BytesIO(text))
    temporary.replace(file)


def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def unpacked(entries: list[Entry], folder: Path) -> None:
    """The pack as a folder. Files that have not changed stay as they are, so that a build knows what has."""
    for entry in entries:
        target = folder / entry.path
        data = entry.source.read_bytes()
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(entry.source.stat().st_mode & 0o777)
    known = {folder / entry.path for entry in entries}
    for path in folder.rglob("*"):
        if path.is_file() and path not in known and "__pycache__" not in path.parts:
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu pack", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.tar.xz")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be packed")
    options = parser.parse_args()
    if (options.file is None) != options.dry_run:
        parser.error("a file to write, or --dry-run, expected")
    if (ROOT / "third_party").exists():
        sys.exit("gpu: this is a pack already; pack from a checkout")
    entries = project_entries() + system_entries()
    size = sum(entry.source.stat().st_size for entry in entries)
    if options.dry_run:
        print("\n".join(entry.path for entry in entries))
        print(f"{len(entries)} files, {size / 2**20:.1f} MiB before compression")
        return 0
    if not options.file.name.endswith(".tar.xz"):
        parser.error(f"{options.file}: a name that ends with .tar.xz expected")
    pack(entries, options.file)
    print(f"{options.file}: {len(entries)} files, {options.file.stat().st_size / 2**20:.1f} MiB")
    print(f"on the machine with a GPU: tar -xf {options.file.name} -C /tmp && /tmp/{NAME}/scripts/gpu run --report DIR")
    return 0


if __name__ == "__main__":
    sys.exit(main())
