#!/usr/bin/env python3
"""Trains the same tiny Llama twice, with fsdp-train and with PyTorch's FSDP2, and compares every step.

Both sides start from the same weights and batches, with one compute thread per rank; Python uses torch.optim.AdamW, SGD or
Muon with its default implementation, which ours follows operation by operation, and PyTorch's own schedulers and
clip_grad_norm_.

loss       At two ranks bit-equal: a sum of two has one order. At more ranks the order of a reduction is the backend's
           choice, so that losses may differ by 1e-6 relative.
grad_norm  Within 5e-6 relative: the same gradients at two ranks, but their squares are summed in float32 shard by shard
           on our side and parameter by parameter on PyTorch's.
lr         Within 1e-12 relative: the same formula, which PyTorch's schedulers apply step by step.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import dcp_read
import forked_ranks
import fsdp2_train
import make_case
import safetensors_io

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def float32_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def run(command: list[str], log: Path, limit_s: float) -> None:
    """Runs to the end with one compute thread per rank; shows the log's end and stops if that fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    with open(log, "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=limit_s,
                              check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{log.read_text()[-4000:]}")


def read_steps(path: Path) -> list[dict]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [record for record in records if "loss" in record]
    assert [record["step"] for record in records] == sorted({record["step"] for record in records}), "steps out of order"
    return records


def difference(a: float, b: float, tolerance: float) -> tuple[str, bool]:
    """In words, and whether it is more than allowed (tolerance 0: any). Both are exact as read, so == compares bits."""
    if a == b:
        return "bit-equal", False
    relative = abs(a - b) / abs(b)
    is_wrong = tolerance == 0 or not relative <= tolerance
    return f"{relative:.1e}{' TOO MUCH' if is_wrong else ''}", is_wrong


def compare(ours: list[dict], theirs: list[dict], tolerances: dict[str, float]) -> tuple[str, int]:
    """A table, and in how many places the steps differ by more than allowed. The first key is shown with its values."""
    shown, *others = tolerances
    rows = ["step  " + "".join(f"{text:<20}" for text in (f"our {shown}", f"PyTorch's {shown}", "differs by", *others))]
    wrong = 0
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        cells = [f"{a[shown]:.9g}", f"{b[shown]:.9g}"]
        for key, tolerance in tolerances.items():
            text, is_wrong = difference(a[key], b[key], tolerance)
            cells.append(text)
            wrong += is_wrong
        rows.append(f"{step:4d}  " + "".join(f"{cell:<20}" for cell in cells))
    return "\n".join(rows), wrong


def self_test() -> None:
    """The comparison must notice one bit, a loss that is not a number, a wrong norm, and a missing step."""
    def count(ours: list[float], theirs: list[float], tolerance: float) -> int:
        return compare([{"loss": x} for x in ours], [{"loss": x} for x in theirs], {"loss": tolerance})[1]

    one_bit_more = struct.unpack("<f", struct.pack("<I", float32_bits(2.5) + 1))[0]
    assert count([2.5], [2.5], 0) == 0 and count([one_bit_more], [2.5], 0) == 1
    assert count([2.5 + 1e-5], [2.5], 1e-6) == 1 and count([one_bit_more], [2.5], 1e-6) == 0
    assert count([float("nan")], [2.5], 1e-6) == 1
    assert compare([{"loss": 1.0, "norm": 2.0}], [{"loss": 1.0, "norm": 2.1}], {"loss": 0.0, "norm": 1e-3})[1] == 1
    try:
        count([1.0], [1.0, 2.0], 0)
    except ValueError:
        return
    raise AssertionError("a missing step went unnoticed")


# Their keys of the configuration.
OPTIMIZERS = {"sgd": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True},
              "muon": {"name": "muon", "lr": 2e-3, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}}


def changes_of(options: argparse.Namespace) -> dict[str, dict]:
    """Sections of the configuration that the options change."""
    changes: dict[str, dict] = {"train": {"activation_checkpointing": options.activation_checkpointing,
                                          "sync_each_micro_batch": not options.no_sync}}
    if options.precision != "float32":
        changes["precision"] = {"param": options.precision, "reduce": "float32", "output": "float32"}
    if options.schedule != "constant":
        changes["schedule"] = {"kind": options.schedule, "warmup_steps": 5, "min_lr_ratio": 0.1}
    if options.trained_by != "adamw":
        changes["optimizer"] = OPTIMIZERS[options.trained_by]
    if options.replicate > 1:
        changes["parallel"] = {"dp_replicate": options.replicate}
    return changes


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--replicate", type=int, default=1, help="copies of the model, each sharded over ranks / copies (HSDP)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backend", choices=["shm", "gloo"], nargs="+", default=["shm"],
                        help="of ours; each is compared with the one run of PyTorch, which uses Gloo")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true", help="gradients are reduced once per step, not after each micro batch")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--tolerance", type=float, help="relative; 0: bit-equal (default: 0 at two ranks, else 1e-6)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32",
                        help="of the parameters in computation; gradients are reduced in float32")
    parser.add_argument("--schedule", choices=["constant", "linear", "cosine"], default="constant",
                        help="of the learning rate; the others have 5 steps of warm-up and end at a tenth")
    parser.add_argument("--activation-checkpointing", action="store_true",
                        help="on both sides; our losses must also be those without it")
    parser.add_argument("--trained-by", choices=["adamw", *OPTIMIZERS], default="adamw", help="optimizer on both sides")
    parser.add_argument("--optimizer", choices=["default", "fused", "foreach"], default="default", help="Python's AdamW")
    parser.add_argument("--checkpoint", action="store_true",
                        help="also read our checkpoints with Python's DCP and compare them with FSDP2's weights and AdamW's state, bit by bit")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    if options.tolerance is None:
        options.tolerance = 0.0 if options.ranks <= 2 else 1e-6
    return options


class Case:
    """One configuration in `folder`: PyTorch's run of it, and ours with each backend in a folder of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder
        self.config = make_case.write_case(folder, steps=options.steps, accumulation=options.accumulation,
                                           clip=options.clip, tied=options.tied, shuffle=options.shuffle,
                                           ranks=options.ranks, changes=changes_of(options))
        self.launch = [str(options.bin / "fsdprun"), "--standalone", f"--nproc-per-node={options.ranks}", "--no-python"]
        self.final_state = folder / "final.safetensors"

    def train_pytorch(self) -> list[dict]:
        output = self.folder / "python.jsonl"
        forked_ranks.fork_ranks(self.options.ranks, fsdp2_train.train, json.loads(self.config.read_text()), output, self.final_state,
                                self.options.optimizer, True)
        return read_steps(output)

    def train_ours(self, name: str, backend: str, *settings: str) -> list[dict]:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        every = self.options.steps if self.options.checkpoint else 0
        sets = [word for text in (f"parallel.backend={backend}", f"metrics.jsonl={place / 'metrics.jsonl'}",
                                  f"checkpoint.dir={place / 'checkpoints'}", f"checkpoint.every_steps={every}", *settings)
                for word in ("--set", text)]
        run([*self.launch, str(self.options.bin / "fsdp-train"), "--config", str(self.config), *sets],
            place / "log", 300)
        return read_steps(place / "metrics.jsonl")

    def count_differences(self, backend: str, theirs: list[dict]) -> int:
        """Trains with the backend, prints what was compared, and returns in how many places it differs too much."""
        tolerance = self.options.tolerance
        steps = self.train_ours(backend, backend)
        table, wrong = compare(steps, theirs, {"loss": tolerance, "grad_norm": 5e-6, "lr": 1e-12, "tokens": 0.0})
        print(table)
        print(f"{self.options.ranks} ranks, {backend}: " + (f"{wrong} values differ too much" if wrong else
              "every loss is " + ("bit-equal" if tolerance == 0 else f"within {tolerance:g} relative")))
        if self.options.activation_checkpointing:
            kept = self.train_ours(f"{backend}-kept", backend, "train.activation_checkpointing=false")
            table, changed = compare(steps, kept, {"loss": 0.0, "grad_norm": 0.0})
            print(f"{table}\nfsdp-train that keeps its activations: {changed or 'no'} values differ")
            wrong += changed
        if self.options.checkpoint:
            expected = safetensors_io.load(self.final_state)
            state = ".exp_avg_sq" if self.options.trained_by == "adamw" else ".momentum_buffer"
            assert any(name.endswith(state) for name in expected), sorted(expected)
            differing = dcp_read.compare(self.folder / backend / "checkpoints", expected, ("model.", "optim.state."))
            print("\n".join(differing) or f"{len(expected)} tensors of the checkpoint, weights, moments and step counts, have the same "
                                           "bits when torch.distributed.checkpoint reads them")
            wrong += len(differing)
        return wrong


def main() -> int:
    options = parse_options()
    self_test()
    with tempfile.TemporaryDirectory() as temporary:
        case = Case(options, (options.keep or Path(temporary)).resolve())
        theirs = case.train_pytorch()
        wrong = sum(case.count_differences(backend, theirs) for backend in options.backend)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
