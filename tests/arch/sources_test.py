#!/usr/bin/env python3
"""Holds the sources against the rules of docs/STYLE.md and docs/ARCHITECTURE.md that a text search can check.

Each check is a function from {path: text} to a list of complaints "path:line: what", so that --self-test can show that
every one of them is able to fail.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

PRODUCT = ("proto/", "base/", "launcher/", "fsdpctl/", "agent/", "formats/", "worker/", "fsdp_runtime/")
CONTROL = ("base/", "launcher/", "fsdpctl/", "agent/")
RUNTIME = ("worker/", "fsdp_runtime/")
# Folders whose code decides and does nothing else.
PURE = ("launcher/cli/", "launcher/slurm/", "launcher/ssh/", "fsdpctl/slurm/", "fsdpctl/top/", "launcher/chaos/plan/", "fsdpctl/doctor/checks/", "launcher/coordinator/", "launcher/watch/", "launcher/directory/rules.", "launcher/ledger/", "launcher/metrics/", "agent/node/",
        "proto/cluster/", "agent/output/", "fsdp_runtime/plan/")
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_cpp(path: str) -> bool:
    return path.endswith((".h", ".cc"))


def lines_matching(path: str, text: str, pattern: str, complaint: str) -> list[str]:
    """Complaints about code lines (comments cut off) in which the pattern occurs."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.search(pattern, re.sub(r"//.*", "", line))
        if match:
            found.append(f"{path}:{number}: {complaint}: {match.group(0).strip()}")
    return found


# --- includes -----------------------------------------------------------------------------------------------------


@dataclass
class Graph:
    """The libraries that CMake declared: who lives where, and who may see whom."""

    folder: dict[str, str] = field(default_factory=dict)
    deps: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> "Graph":
        graph = Graph()
        for line in filter(None, text.splitlines()):
            name, folder, _side, _layer, deps = line.split("|")
            graph.folder[name] = folder
            graph.deps[name] = [dep for dep in deps.split(",") if dep]
        return graph

    def has_both_halves(self) -> bool:
        """False for a build of one half only, which declares nothing about the other."""
        return {"launcher", "worker"} <= set(self.folder.values())

    def owner_folder(self, path: str) -> str | None:
        """The deepest declared folder that holds the path; libfsdp's public headers belong to its sources, but for the
        types of the plan."""
        if path == "fsdp_runtime/include/fsdp/shard.h":
            return "fsdp_runtime/plan"
        if path.startswith("fsdp_runtime/include/"):
            path = path.replace("fsdp_runtime/include/fsdp/", "fsdp_runtime/src/")
        folders = [f for f in set(self.folder.values()) if path.startswith(f + "/")]
        return max(folders, key=len, default=None)

    def visible_folders(self, folder: str) -> set[str]:
        """Folders of all libraries that the libraries of this folder depend on, directly or not."""
        todo = [name for name, where in self.folder.items() if where == folder]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.deps.get(name, [])
        return {self.folder[name] for name in seen if name in self.folder}


def check_includes(files: dict[str, str], graph: Graph) -> list[str]:
    third_party = {CONTROL: r"(torch|ATen|c10)/", RUNTIME: r"(grpc|grpcpp|absl|google/protobuf|spdlog)/",
                   ("proto/",): r"(torch|ATen|c10|grpc|grpcpp|absl|google)/"}
    complaints = []
    for path, text in files.items():
        if not is_cpp(path) or not path.startswith(PRODUCT):
            continue
        own = graph.owner_folder(path)
        if own is None and graph.has_both_halves():
            complaints.append(f"{path}:1: no library or program is declared for this folder")
        visible = graph.visible_folders(own) if own else None
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(2)
            for folders, pattern in third_party.items():
                if path.startswith(folders) and re.match(pattern, target):
                    complaints.append(f"{path}:{number}: this side must not include <{target}>")
            if target.startswith("fsdp/"):
                target = "fsdp_runtime/include/" + target
            if target.startswith(PRODUCT) and visible is not None:
                theirs = graph.owner_folder(target)
                if theirs and theirs not in visible:
                    complaints.append(f"{path}:{number}: {own} does not depend on {theirs} (see its CMakeLists.txt)")
            if match.group(1) == '"' and "/" not in target:
                complaints.append(f'{path}:{number}: include by path from the root, not "{target}"')
    return complaints


# --- purity, sleep, sizes, words ----------------------------------------------------------------------------------


def check_purity(files: dict[str, str], _graph: Graph) -> list[str]:
    headers = (r"#\s*include\s*<(thread|mutex|shared_mutex|condition_variable|atomic|future|fstream|filesystem|random|"
               r"iostream|unistd\.h|sys/[^>]*|pthread\.h|fcntl\.h|grpc[^>]*)>")
    calls = (r"(\bstd::getenv|\bgetenv\(|_clock::now|absl::Now\(|clock_gettime|std::hash\b|unordered_(map|set)|"
             r"flat_hash|std::thread|std::mutex|\brand\(|random_device|mt19937|\bopen\(|\bfopen\(|LOG\()")
    complaints = []
    for path, text in files.items():
        if is_cpp(path) and path.startswith(PURE):
            complaints += lines_matching(path, text, headers, "a pure core does not include")
            # A hash container that is only looked into gives the same answers in any order; the comment above it says so.
            body = re.sub(r"#\s*include.*", "", re.sub(r"(never\s+(?://+\s*)?iterated.*\n).*", r"\1", text))
            complaints += lines_matching(path, body, calls, "a pure core does not use")
    return complaints


def check_sleep(files: dict[str, str], _graph: Graph) -> list[str]:
    pattern = r"\b(sleep_for\(|sleep_until\(|usleep\(|nanosleep\(|sleep\(|absl::SleepFor)"
    complaints = []
    for path, text in files.items():
        if is_cpp(path) and path.startswith(PRODUCT):
            complaints += lines_matching(path, text, pattern, "wait for an event under a deadline instead of")
    return complaints


def long_functions(path: str, text: str) -> list[str]:
    """Function bodies by clang-format's shape: an opening line of some indent, closed by a brace of the same indent.

    The lines of a table (from "= {" to "};") do not count: a table is read like data, however long it is.
    """
    complaints = []
    opening: tuple[int, str] | None = None
    table_lines, is_in_table = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        is_in_table = (is_in_table or line.endswith(" = {")) and line.strip() != "};"
        table_lines += is_in_table
        if opening is None:
            match = re.match(r"^( {0,2})\S.*\{$", line)
            is_scope = re.match(r"^\s*(//|namespace|class|struct|enum|union|extern|#|\}|using)", line) or " = {" in line
            if match and not is_scope:
                opening, table_lines = (number, match.group(1)), 0
        elif line.rstrip(";,") in (opening[1] + "}", opening[1] + "})"):
            length = number - opening[0] + 1 - table_lines
            if length > MAX_FUNCTION_LINES:
                complaints.append(f"{path}:{opening[0]}: function of {length} lines (at most {MAX_FUNCTION_LINES})")
            opening = None
    return complaints


def check_sizes(files: dict[str, str], _graph: Graph) -> list[str]:
    complaints = []
    for path, text in files.items():
        count = text.count("\n")
        is_source = is_cpp(path) or path.endswith((".py", ".proto", ".cmake"))
        if is_source and count > MAX_FILE_LINES:
            complaints.append(f"{path}:1: file of {count} lines (at most {MAX_FILE_LINES})")
        if is_cpp(path):
            complaints += long_functions(path, text)
    return complaints


def check_words(files: dict[str, str], _graph: Graph) -> list[str]:
    everywhere = [(r"(?<![\w.])/(work|root|home/\w+)/", "a path of one machine"),
                  (r"\b(TODO|FIXME|XXX)\b(?!\()", "a note without a name, write TODO(name)"),
                  (r"<{7} |>{7} ", "a conflict marker")]
    in_code = [(r"\b(class|struct)\s+(FSDP_API\s+)?\w+(Manager|Helper|Helpers|Utils|Util)\b", "a name that says nothing")]
    complaints = []
    for path, text in files.items():
        if path.startswith("tests/arch/"):  # it has to spell the words
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, complaint in everywhere + (in_code if is_cpp(path) else []):
                if re.search(pattern, line):
                    complaints.append(f"{path}:{number}: {complaint}: {line.strip()[:80]}")
        if re.search(r"(^|[_/])(manager|helper|helpers|util|utils)\.(h|cc|py)$", path):
            complaints.append(f"{path}:1: a file name that says nothing")
    return complaints


CHECKS = {"includes": check_includes, "purity": check_purity, "sleep": check_sleep, "sizes": check_sizes,
          "words": check_words}


def self_test() -> None:
    """Every rule complains about a text made to break it, and about nothing in a text that keeps it."""
    graph = Graph.parse("low|base|control|1|\nhigh|agent/node|control|2|low\nrt|fsdp_runtime/src|runtime|3|\n")
    body = "".join(f"  Do({i});\n" for i in range(70))
    whole = Graph.parse("program|launcher|control|99|\ntrain|worker|runtime|99|\n")
    assert len(check_includes({"agent/main.cc": "", "worker/main.cc": ""}, whole)) == 1
    bad = [
        ("includes", {"base/a.h": '#include "agent/node/b.h"\n'}),
        ("includes", {"agent/node/a.h": "#include <fsdp/unit.h>\n"}),
        ("includes", {"agent/node/a.h": "#include <torch/torch.h>\n"}),
        ("includes", {"fsdp_runtime/src/a.cc": "#include <grpcpp/grpcpp.h>\n"}),
        ("includes", {"base/a.cc": '#include "a.h"\n'}),
        ("purity", {"agent/node/a.cc": "#include <thread>\n"}),
        ("purity", {"agent/node/a.h": "// Index.\nabsl::flat_hash_map<int, int> index_;\n"}),
        ("purity", {"launcher/cli/a.cc": 'auto x = std::getenv("A");\n'}),
        ("sleep", {"agent/process/a.cc": "std::this_thread::sleep_for(x);\n"}),
        ("sizes", {"base/a.cc": "\n" * 801}),
        ("sizes", {"base/a.cc": "void F() {\n" + body + "}\n"}),
        ("words", {"README.md": "see /work/main/x\n"}),
        ("words", {"base/a.cc": "// TODO: later\n"}),
        ("words", {"base/a.h": "class NodeManager {\n"}),
        ("words", {"base/utils.h": ""}),
    ]
    for check, files in bad:
        assert len(CHECKS[check](files, graph)) == 1, f"{check} does not complain once about {files}"
    table = "".join(f"      {{{i}}},\n" for i in range(90))
    assert not long_functions("base/a.cc", f"int F() {{\n  static const T t = {{\n{table}  }};\n  return 1;\n}}\n")
    good = {"agent/node/a.cc": '#include "base/a.h"\n#include <vector>\n// never sleep_for(\n// never\n/// iterated.\nstd::unordered_map<int, int> i_;\nvoid F() {\n  G();\n}\n'}
    for check, function in CHECKS.items():
        assert function(good, graph) == [], f"{check} complains about good text: {function(good, graph)}"
    print(f"{len(bad)} broken texts found, one good text left alone")


def project_files(root: Path) -> dict[str, str]:
    """Tracked files and new ones that git does not ignore; without git, what lies in the source folders."""
    try:
        names = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True,
                               capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(root)) for d in (*PRODUCT, "tests", "scripts", "docs", "cmake")
                 for p in (root / d).rglob("*")]
    files = {}
    for name in sorted(set(names)):
        if (root / name).is_file():
            files[name] = (root / name).read_text(encoding="utf-8", errors="replace")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--graph", type=Path)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("check", nargs="*", choices=[[], *CHECKS])
    options = parser.parse_args()
    if options.self_test:
        self_test()
        return 0
    files = project_files(options.root)
    if not any(path.startswith(PRODUCT) for path in files):
        sys.exit(f"found no sources under {options.root}")
    graph = Graph.parse(options.graph.read_text()) if options.graph else Graph()
    complaints = [text for name in options.check or CHECKS for text in CHECKS[name](files, graph)]
    print("\n".join(complaints) or f"{len(files)} files keep the rules: {' '.join(options.check or CHECKS)}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
