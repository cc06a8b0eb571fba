#!/usr/bin/env python3
"""Copies the project and makes every guard of the two state machines, and of what they share, one that can be negated at run time.

usage: guard_rewriter.py ROOT OUTPUT     writes OUTPUT/src (what to build) and OUTPUT/guards.json (what can be negated)

A guard is a condition of if, while, for, do and ?:, an operand of && and ||, a returned boolean, and the initial value
of a boolean variable. Left out are assertions and the invariant checks: they are oracles, and turning an oracle against
a healthy run says nothing of the tests.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator

MACHINES = ("launcher/coordinator", "agent/node", "proto/cluster")
SWITCH = "tests/mutation/guard_switch.h"
ORACLE = re.compile(r"^Check[A-Z]")
CONDITIONS = {"IfStmt", "WhileStmt", "DoStmt", "ForStmt", "ConditionalOperator"}
WRAPPERS = {"ImplicitCastExpr", "ExprWithCleanups", "MaterializeTemporaryExpr", "CXXBindTemporaryExpr", "ConstantExpr"}

Node = dict[str, Any]


@dataclass(frozen=True)
class Guard:
    """`occurrence` counts guards of equal text within one function: with it, and without the line, edits elsewhere in
    the file leave a guard's identity alone."""

    number: int
    file: str
    line: int
    function: str
    text: str
    occurrence: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.file, self.function, self.text, self.occurrence


@dataclass(frozen=True)
class Place:
    """Where a guard stands. `declares`: it is `T name = ...`, which can only be followed by the test of `name`."""

    begin: int
    end: int
    function: str
    declares: str = ""


# --- Finding


def dump(root: Path, file: str, clang: str) -> list[Node]:
    """clang's syntax trees of namespace fsdprun, as far as `file` itself has it."""
    command = [clang, "-x", "c++", "-std=c++20", "-I.", "-fsyntax-only", "-Wno-pragma-once-outside-header",
               "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=fsdprun", file]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{clang} cannot read {file}:\n{done.stderr}")
    trees, at, decoder = [], 0, json.JSONDecoder()
    text = done.stdout.strip()
    while at < len(text):
        tree, at = decoder.raw_decode(text, at)
        while at < len(text) and text[at].isspace():
            at += 1
        if tree["loc"].get("file") == file:
            name_file(tree, "")
            trees.append(tree)
    return trees


def name_file(value: Any, current: str) -> str:
    """clang names the file of a location only where it changes; this writes it into each."""
    if isinstance(value, list):
        for item in value:
            current = name_file(item, current)
    elif isinstance(value, dict):
        if "offset" in value:
            current = value["file"] = value.get("file", current)
        for key, item in value.items():
            if key != "includedFrom" and isinstance(item, (dict, list)):
                current = name_file(item, current)
    return current


class Finder:
    """Collects the places of one file's guards."""

    def __init__(self, file: str, source: bytes):
        self.file, self.source = file, source
        self.places: dict[tuple[int, int], Place] = {}

    def visit(self, node: Node, function: str = "") -> None:
        kind, inner = node.get("kind"), [child for child in node.get("inner", []) if child]
        if kind in ("FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl") and node.get("name") != "operator()":
            function = signature(node)
            if ORACLE.match(function):
                return
        if kind == "StaticAssertDecl":
            return  # It cannot be negated at run time, and its negation is noticed by every compiler.
        if kind in CONDITIONS:
            self.add_condition(node, function)
        elif kind == "BinaryOperator" and node["opcode"] in ("&&", "||"):
            for operand in operands(node, node["opcode"]):
                self.add(operand, function)
        elif kind == "ReturnStmt" and inner and is_bool(inner[0]):
            self.add(inner[0], function)
        elif kind == "VarDecl" and is_bool(node) and inner:
            self.add(inner[0], function)
        for child in inner:
            self.visit(child, function)

    def add_condition(self, node: Node, function: str) -> None:
        inner = node["inner"]
        at = {"IfStmt": 1 if node.get("hasInit") else 0, "DoStmt": 1, "ForStmt": 2}.get(node["kind"], 0)
        if node.get("hasVar"):
            variable = inner[at]["inner"][0]
            self.add(variable, function, variable["name"])
        elif inner[at]:
            self.add(inner[at], function)

    def add(self, expression: Node, function: str, declares: str = "") -> None:
        if strip(expression).get("kind") == "CXXBoolLiteralExpr":
            return
        begin, end = self.point(expression["range"]["begin"]), self.point(expression["range"]["end"])
        if begin is not None and end is not None:
            place = Place(begin[0], end[1], function, declares)
            self.places.setdefault((place.begin, place.end), place)

    def point(self, location: Node) -> tuple[int, int] | None:
        """Where a token begins and ends; None in another file and in a function-like macro, which is an assertion."""
        location = location.get("expansionLoc", location)
        if "offset" not in location or location["file"] != self.file:
            return None
        begin, end = location["offset"], location["offset"] + location["tokLen"]
        is_call = self.source[begin:end].isupper() and self.source[end : end + 1] == b"("
        return None if is_call else (begin, end)


def signature(function: Node) -> str:
    """Name and first parameter, which tells the overloads of a machine apart."""
    first = next((child for child in function.get("inner", []) if child.get("kind") == "ParmVarDecl"), None)
    kind = re.sub(r"\bconst\b|[&\s]|\bfsdprun::", "", first["type"]["qualType"]) if first else ""
    return f"{function.get('name', '')}({kind})"


def is_bool(node: Node) -> bool:
    return node.get("type", {}).get("qualType") in ("bool", "const bool")


def strip(expression: Node) -> Node:
    while expression.get("kind") in WRAPPERS and expression.get("inner"):
        expression = expression["inner"][0]
    return expression


def operands(expression: Node, opcode: str) -> Iterator[Node]:
    """Those of a whole chain: a && b && c has three."""
    for operand in expression["inner"]:
        bare = strip(operand)
        if bare.get("kind") == "BinaryOperator" and bare.get("opcode") == opcode:
            yield from operands(bare, opcode)
        else:
            yield operand


def find_places(root: Path, file: str, clang: str = "clang++-14") -> list[Place]:
    finder = Finder(file, (root / file).read_bytes())
    for tree in dump(root, file, clang):
        finder.visit(tree)
    return sorted(finder.places.values(), key=lambda place: (place.begin, -place.end))


def name_guards(file: str, source: bytes, places: list[Place], first: int) -> list[Guard]:
    guards, seen = [], Counter()
    for number, place in enumerate(places, first):
        text = " ".join(source[place.begin : place.end].decode().split())
        seen[place.function, text] += 1
        guards.append(Guard(number, file, source.count(b"\n", 0, place.begin) + 1, place.function, text,
                            seen[place.function, text]))
    return guards


# --- Rewriting


def rewrite(source: bytes, places: list[Place], guards: list[Guard]) -> bytes:
    """The source with every guard within a call of NegateIf; lines keep their numbers."""
    inserts = []  # (where, order at equal places: the inner ends first, the outer begins first; text)
    for place, guard in zip(places, guards):
        size = place.end - place.begin
        call = f"::fsdprun_guards::NegateIf({guard.number}, static_cast<bool>("
        if place.declares:
            inserts.append((place.end, (0, size), f"; {call}{place.declares}))"))
        else:
            inserts.append((place.begin, (1, -size), call))
            inserts.append((place.end, (0, size), "))"))
    pieces, at = [], 0
    for where, _, text in sorted(inserts):
        pieces += [source[at:where], text.encode()]
        at = where
    return f'#include "{SWITCH}"\n#line 1\n'.encode() + b"".join(pieces) + source[at:]


def rewrite_machines(root: Path) -> tuple[dict[str, bytes], list[Guard]]:
    """The rewritten sources by name, and all guards."""
    files = [str(path.relative_to(root)) for folder in MACHINES for path in sorted((root / folder).iterdir())
             if path.suffix in (".cc", ".h")]
    sources, guards = {}, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, places in zip(files, pool.map(lambda name: find_places(root, name), files)):
            source = (root / file).read_bytes()
            named = name_guards(file, source, places, len(guards) + 1)
            guards += named
            sources[file] = rewrite(source, places, named)
    return sources, guards


def copy_tree(root: Path, output: Path, replaced: dict[str, bytes]) -> None:
    """All that git knows or would, with `replaced` instead; a file that is as it was keeps its time, for ninja."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    wanted = {name for name in listed if name and (root / name).is_file()}
    for name in wanted:
        target = output / name
        content = replaced.get(name) or (root / name).read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in output.rglob("*"):
        if path.is_file() and str(path.relative_to(output)) not in wanted:
            path.unlink()


def main() -> int:
    root, output = Path(sys.argv[1]), Path(sys.argv[2])
    sources, guards = rewrite_machines(root)
    copy_tree(root, output / "src", sources)
    (output / "guards.json").write_text(json.dumps([asdict(guard) for guard in guards], indent=1) + "\n")
    print(f"{len(guards)} guards in {len(sources)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
