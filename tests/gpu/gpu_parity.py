#!/usr/bin/env python3
"""Trains the same small Llama on one device with libfsdp and with PyTorch's FSDP2, at one rank, and compares every step.

    gpu_parity.py --program gpu_train [--device cuda|cpu] [--rows ROW...] [--output FILE.json]

Both sides start from the same weights and batches, computed by a formula. What is compared: losses, norms of gradients where they are
clipped, and the weights at the end. On the CPU all bits, but for clipping, whose norms are added up in another order. On a GPU what
is computed by the same kernels is expected to be bit-equal, too, and the table says where it is; a row fails beyond these
tolerances:

losses, norms  relative, of each step
learned        the length of the difference of the weights at the end, by that of the way from the first ones to PyTorch's last

libfsdp trains all rows first, and each side has a limit of its own, so that one that fails or hangs says nothing of the other. A number
that is not finite fails its row.

Exit code 1 if a row differs by more or could not be run. FILE has a record for each row, those that were done before an end that comes
early included.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts/lib"))
from gpu_results import read_result  # noqa: E402

MODELS = {
    "cpu": {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2},
    "cuda": {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 4},
}
SIZES = {"cpu": {"batch": 2, "length": 16}, "cuda": {"batch": 4, "length": 128}}
STEPS = 6
LIMITS_S = {"libfsdp": 120, "PyTorch": 100}  # for all rows


@dataclass(frozen=True)
class Tolerance:
    losses: float = 0
    norms: float = 0
    learned: float = 0


EXACT = Tolerance()
# float32 sums in another order: some units in the last place for each step.
ROUNDED = Tolerance(losses=1e-6, norms=5e-6, learned=1e-4)
ON_GPU = {"float32": Tolerance(losses=1e-5, norms=1e-5, learned=2e-3), "bfloat16": Tolerance(losses=5e-3, norms=2e-2, learned=0.1)}


@dataclass(frozen=True)
class Row:
    name: str
    changes: dict = field(default_factory=dict)
    on_cpu: Tolerance = EXACT
    first: str = ""  # who trains the first half, and hands it over through files: "libfsdp", "PyTorch" or nobody


ROWS = [
    Row("float32"),
    Row("bfloat16", {"precision": "bfloat16"}),
    Row("accumulation", {"micro_batches": 3}),
    Row("activation_checkpointing", {"activation_checkpointing": True, "precision": "bfloat16"}),
    Row("clipping", {"max_grad_norm": 0.1}, ROUNDED),
    Row("sharded_parameters", {"optimizer": "sgd", "lr": 0.05}),
    Row("graph", {"graph": True, "activation_checkpointing": True, "micro_batches": 2, "lr_factor": 0.5}),
    Row("graph_clipping", {"graph": True, "max_grad_norm": 0.1}, ROUNDED),
    Row("without_communication", {"communicates": False}),
    Row("checkpoint", first="libfsdp"),
    Row("checkpoint_of_pytorch", first="PyTorch"),
]


def case_of(row: Row, device: str) -> dict:
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
             "max_position_embeddings": 512, "tie_word_embeddings": False, **MODELS[device]}
    return {"model": model, "device": device, "group": "alone", "communicates": True, "precision": "float32", "kernels": "reference",
            "activation_checkpointing": False, "graph": False, "optimizer": "adamw", "lr": 1e-3, "lr_factor": 1, "max_grad_norm": 0, "first_step": 0, "steps": STEPS,
            "micro_batches": 1, **SIZES[device], "init": "formula", "read_from": "", "write_to": "", "timed": False, "seconds": 0,
            **row.changes}


@dataclass
class Run:
    """One training: its case, where it writes, and what it has found."""

    folder: Path
    case: dict

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.case["write_to"] = str(self.folder)
        self.path, self.output = self.folder / "case.json", self.folder / "result.json"

    def prepare(self) -> list[str]:
        self.path.write_text(json.dumps(self.case))
        return [str(self.path), str(self.output)]

    def result(self) -> dict:
        result = read_result(self.output, self.folder.name) if self.output.exists() else {"error": "it has written no result"}
        if "error" in result:
            raise RuntimeError(f"{self.folder.name}: {result['error']}")
        return result


def halves(case: dict) -> tuple[dict, dict]:
    middle = case["steps"] // 2
    return {**case, "steps": middle}, {**case, "first_step": middle, "steps": case["steps"] - middle}


def run(command: list[str], limit_s: float) -> None:
    if limit_s < 1:
        raise RuntimeError("not reached in time")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode} of {Path(command[0]).name}: {(done.stdout + done.stderr)[-2000:]}")


def run_pytorch(runs: list[Run]) -> str:
    """All cases in one process. Returns what it has printed, if it has failed; each row asks for the result of its own."""
    command = [sys.executable, str(HERE / "fsdp2_train_gpu.py")]
    try:
        done = subprocess.run(command + [part for one in runs for part in one.prepare()], capture_output=True, text=True, check=False,
                              timeout=LIMITS_S["PyTorch"])
    except subprocess.TimeoutExpired as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


class Comparison:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.program, self.device, self.folder = str(options.program), options.device, folder
        self.rows = [row for row in ROWS if not options.rows or row.name in options.rows]
        self.theirs = {row.name: Run(folder / f"pytorch_{row.name}", case_of(row, self.device)) for row in self.rows}
        self.first = {row.name: Run(folder / f"pytorch_first_{row.name}", halves(case_of(row, self.device))[0])
                      for row in self.rows if row.first == "PyTorch"}
        self.ours: dict[str, tuple[dict, int] | Exception] = {}
        self.end = time.monotonic() + LIMITS_S["libfsdp"]

    def run_libfsdp(self, first: str) -> None:
        """The rows in which PyTorch trains the first half, or the others."""
        for row in self.rows:
            if (row.first == "PyTorch") == (first == "PyTorch"):
                try:
                    self.ours[row.name] = self.train_with_libfsdp(row)
                except Exception as error:  # the other rows go on
                    self.ours[row.name] = error

    def run_pytorch(self) -> str:
        begin = time.monotonic()
        printed = run_pytorch([*self.theirs.values(), *self.first.values()])
        self.end += time.monotonic() - begin
        return printed

    def train_with_libfsdp(self, row: Row) -> tuple[dict, int]:
        """The last result, and how many steps were done before it."""
        case, skipped = case_of(row, self.device), 0
        if row.first:
            before, case = halves(case)
            skipped = before["steps"]
            if row.first == "libfsdp":
                first = Run(self.folder / f"libfsdp_first_{row.name}", before)
                run([self.program, *first.prepare()], self.end - time.monotonic())
            else:
                first = self.first[row.name]
                first.result()
            case["read_from"] = str(first.folder)
        last = Run(self.folder / f"libfsdp_{row.name}", case)
        run([self.program, *last.prepare()], self.end - time.monotonic())
        return last.result(), skipped

    def compare(self, row: Row) -> dict:
        trained = self.ours[row.name]
        if isinstance(trained, Exception):
            raise trained
        ours, skipped = trained
        theirs = self.theirs[row.name].result()
        case = case_of(row, self.device)
        tolerance = row.on_cpu if self.device == "cpu" else ON_GPU[case["precision"]]
        found = {"losses": worst(ours["losses"], theirs["losses"][skipped:]),
                 "norms": worst(ours["norms"], theirs["norms"][skipped:]),
                 "learned": self.learned(row)}
        passed = all(found[key] <= getattr(tolerance, key) for key in found)
        return {"row": row.name, "passed": passed, "bits_equal": not any(found.values()), "differences": found,
                "tolerances": vars(tolerance), "losses": ours["losses"], "group": ours["group"], "collectives": ours["collectives"]}

    def losses(self, row: Row) -> dict:
        """libfsdp's, if it has trained."""
        trained = self.ours[row.name]
        return {} if isinstance(trained, Exception) else {"losses": trained[0]["losses"]}

    def learned(self, row: Row) -> float:
        import torch
        from fsdp2_train_gpu import values_by_formula

        states = [torch.load(self.folder / f"{side}_{row.name}" / "model.pt", weights_only=True) for side in ("libfsdp", "pytorch")]
        if list(states[0]) != list(states[1]):
            raise RuntimeError(f"names: {list(states[0])} with libfsdp, {list(states[1])} with PyTorch")
        difference = way = 0.0
        for index, (name, theirs) in enumerate(states[1].items()):
            first = values_by_formula(index, name, theirs.shape).double()
            difference += (states[0][name].double().cpu() - theirs.double().cpu()).square().sum().item()
            way += (theirs.double().cpu() - first).square().sum().item()
        if not math.isfinite(difference) or not math.isfinite(way) or way == 0:
            raise RuntimeError(f"weights: a difference of {difference} on a way of {way} (squares)")
        return (difference / way) ** 0.5


def worst(ours: list[float | None], theirs: list[float | None]) -> float:
    """The largest relative difference. libfsdp's side writes what is not finite as null."""
    for side, values in (("libfsdp", ours), ("PyTorch", theirs)):
        for step, value in enumerate(values):
            if value is None or not math.isfinite(value):
                raise RuntimeError(f"not finite with {side}: {value} at step {step}")
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} steps with libfsdp, {len(theirs)} with PyTorch")
    return max((0.0 if a == b else abs(a - b) / abs(b) if b else float("inf") for a, b in zip(ours, theirs, strict=True)), default=0.0)


def self_test() -> None:
    """The comparison must notice a bit, a NaN and a missing step."""
    assert worst([2.5], [2.5]) == 0 and worst([2.5000001], [2.5]) > 0
    assert not Row("").on_cpu.losses >= worst([1.0, 2.0], [1.0, 2.0 + 1e-15])
    nan = float("nan")
    for ours, theirs in (([1.0], [1.0, 2.0]), ([nan], [2.5]), ([2.5, nan], [2.5, 1.0]), ([2.5, None], [2.5, 1.0]), ([2.5, 1.0], [2.5, nan]),
                         ([2.5, nan], [2.5, nan])):
        try:
            worst(ours, theirs)
        except RuntimeError:
            continue
        raise AssertionError(f"went unnoticed: {ours} and {theirs}")


def line_of(record: dict) -> str:
    if "error" in record:
        return f"{record['row']:<26} FAILED   {record['error']}"
    differences = ", ".join(f"{key} {value:.1e}" for key, value in record["differences"].items() if value)
    return (f"{record['row']:<26} {'passed' if record['passed'] else 'DIFFERS':<8} {differences or 'bit-equal'}"
            + ("" if record["passed"] else f"; allowed {record['tolerances']}"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="gpu_train")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], metavar="ROW", help="some of them")
    parser.add_argument("--output", type=Path, help="JSON: a record for each row")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    sys.path.insert(0, str(HERE))
    self_test()
    records: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, Path(folder))
        comparison.run_libfsdp(first="libfsdp")
        printed = comparison.run_pytorch()
        comparison.run_libfsdp(first="PyTorch")
        for row in comparison.rows:
            try:
                record = comparison.compare(row)
            except Exception as error:  # the other rows are compared
                record = {"row": row.name, "passed": False, "error": f"{type(error).__name__}: {error}", **comparison.losses(row)}
            records.append(record)
            print(line_of(record), flush=True)
            if options.output:
                options.output.write_text(json.dumps(records, indent=1) + "\n")
    if printed:
        print(f"PyTorch's side failed:\n{printed}")
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
