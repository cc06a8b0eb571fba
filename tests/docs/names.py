"""Whether what a documented command names exists: script, flag, test, label, target, preset."""

import itertools
import json
import re
import subprocess
from pathlib import Path

# Stand for something that the reader fills in.
PLACEHOLDERS = {"NAME", "LABEL", "PRESET", "OUTPUT.md", "train.py"}


class Names:
    def __init__(self, root: Path, build: Path):
        self.root, self.build = root, build
        listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True,
                                check=True).stdout
        tests = json.loads(listed)["tests"]
        self.tests = [test["name"] for test in tests]
        self.labels = {label for test in tests for entry in test.get("properties", []) if entry["name"] == "LABELS"
                       for label in entry["value"]}
        # Of a test that this build has not compiled, ctest knows nothing.
        declared = (build / "fsdprun_tests.txt").read_text().splitlines()
        self.labels |= {line.split("|")[0] for line in declared}
        presets = json.loads((root / "CMakePresets.json").read_text())["configurePresets"]
        self.presets = {preset["name"] for preset in presets if not preset.get("hidden")}

    def complaints(self, words: list[str]) -> list[str]:
        while "=" in words[0]:  # VARIABLE=value before the command
            words = words[1:]
        if words[0] == "ctest":
            return self._ctest(words)
        if words[0] == "ninja":
            return self._ninja(words)
        if words[0].endswith("fsdprun") and words[1:2] == ["chaos"]:
            return self._chaos(words[2:])
        if words[0] == "fsdp-train" and re.fullmatch(r"[a-z]+", (words[1:] or [""])[0]):
            return self._subcommand(words)
        if words[0] in ("fsdprun", "fsdp-train", "fsdp-agent"):
            shown = subprocess.run([self.build / "bin" / words[0], "--help"], capture_output=True, text=True, check=True)
            return [f"{words[0]} --help says nothing of {word}" for word in words[1:]
                    if re.fullmatch(r"-[\w-]+|[a-z]+", word) and word not in shown.stdout]
        if words[0] == "srun":  # what it starts
            words = list(itertools.dropwhile(lambda word: word.startswith("-"), words[1:]))
        if words[0] in ("fsdpctl", "build/bin/fsdpctl"):
            return self._fsdpctl(words[1:])
        if words[0] in ("sbatch", "jq"):
            return []
        if words[0] == "cmake":
            return self._cmake(words)
        if words[0] == ".venv/bin/python" or words[0].endswith("fsdprun"):
            script = next(number for number, word in enumerate(words) if word.endswith(".py"))
            return self._python_script(words[script], words[script + 1 :])
        return self._script(words[0], words[1:])

    def _subcommand(self, words: list[str]) -> list[str]:
        def help_of(*words: str) -> str:
            return subprocess.run([self.build / "bin" / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True).stdout

        if not re.search(rf"^  {words[1]} ", help_of(words[0]), re.M):
            return [f"{words[0]} has no subcommand {words[1]}"]
        shown = help_of(*words[:2])
        return [f"{words[0]} {words[1]} --help says nothing of {word}" for word in words[2:] if word.startswith("-") and word not in shown]

    def _chaos(self, words: list[str]) -> list[str]:
        """Its own flags, and after `--` a command."""
        own = list(itertools.takewhile(lambda word: word != "--", words))
        shown = subprocess.run([self.build / "bin/fsdprun", "chaos", "--help"], capture_output=True, text=True, check=True)
        complaints = [f"fsdprun chaos --help says nothing of {word}" for word in own
                      if word.startswith("--") and word.split("=")[0] not in shown.stdout]
        started = [words[len(own) + 1].removeprefix("build/bin/"), *words[len(own) + 2 :]] if len(words) > len(own) else []
        return complaints + (self.complaints(started) if started else [])

    def _fsdpctl(self, words: list[str]) -> list[str]:
        """A command, and flags of it."""
        name = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z]+", word), words[:2]))
        shown = subprocess.run([self.build / "bin/fsdpctl", *name, "--help"], capture_output=True, text=True)
        if shown.returncode != 0 or " ".join(name) not in shown.stdout:
            return [f"fsdpctl has no command {' '.join(name)}"]
        return [f"fsdpctl {' '.join(name)} --help says nothing of {word}" for word in words
                if word.startswith("--") and word.split("=")[0] not in shown.stdout]

    def _script(self, path: str, arguments: list[str]) -> list[str]:
        script = self.root / path
        if not script.is_file():
            return [f"{path} does not exist"]
        if path.endswith(".py"):
            return self._python_script(path, arguments)
        text = script.read_text()
        found = [f"{path} knows no {word}" for word in arguments if word.startswith("--") and word not in text]
        for option, value in zip(arguments, arguments[1:]):
            if option == "--label" and value not in self.labels | PLACEHOLDERS:
                found.append(f"no test has the label {value}")
            if option == "--preset" and value not in self.presets | PLACEHOLDERS:
                found.append(f"there is no preset {value}")
        if path == "scripts/build" and arguments and arguments[0] not in self.presets | PLACEHOLDERS:
            found.append(f"there is no preset {arguments[0]}")
        return found

    def _python_script(self, path: str, arguments: list[str]) -> list[str]:
        """Flags, and words without a dash or a slash, have to be strings of the script's source."""
        if path in PLACEHOLDERS:
            return []
        script = self.root / path
        if not script.is_file():
            return [f"{path} does not exist"]
        text = script.read_text()
        return [f"{path} knows no {word}" for word in arguments
                if re.fullmatch(r"--[a-z-]+|[a-z][a-z_]*", word) and f'"{word}"' not in text]

    def _ctest(self, words: list[str]) -> list[str]:
        found = []
        for option, value in zip(words, words[1:]):
            if value in PLACEHOLDERS:
                continue
            if option == "-R" and not any(re.search(value, name) for name in self.tests):
                found.append(f"no test has a name like {value}")
            if option in ("-L", "-LE") and not any(re.search(value, label) for label in self.labels):
                found.append(f"no test has a label like {value}")
            if option == "--test-dir" and Path(value).name not in self.presets:
                found.append(f"no preset builds into {value}")
        return found

    def _cmake(self, words: list[str]) -> list[str]:
        """Build folders and components; what it configures is a project of the reader's."""
        known = set(re.findall(r"COMPONENT (\w+)", (self.root / "cmake/FsdprunInstall.cmake").read_text()))
        options = list(zip(words, words[1:]))
        return ([f"nothing is installed as the component {value}" for option, value in options if option == "--component" and value not in known] +
                [f"no preset builds into {value}" for option, value in options if option == "--install" and Path(value).name not in self.presets])

    def _ninja(self, words: list[str]) -> list[str]:
        targets = [word for number, word in enumerate(words[1:], 1) if not word.startswith("-") and words[number - 1] != "-C"]
        return [f"there is no target {target}" for target in targets
                if subprocess.run(["ninja", "-C", self.build, "-t", "query", target], capture_output=True).returncode != 0]
