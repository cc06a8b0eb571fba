#!/usr/bin/env python3
"""Shows that configuring fails on an upward edge, an edge across sides, one that is not declared, and a wrong declaration, and passes
without them."""

import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(layers CXX)
set(CMAKE_CXX_STANDARD 20)
add_library(fsdprun_options INTERFACE)
include({root}/cmake/FsdprunTargets.cmake)
include({root}/cmake/FsdprunTests.cmake)
file(WRITE ${{CMAKE_BINARY_DIR}}/a.cc "int a;")
foreach(external LibTorch::torch gRPC::grpc++ protobuf::libprotobuf absl::status)
  add_library(${{external}} INTERFACE IMPORTED)
endforeach()
set(src ${{CMAKE_BINARY_DIR}}/a.cc)
fsdprun_library(NAME contract SIDE shared LAYER 0 SRCS ${{src}})
fsdprun_library(NAME low SIDE control LAYER 1 SRCS ${{src}} DEPS contract)
fsdprun_library(NAME high SIDE control LAYER 3 SRCS ${{src}} DEPS low)
fsdprun_library(NAME runtime SIDE runtime LAYER 1 SRCS ${{src}} DEPS contract)
{extra}
"""

CASES = [
    ("", None),
    ("fsdprun_library(NAME same SIDE control LAYER 3 SRCS ${src} DEPS high)", None),
    ("fsdprun_library(NAME bad SIDE control LAYER 2 SRCS ${src} DEPS high)", "upward edge"),
    ("fsdprun_library(NAME bad SIDE runtime LAYER 5 SRCS ${src} DEPS low)", "edge across sides"),
    ("fsdprun_library(NAME bad SIDE control LAYER 5 SRCS ${src} DEPS runtime)", "edge across sides"),
    ("fsdprun_library(NAME bad SIDE shared LAYER 5 SRCS ${src} DEPS low)", "edge across sides"),
    ("fsdprun_binary(NAME bad OUTPUT bad SIDE control SRCS ${src} DEPS runtime)", "edge across sides"),
    ("fsdprun_library(NAME bad SIDE control LAYER 5 SRCS ${src} DEPS fsdprun_options)", "not a project library"),
    ("fsdprun_library(NAME bad SIDE control LAYER 5 SRCS ${src} DEPS later)", "not declared"),
    ("fsdprun_library(NAME bad SIDE middle LAYER 5 SRCS ${src})", "SIDE is"),
    ("fsdprun_binary(NAME bad OUTPUT bad SRCS ${src})", "SIDE is"),
    ("fsdprun_library(NAME bad SIDE control SRCS ${src})", "LAYER is"),
    ("fsdprun_library(NAME good SIDE control LAYER 5 SRCS ${src} EXTERNAL gRPC::grpc++ absl::status)", None),
    ("fsdprun_library(NAME good SIDE runtime LAYER 5 SRCS ${src} EXTERNAL LibTorch::torch)", None),
    ("fsdprun_library(NAME bad SIDE control LAYER 5 SRCS ${src} EXTERNAL LibTorch::torch)", "must not link"),
    ("fsdprun_library(NAME bad SIDE shared LAYER 5 SRCS ${src} EXTERNAL LibTorch::torch)", "must not link"),
    ("fsdprun_library(NAME bad SIDE shared LAYER 5 SRCS ${src} EXTERNAL absl::status)", "must not link"),
    ("fsdprun_library(NAME bad SIDE runtime LAYER 5 SRCS ${src} EXTERNAL gRPC::grpc++)", "must not link"),
    ("fsdprun_library(NAME bad SIDE runtime LAYER 5 SRCS ${src} EXTERNAL protobuf::libprotobuf)", "must not link"),
    ("fsdprun_binary(NAME bad OUTPUT bad SIDE runtime SRCS ${src} EXTERNAL absl::status)", "must not link"),
    ("fsdprun_library(NAME bad SIDE control LAYER 5 SRCS ${src} EXTERNAL high)", "is a project library"),
    ("fsdprun_write_graph(${CMAKE_BINARY_DIR}/graph.txt)", None),
    ("target_link_libraries(high PRIVATE contract)\nfsdprun_write_graph(${CMAKE_BINARY_DIR}/graph.txt)", "not among its DEPS"),
    ("add_custom_target(group)\nadd_dependencies(group high)\nfsdprun_script_test(NAME of_group COMMAND true PROGRAMS group)\n"
     "get_property(lines GLOBAL PROPERTY FSDPRUN_TEST_GRAPH)\nmessage(FATAL_ERROR ${lines})", "of_group|change||group,high|group"),
    ("fsdprun_binary(LIBS high NAME bad OUTPUT bad SIDE control SRCS ${src})", "unknown arguments"),
    ("fsdprun_test(LABEL unit NAME bad SRCS ${src})", "unknown arguments"),
    ("fsdprun_script_test(LABEL unit NAME bad COMMAND true)", "unknown arguments"),
]


def configure(root: Path, cmake: str, compiler: str, extra: str) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        (source / "CMakeLists.txt").write_text(PROJECT.format(root=root, extra=extra))
        done = subprocess.run(
            [cmake, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_CXX_COMPILER_WORKS=ON", "-S", source,
             "-B", source / "build"], capture_output=True, text=True)
        return done.returncode, done.stderr


def main() -> int:
    root, cmake, compiler = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    failures = 0
    for extra, complaint in CASES:
        code, errors = configure(root, cmake, compiler, extra)
        ok = code == 0 if complaint is None else code != 0 and complaint in " ".join(errors.split())
        failures += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {extra or 'the edges that are allowed'} -> {complaint or 'accepted'}")
        if not ok:
            print(errors)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
