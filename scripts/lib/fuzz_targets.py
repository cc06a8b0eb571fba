#!/usr/bin/env python3
"""Prints the fuzz targets that a change reaches, or "all".

usage: fuzz_targets.py < changed paths

A target is reached by its own files, and by the product's sources that tests/fuzz/CMakeLists.txt gives to it or to what it
links, with all that these include.
"""

import re
import sys
from pathlib import Path

from select_tests import generated_from, project_texts, with_includers

FOLDER = "tests/fuzz/"
# What all targets have, or what says how they are made.
COMMON = (FOLDER + "CMakeLists.txt", FOLDER + "fuzz_support.cc", "base/check.cc", "cmake/Find", "scripts/apt-packages.txt", "scripts/fuzz",
          "scripts/lib/fuzz_targets.py", "scripts/lib/select_tests.py")


def sources_by_target(text: str) -> dict[str, set[str]]:
    """Of each target: files of the product, and folders, which end with a slash."""
    folders = dict(re.findall(r"^set\((\w+) \$\{ROOT\}/(\S+)\)", text, re.M))
    for name, folder in folders.items():
        text = text.replace(f"${{{name}}}/", folder + "/")
    for name, pattern in re.findall(r"^file\(GLOB (\w+) .*\$\{ROOT\}/(\S+)/\*\.cc\)", text, re.M):
        text = text.replace(f"${{{name}}}", pattern + "/")
    given: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for name, words in re.findall(r"^\s*(?:fsdprun_fuzz_target|add_library|target_sources)\((\w+)([^)]*)\)", text, re.M):
        sources, _, linked = words.partition(" LINK ")
        given.setdefault(name, set()).update(word.removeprefix("${ROOT}/") for word in sources.split() if "/" in word)
        links.setdefault(name, set()).update(linked.split())
    # Messages are made of files in the folder of the build.
    given["messages"] = {"proto/fsdprun/v1/"}
    targets = re.findall(r"^fsdprun_fuzz_target\((\w+)", text, re.M)
    return {target: set().union(given[target], *(given[name] for name in links[target] if name in given)) for target in targets}


def reached(paths: list[str], texts: dict[str, str], targets: dict[str, set[str]]) -> list[str] | None:
    """None: all."""
    generated = [header for path in paths if path.endswith(".proto") for header in generated_from(path, texts)]
    found = with_includers(paths + generated, texts)
    if any(path.startswith(COMMON) for path in found):
        return None
    return [name for name, sources in targets.items()
            if any(path.startswith((f"{FOLDER}{name}_fuzz.cc", f"{FOLDER}corpus/{name}/", f"{FOLDER}dictionaries/{name}")) or path in sources or
                   any(source.endswith("/") and path.startswith(source) for source in sources) for path in found)]


def main() -> None:
    names = reached(sys.stdin.read().split(), project_texts(), sources_by_target(Path(FOLDER + "CMakeLists.txt").read_text()))
    print("\n".join(["all"] if names is None else names))


if __name__ == "__main__":
    main()
