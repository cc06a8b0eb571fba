#!/usr/bin/env python3
"""Says what a change reaches: which tests, and which C++ files the linters look at.

usage: select_tests.py BUILD... < changed paths
       select_tests.py --sources < changed paths

Prints "all PATH", of a PATH that reaches everything, or lines "test NAME", "file PATH", "target BUILD TARGET" and
"count BUILD N", N of the tests that BUILD has for every change. A BUILD is a configured folder in which CMake has written
who depends on whom (fsdprun_graph.txt, fsdprun_tests.txt). What is not known to reach only some tests reaches all. The
FILEs are product sources for the linters: those that changed and those that include them. --sources prints those alone,
without "file", or "all" if the linters' own settings changed.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PRODUCT = ("proto/", "base/", "launcher/", "fsdpctl/", "agent/", "formats/", "worker/", "fsdp_runtime/")
# What says how sources are compiled and looked at. Of cmake/, what sets the compiler's options for all of them: which libraries
# are found, tested and installed is of no account to the linters.
SETTINGS = (".clang-tidy", "CMakeLists.txt", "CMakePresets.json", "cmake/FindLibTorch.cmake", "cmake/FsdprunGrpc.cmake",
            "cmake/FsdprunTargets.cmake", "cmake/FsdprunToolchain.cmake", "scripts/lint", "scripts/lib/tidy_database.py")
# What no program and no test is made of: the checks of texts and rules look at it, and scripts of tests that open it (opened).
TEXTS = ("docs/", "README.md", "LICENSE", "deploy/", "scripts/bench", "scripts/quickstart", "scripts/soak", "scripts/lib/fuzz_clean",
         "scripts/lib/sanitizers_clean", "scripts/lib/tidy_clean", "tests/fuzz/")
# Tests that look at the tree as a whole, whatever changed.
ALWAYS = ("tests/arch", "tests/docs")
# Whose programs, scripts and settings are no part of the build, and the folders of the tests that take them.
EXAMPLES, EXAMPLES_TESTS = "examples/", ("tests/parity", "tests/install", "tests/slurm")


@dataclass
class Node:
    """A library, a program or a test."""

    name: str
    folder: str
    deps: list[str]
    is_test: bool = False
    tier: str = ""
    targets: list[str] = field(default_factory=list)


def parse_graph(graph: str, tests: str) -> list[Node]:
    nodes = []
    for line in filter(None, graph.splitlines()):
        name, folder, _side, _layer, deps = line.split("|")
        nodes.append(Node(name, folder, deps.split(",")))
    for line in filter(None, tests.splitlines()):
        name, tier, folder, deps, targets = line.split("|")
        nodes.append(Node(name, folder, deps.split(","), True, tier, list(filter(None, targets.split(",")))))
    doubled = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if doubled:
        raise ValueError(f"two of the libraries, programs and tests are called {doubled[0]}: what reaches one would be taken for the other")
    return nodes


def source_folder(path: str) -> str:
    """libfsdp's public headers belong to its sources, but for the types of the plan."""
    if path == "fsdp_runtime/include/fsdp/shard.h":
        return "fsdp_runtime/plan"
    return str(PurePosixPath(path.replace("fsdp_runtime/include/fsdp/", "fsdp_runtime/src/")).parent)


def owners(path: str, nodes: list[Node]) -> set[str]:
    """Names of what the deepest folder that holds the path declares."""
    folder = source_folder(path)
    holders = [node for node in nodes if folder == node.folder or folder.startswith(node.folder + "/")]
    deepest = max((len(node.folder) for node in holders), default=0)
    return {node.name for node in holders if len(node.folder) == deepest}


def inside(folders: tuple[str, ...], nodes: list[Node]) -> set[str]:
    """Names of what is declared in the folders, and below."""
    return {node.name for node in nodes if any(node.folder == folder or node.folder.startswith(folder + "/") for folder in folders)}


def mentions(path: str, text: str) -> bool:
    """Whether a C++ or Python text includes or imports the file."""
    if path.endswith(".py"):
        stem = re.escape(PurePosixPath(path).stem)
        return re.search(rf"^\s*(import|from) {stem}\b", text, re.M) is not None
    return f'"{path}"' in text or f"<{path.removeprefix('fsdp_runtime/include/')}>" in text


def with_includers(paths: list[str], texts: dict[str, str]) -> list[str]:
    """The paths and all files of the project that include or import them, directly or not."""
    reached, todo = list(paths), list(paths)
    while todo:
        path = todo.pop()
        if path.endswith((".h", ".py")):
            more = [name for name, text in texts.items() if name not in reached and mentions(path, text)]
            reached += more
            todo += more
    return reached


def opened(script: str) -> list[str]:
    """The files and folders of docs/ and deploy/ that a Python script opens, as it spells them: ROOT / "docs/VITALS.md"."""
    return re.findall(r'/ "((?:docs|deploy)/[^"]+)"', script)


def readers(path: str, texts: dict[str, str]) -> list[str]:
    """The scripts of tests that open the file or its folder; of those that look at the tree as a whole, none."""
    return [name for name, text in texts.items() if name.startswith("tests/") and name.endswith(".py") and not name.startswith(ALWAYS)
            and any(path == place or path.startswith(place + "/") for place in opened(text))]


def tests_of(script: str, texts: dict[str, str], nodes: list[Node]) -> set[str]:
    """Names of the tests that are called as the script is, or as those that import it are; else all of its folder."""
    stems = [PurePosixPath(name).stem.removeprefix("test_").removesuffix("_test") for name in with_includers([script], texts)]
    folder = str(PurePosixPath(script).parent)
    named = {node.name for node in nodes if node.folder == folder and any(f"_{stem}_" in f"{node.name}_" for stem in stems)}
    return named or owners(script, nodes)


def lists_that_name(path: str, lists: dict[str, str]) -> list[str]:
    """The lists of sources (CMakeLists.txt) of other folders of tests that name the file."""
    name = re.compile(rf"(^|[\s/\"]){re.escape(PurePosixPath(path).name)}($|[\s)\"])", re.M)
    return [other for other, text in lists.items() if PurePosixPath(other).parent != PurePosixPath(path).parent and name.search(text)]


def generated_from(path: str, texts: dict[str, str]) -> list[str]:
    """The headers that are made of a message file, and of those that import it, as sources include them."""
    protos = [path]
    for proto in protos:
        name = proto.removeprefix("proto/")
        protos += [other for other, text in texts.items() if f'import "{name}"' in text and other not in protos]
    return [proto.removeprefix("proto/").removesuffix("proto") + ending for proto in protos for ending in ("pb.h", "grpc.pb.h")]


def product_sources(paths: list[str], texts: dict[str, str]) -> list[str] | None:
    """The product's sources that the paths reach; None means all."""
    if any(path.startswith(SETTINGS) for path in paths):
        return None
    generated = [header for path in paths if path.endswith(".proto") for header in generated_from(path, texts)]
    return [path for path in with_includers(paths + generated, texts) if path.startswith(PRODUCT) and path.endswith((".cc", ".h"))]


def dependents(names: set[str], nodes: list[Node]) -> set[str]:
    """The names and all that depend on them, directly or not."""
    reached = set(names)
    while True:
        more = {node.name for node in nodes if node.name not in reached and reached & set(node.deps)}
        if not more:
            return reached
        reached |= more


def select(paths: list[str], nodes: list[Node], texts: dict[str, str]) -> set[str] | str:
    """Names of the tests that the paths reach; or the path that reaches all. `texts`: of the project's files."""
    touched = set()
    for path in paths:
        if path.startswith(TEXTS):
            touched |= {name for script in readers(path, texts) for name in tests_of(script, texts, nodes)}
            continue
        found = set()
        if path.startswith(EXAMPLES):
            found = inside(EXAMPLES_TESTS, nodes)
        elif path.startswith(PRODUCT + ("tests/",)):
            is_list = path.endswith("/CMakeLists.txt")
            found = inside((str(PurePosixPath(path).parent),), nodes) if is_list else owners(path, nodes)
        if not found or path.endswith((".proto", ".cmake")):
            return path
        touched |= found
    reached = dependents(touched, nodes)
    return {node.name for node in nodes if node.is_test and (node.name in reached or node.folder.startswith(ALWAYS))}


def project_texts(patterns: tuple[str, ...] = ("*.h", "*.cc", "*.py", "*.proto")) -> dict[str, str]:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], check=True, capture_output=True, text=True).stdout.split()
    return {name: Path(name).read_text(errors="replace") for name in names if Path(name).is_file()}


def read_build(build: Path) -> list[Node]:
    return parse_graph((build / "fsdprun_graph.txt").read_text(), (build / "fsdprun_tests.txt").read_text())


def main() -> None:
    paths = sys.stdin.read().split()
    texts = project_texts()
    if sys.argv[1:] == ["--sources"]:
        sources = product_sources(paths, texts)
        print("\n".join(["all"] if sources is None else sources))
        return
    builds = [Path(name) for name in sys.argv[1:]]
    # Product libraries are followed by the graph; between the tests' folders nothing is declared.
    reached = with_includers(paths, texts)
    touched = paths + [path for path in reached if path.startswith("tests/")]
    lists = project_texts(("tests/**/CMakeLists.txt",))
    touched += [name for path in touched if path.startswith("tests/") for name in lists_that_name(path, lists)]
    graphs = [read_build(build) for build in builds]
    # A build may lack tests that another has: what is known to any is known.
    selected = select(touched, list({node.name: node for nodes in reversed(graphs) for node in nodes}.values()), texts)
    if isinstance(selected, str):
        print("all", selected)
        return
    for name in sorted(selected):
        print("test", name)
    for path in product_sources(paths, texts) or []:
        print("file", path)
    for build, nodes in zip(builds, graphs):
        chosen = [node for node in nodes if node.name in selected and node.tier == "change"]
        for target in sorted({target for node in chosen for target in node.targets}):
            print("target", build, target)
        print("count", build, len(chosen))


if __name__ == "__main__":
    main()
