#!/usr/bin/env python3
"""Trains the same tiny Llama twice, with fsdp-train and with PyTorch's FSDP2, and compares every loss.

Both sides start from the same weights and batches, in fp32, with one compute thread per rank; Python uses
torch.optim.AdamW with its default implementation, which ours follows operation by operation. At two ranks the losses
must be bit-equal: a sum of two has one order. At more ranks the order of a reduction is the backend's choice, so that
losses may differ by 1e-6 relative.
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


def read_losses(path: Path) -> list[float]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [record for record in records if "loss" in record]
    assert [record["step"] for record in records] == sorted({record["step"] for record in records}), "steps out of order"
    return [record["loss"] for record in records]


def compare(ours: list[float], theirs: list[float], tolerance: float) -> tuple[str, int]:
    """A table, and in how many steps the losses differ by more than allowed (tolerance 0: in any bit)."""
    rows, wrong = ["step  fsdp-train          PyTorch FSDP2       difference"], 0
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        equal = float32_bits(a) == float32_bits(b)
        relative = abs(a - b) / abs(b)
        bad = not equal and (tolerance == 0 or not relative <= tolerance)
        wrong += bad
        verdict = "bit-equal" if equal else f"{relative:.1e} relative"
        rows.append(f"{step:4d}  {a:<18.9g}  {b:<18.9g}  {verdict}{'  TOO MUCH' if bad else ''}")
    return "\n".join(rows), wrong


def self_test() -> None:
    """The comparison must notice one bit, a loss that is not a number, and a missing step."""
    one_bit_more = struct.unpack("<f", struct.pack("<I", float32_bits(2.5) + 1))[0]
    assert compare([2.5], [2.5], 0)[1] == 0 and compare([one_bit_more], [2.5], 0)[1] == 1
    assert compare([2.5 + 1e-5], [2.5], 1e-6)[1] == 1 and compare([one_bit_more], [2.5], 1e-6)[1] == 0
    assert compare([float("nan")], [2.5], 1e-6)[1] == 1
    try:
        compare([1.0], [1.0, 2.0], 0)
    except ValueError:
        return
    raise AssertionError("a missing step went unnoticed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backend", choices=["shm", "gloo"], default="shm")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--tolerance", type=float, help="relative; 0: bit-equal (default: 0 at two ranks, else 1e-6)")
    parser.add_argument("--optimizer", choices=["default", "fused", "foreach"], default="default", help="Python's AdamW")
    parser.add_argument("--checkpoint", action="store_true",
                        help="also read our checkpoint with Python's DCP and compare it with FSDP2's weights, bit by bit")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    self_test()
    tolerance = options.tolerance if options.tolerance is not None else (0.0 if options.ranks <= 2 else 1e-6)

    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        config = make_case.write_case(folder, steps=options.steps, accumulation=options.accumulation, clip=options.clip,
                                      tied=options.tied, shuffle=options.shuffle, ranks=options.ranks)
        launch = [str(options.bin / "fsdprun"), "--standalone", f"--nproc-per-node={options.ranks}"]
        run([*launch, "--no-python", sys.executable, str(HERE / "fsdp2_train.py"), "--config", str(config), "--output", str(folder / "python.jsonl"),
             "--final-weights", str(folder / "final.safetensors"), "--optimizer", options.optimizer],
            folder / "python.log", 300)
        every = options.steps if options.checkpoint else 0
        run([*launch, "--no-python", str(options.bin / "fsdp-train"), "--config", str(config),
             "--set", f"parallel.backend={options.backend}", "--set", f"checkpoint.every_steps={every}"],
            folder / "ours.log", 300)
        table, wrong = compare(read_losses(folder / "metrics.jsonl"), read_losses(folder / "python.jsonl"), tolerance)
        print(table)
        print(f"{options.ranks} ranks, {options.backend}: " + (f"{wrong} losses differ too much" if wrong else
              "every loss is " + ("bit-equal" if tolerance == 0 else f"within {tolerance:g} relative")))
        if options.checkpoint:
            differing = dcp_read.compare(folder / "checkpoints", safetensors_io.load(folder / "final.safetensors"))
            print("\n".join(differing) or "the checkpoint, read by torch.distributed.checkpoint, has the same bits")
            wrong += len(differing)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
