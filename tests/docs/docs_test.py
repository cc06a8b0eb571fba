#!/usr/bin/env python3
"""Runs what README.md and docs/*.md tell a reader to run, with the built programs, in a scratch folder.

commands  Every command line: those of fenced blocks and of inline code. rules.py says which are run, with which
          replacements, and of which only the names are checked, and why. A command without a rule is an error.
example   The C++ program (compiled and linked by this build) on two ranks, and the CMake lines in a project of its own.
help      What the documentation says of --help: every key, every flag with its default and its variable.
report    A failure report that is shown has the lines of a real one.
changes   Every diff turns tests/install/consumer/before.cc, as far as it shows it, into after.cc.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import names
import rules
import snippets

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from free_port import free_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
WORKER = "import os, sys\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:], flush=True)\n"
TINY_LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}


class Scratch:
    """A folder that looks to the documented commands like a checkout that has been built."""

    def __init__(self, folder: Path, build: Path, blocks: list[snippets.Block]):
        self.folder = folder
        (folder / "build").mkdir()
        (folder / "build/bin").symlink_to(build / "bin")
        for name in (".venv", "scripts", "tests"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "train.py").write_text(WORKER)
        (folder / "worker").write_text(f"#!{sys.executable}\n{WORKER}")
        (folder / "worker").chmod(0o755)
        (folder / "llama").mkdir()
        (folder / "llama/config.json").write_text(json.dumps(TINY_LLAMA))
        text = "The quick brown fox jumps over the lazy dog. " * 400
        for name in ("train.txt", "valid.txt"):
            (folder / name).write_text(text)
        for block in blocks:
            if rules.kind_of_block(block.language, block.text) == "training configuration":
                (folder / "train.json").write_text(block.text)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(self, command: str, launchers: int = 1) -> str:
        """Output of the command; stops the test if it fails. `launchers`: that many of it at once."""
        started = [subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, text=True,
                                    errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                   for _ in range(launchers)]
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        for process, output in zip(started, outputs, strict=True):
            if process.returncode != 0:
                raise Complaint(f"exit code {process.returncode} of: {command}\n{output[-3000:]}")
        return "\n".join(outputs)


class Complaint(Exception):
    """Documentation and programs disagree."""


def run_command(scratch: Scratch, command: snippets.Command, rule: rules.Run) -> None:
    if match := re.fullmatch(r"export (\w+)=(\S*)", command.text):
        scratch.environment[match[1]] = match[2]
        return
    text = command.text if command.text.startswith(("build/", "PYTHON_EXEC=", "source ")) else f"build/bin/{command.text}"
    for old, new in rule.replace.items():
        text = text.replace(old, new.format(port=free_port()))
    output = scratch.run(text, rule.launchers)
    for pattern in rule.expect:
        if not re.search(pattern, output, re.M):
            raise Complaint(f"no {pattern!r} in the output of: {text}\n{output[-3000:]}")


def self_test(known: names.Names) -> None:
    """What is unknown, or names something that does not exist, must be noticed."""
    assert rules.rule_of("curl example.org") is None and rules.kind_of_block("python", "import torch") is None
    for words in (["scripts/nothing"], ["scripts/test", "--nothing"], ["scripts/test", "--label", "nothing"],
                  ["scripts/test", "--preset", "nothing"], ["scripts/build", "nothing"], ["ctest", "-R", "^nothing$"],
                  ["ctest", "--test-dir", "build/nothing"], ["ninja", "-C", "build/release", "nothing"],
                  ["cmake", "--install", "build/release", "--component", "nothing"], ["cmake", "--install", "build/nothing"],
                  [".venv/bin/python", "tests/nothing.py"], ["fsdp-train", "nothing"], ["fsdpctl", "slurm", "nothing"],
                  ["fsdpctl", "slurm", "submit", "--nothing"],
                  [".venv/bin/python", "tests/parity/recovery_test.py", "nothing"],
                  [".venv/bin/python", "tests/parity/parity_test.py", "--nothing"]):
        assert known.complaints(words), f"accepted: {words}"


def check_commands(build: Path) -> list[str]:
    known = names.Names(ROOT, build)
    self_test(known)
    blocks = snippets.blocks_of(ROOT)
    complaints = [f"{block.place}: no rule for a block of {block.language or 'no language'}; see tests/docs/rules.py"
                  for block in blocks if rules.kind_of_block(block.language, block.text) is None and not snippets.is_piece(block)]
    commands = [command for block in blocks if rules.kind_of_block(block.language, block.text) == "commands"
                for command in snippets.commands_of_block(block)]
    run, seen = 0, set()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Scratch(Path(temporary), build, blocks)
        for command in [*commands, *snippets.inline_commands(ROOT)]:
            rule = rules.rule_of(command.text)
            if command.text in seen:
                continue
            seen.add(command.text)
            try:
                if rule is None:
                    raise Complaint(f"no rule for: {command.text}; see tests/docs/rules.py")
                if isinstance(rule, rules.Run):
                    run_command(scratch, command, rule)
                    run += 1
                else:
                    complaints += [f"{command.place}: {text}" for text in known.complaints(command.words())]
            except Complaint as complaint:
                complaints.append(f"{command.place}: {complaint}")
    print(f"{len(seen)} commands, {run} of them run")
    return complaints


def check_example(build: Path, source: Path, program: Path) -> list[str]:
    """The C++ program of the README is what this build compiled; it runs on two ranks."""
    blocks = [block for block in snippets.blocks_of(ROOT) if not snippets.is_piece(block)]
    by_kind = {rules.kind_of_block(block.language, block.text): block for block in blocks}
    if [block.text for block in blocks if block.language == "cpp"] != [source.read_text()]:
        return ["the C++ blocks of the documentation are not the one program that was compiled: build again"]
    launched = subprocess.run([build / "bin/fsdprun", "--standalone", "--nproc-per-node", "2", "--no-python", program],
                              capture_output=True, text=True, timeout=LIMIT_S)
    complaints = [] if launched.returncode == 0 else [f"the C++ program fails:\n{launched.stdout}{launched.stderr}"]
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary)
        (project / "fsdprun").symlink_to(ROOT)
        shutil.copy(source, project / "app.cc")
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(app CXX)\n"
                                                f"add_executable(app app.cc)\n{by_kind['CMake project'].text}")
        configured = subprocess.run(["cmake", "-G", "Ninja", "-S", project, "-B", project / "build"],
                                    capture_output=True, text=True, timeout=LIMIT_S)
        planned = subprocess.run(["ninja", "-C", project / "build", "-n", "app"], capture_output=True, text=True)
        if configured.returncode != 0 or "Linking CXX executable app" not in planned.stdout:
            complaints.append(f"the CMake lines do not make the program:\n{configured.stderr}{planned.stdout[-1000:]}")
    return complaints


def keys_of(config: dict) -> set[str]:
    return {f"{section}.{key}" for section, keys in config.items() for key in keys}


def check_help(build: Path) -> list[str]:
    """fsdp-train's help lists every key of the resolved configuration; fsdprun's gives each option its default."""
    def output(*command: str) -> str:
        return subprocess.run([build / "bin" / command[0], *command[1:]], capture_output=True, text=True, check=True).stdout

    with tempfile.TemporaryDirectory() as temporary:
        scratch = Scratch(Path(temporary), build, snippets.blocks_of(ROOT))
        resolved = json.loads(output("fsdp-train", "--print-config", "--config", str(scratch.folder / "train.json")))
    section, listed = "", set()
    for line in output("fsdp-train", "--help").split("Configuration keys")[1].splitlines():
        if match := re.fullmatch(r"(\w+)", line):
            section = match[1]
        elif match := re.match(r"  (\w+): ", line):
            listed.add(f"{section}.{match[1]}")
    complaints = [f"fsdp-train --help and --print-config do not have the same keys: {sorted(listed ^ keys_of(resolved))}"
                  ] if listed != keys_of(resolved) else []
    for part in re.split(r"^  (?=-)", output("fsdprun", "--help"), flags=re.M)[1:]:
        is_action = re.match(r"(-h, )?--(help|version|dry-run|man|completion|logs-specs|numa-binding|use-env)\b", part)
        # Nobody inherits from the environment that it is a coordinator, or a file that says what all is.
        wanted = r"Default: " if re.match(r"--(coordinator|journal|detach|attach|accelerate-config)\b", part) else r"Default: .*Environment:\s+PET_\w+"
        if not is_action and not re.search(wanted, part, re.S):
            complaints.append(f"fsdprun --help gives no default or variable of {part.split()[0]}")
    return complaints


def labels_of(report: str) -> set[str]:
    """Words before a colon at the start of a line, as in "  exitcode  : 1"; ranks and pids are left out."""
    return set(re.findall(r"^ *([A-Za-z][A-Za-z_ ]*?) *:(?= |$)", report, re.M))


def check_report(build: Path) -> list[str]:
    shown = [block for block in snippets.blocks_of(ROOT)
             if rules.kind_of_block(block.language, block.text) == "failure report"]
    real = set()
    for end in ("echo the reason >&2; exit 3", "kill -KILL $$"):
        command = [build / "bin/fsdprun", "--standalone", "--nproc-per-node", "2", "--no-python", "bash", "-c", end]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode == 0 or "Root Cause (first observed failure)" not in done.stderr:
            return [f"no report of: {end}\n{done.stderr}"]
        real |= labels_of(done.stderr)
    if not shown:
        return ["README.md and docs/ show no failure report"]
    print(f"{len(shown)} reports are shown; a real one has {sorted(real)}")
    return [f"{block.place}: a real report has no line {label!r}" for block in shown
            for label in sorted(labels_of(block.text) - real)]


def check_changes() -> list[str]:
    """install_consumer compiles and runs both files, and finds that they differ in nothing else that matters."""
    before, after = ((ROOT / f"tests/install/consumer/{name}.cc").read_text() for name in ("before", "after"))
    diffs = [block for block in snippets.blocks_of(ROOT) if block.language == "diff"]
    complaints = [] if diffs else ["README.md and docs/ show no diff"]
    for block in diffs:
        lines = block.text.splitlines(keepends=True)
        removed, added = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
        if removed == added or f"\n{removed}" not in before or f"\n{added}" not in after:
            complaints.append(f"{block.place}: does not make after.cc of before.cc, in tests/install/consumer")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["commands", "example", "help", "report", "changes"])
    parser.add_argument("--build", type=Path, required=True, help="the build whose programs are run")
    parser.add_argument("--source", type=Path, help="example: the C++ program as this build extracted it")
    parser.add_argument("--program", type=Path, help="example: and as it linked it")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.check == "commands":
        complaints = check_commands(options.build)
    elif options.check == "example":
        complaints = check_example(options.build, options.source, options.program)
    elif options.check == "changes":
        complaints = check_changes()
    else:
        check = {"help": check_help, "report": check_report}[options.check]
        complaints = check(options.build)
    print("\n".join(complaints) or "documentation and programs agree")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
