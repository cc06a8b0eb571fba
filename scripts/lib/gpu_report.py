"""The report of scripts/gpu: report.json and report.md in a folder, written anew after each part, so that what was done is not lost."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from gpu_results import UnreadableResult, read_result

BUILD_LOG, TESTS_LOG = "build.log", "tests.log"  # all output, beside the report
GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit",
              "temperature.gpu", "ecc.mode.current", "mig.mode.current")
VERSIONS = ("import json, torch; print(json.dumps({'torch': torch.__version__, 'CUDA': torch.version.cuda, "
            "'NCCL': '.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None, "
            "'GPU usable by torch': torch.cuda.is_available(), "
            "'compute capability': torch.cuda.get_device_capability() if torch.cuda.is_available() else None}))")


def printed(command: list[str], limit_s: float = 10) -> str:
    """What a command prints; why it could not be asked, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return done.stdout.strip() if done.returncode == 0 else f"({(done.stderr or done.stdout).strip()[-300:]})"


def gpu_state(limit_s: float = 20) -> dict[str, str]:
    line = printed(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"], limit_s).splitlines()[:1]
    values = line[0].split(", ") if line else []
    if len(values) != len(GPU_FIELDS):
        return {"nvidia-smi": line[0] if line else "prints nothing"}
    return dict(zip(GPU_FIELDS, values, strict=True))


class Versions:
    """torch's, CUDA's and NCCL's, by a process that works beside others: to load them takes long on a machine that has just started."""

    LIMIT_S = 40

    def __init__(self, script: str = VERSIONS):
        self.end = time.monotonic() + self.LIMIT_S
        self.process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def found(self, left_s: float) -> dict:
        """Waits until the limit of its own, at most `left_s`, and leaves no process behind."""
        try:
            text, _ = self.process.communicate(timeout=max(min(self.end - time.monotonic(), left_s), 0.1))
            return json.loads(text.splitlines()[-1])
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"torch": f"(has not told its version within {self.LIMIT_S} s, or what was left of them)"}
        except (json.JSONDecodeError, IndexError):
            return {"torch": f"({text.strip()[-300:]})"}


def first_line(command: list[str]) -> str:
    return next(iter(printed(command).splitlines()), "(prints nothing)")


def machine(device: str, root: Path) -> dict:
    commit = root / "COMMIT"
    found = {"commit": commit.read_text().strip() if commit.exists() else printed(["git", "-C", str(root), "describe", "--always", "--dirty"]),
             "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version(),
             "compiler": first_line(["c++", "--version"]), "cmake": first_line(["cmake", "--version"])}
    return {**found, **gpu_state()} if device == "cuda" else found


def passed(part: dict) -> bool:
    """What was skipped has not: there is a GPU."""
    return part["status"] == "passed"


def take_results(part: dict, output: Path) -> None:
    """Of the JSON that the part has written; why there are none, if that is not JSON: the part has not passed then."""
    try:
        part["results"] = read_result(output, part["name"])
    except UnreadableResult as error:
        part["output"] = f"{part['output'].rstrip()}\n\n{error}\n".lstrip()
        if passed(part):
            part["status"] = "failed (result)"


class Report:
    """`begin`: of the process, by time.monotonic()."""

    def __init__(self, folder: Path, device: str, root: Path, begin: float):
        self.folder, self.device, self.begin = folder, device, begin
        for name in ("parity.json", "benchmark.json", BUILD_LOG, TESTS_LOG):
            (folder / name).unlink(missing_ok=True)  # of an earlier run
        self.data: dict = {"device": device, "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                           "machine": machine(device, root), "parts": [], "is_complete": False}
        self.write()

    def add(self, part: dict, output: str) -> None:
        """`output`: a file of JSON that the part has written, or none."""
        if output and Path(output).exists():
            take_results(part, Path(output))
        if self.device == "cuda" and part["name"] == "benchmark":
            self.data["machine behind the benchmark"] = gpu_state(limit_s=3)
        self.data["parts"].append(part)
        print(f"{part['status']:<16} {part['seconds']:>6.1f} s  {part['name']}", flush=True)
        self.write()

    def know(self, versions: dict) -> None:
        self.data["machine"] |= versions
        self.write()

    def end(self) -> None:
        self.data["is_complete"] = True
        self.write()

    def has_passed(self) -> bool:
        return all(passed(part) for part in self.data["parts"])

    def write(self) -> None:
        self.data["seconds"] = round(time.monotonic() - self.begin, 1)
        for name, text in (("report.json", json.dumps(self.data, indent=1) + "\n"), ("report.md", self.in_words())):
            temporary = self.folder / f".{name}"
            temporary.write_text(text)
            temporary.replace(self.folder / name)

    def in_words(self) -> str:
        data = self.data
        failed = [part for part in data["parts"] if not passed(part)]
        lines = [f"# {'One GPU' if self.device == 'cuda' else 'Without a GPU'}, {data['date']}", "",
                 f"{len(data['parts'])} parts in {data['seconds']:.0f} s, of which {len(failed)} did not pass"
                 + ("." if data["is_complete"] else "; it has not come to its end."), "", "| | |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in data["machine"].items()]
        if "machine behind the benchmark" in data:
            state = data["machine behind the benchmark"]
            lines.append(f"| behind the benchmark | {', '.join(f'{key} {value}' for key, value in state.items() if 'clocks' in key or 'temp' in key)} |")
        lines += ["", "| part | result | seconds |", "|---|---|---|"]
        lines += [f"| {part['name']} | {part['status']} | {part['seconds']} |" for part in data["parts"]]
        for part in data["parts"]:
            if not passed(part) or "results" in part:
                lines += ["", f"## {part['name']}: {part['status']}", "", part["what"] + ".", ""]
                is_table = part["name"] == "benchmark" and part["output"].startswith("|")
                lines += [part["output"]] if is_table else ["```", part["output"].rstrip(), "```"]
        return "\n".join(lines) + "\n"
