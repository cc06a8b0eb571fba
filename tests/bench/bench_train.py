#!/usr/bin/env python3
"""Training throughput of a 33.6 M-parameter Llama on 2 ranks: fsdp-train against PyTorch's FSDP2 and DDP over Gloo, in turns.

Same shapes and batches, one compute thread per rank. The Python side shards each decoder layer and the root, keeps
FSDP2's default prefetching and uses torch.optim.AdamW(fused=True), the fastest of its three implementations here. The side
"alone" is fsdp-train without communication: two jobs of one rank at once, each with the whole model and optimizer. Exit code 1
if a ratio is below its limit (limits.py); the limits beside DDP and "alone" are for certain modes and batches, and need these sides.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import limits
import measure

PARITY = measure.ROOT / "tests/parity"
WARM_UP_STEPS = 3
# 8 layers of (4 * 512^2 + 3 * 512 * 1368), two 8192 x 512 tables, the norms: 33.6 M parameters.
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8192, "hidden_size": 512,
         "intermediate_size": 1368, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
         "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32"}
# 32 layers in which there is next to nothing to compute, so that what a step costs beside that shows.
DEEP_MODEL = {**MODEL, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 32, "vocab_size": 512}
MODELS = {"33.6 M": MODEL, "deep": DEEP_MODEL}

# What is different from plain fp32 training.
MODES = {
    "fp32": {},
    "bf16": {"precision": {"param": "bfloat16", "reduce": "float32"}},
    "accumulation": {"train": {"grad_accumulation": 4}},
    "accumulation-in-whole": {"train": {"grad_accumulation": 4, "sync_each_micro_batch": False}},
    "checkpointing": {"train": {"activation_checkpointing": True}},
}
NAMES = {"FSDP2": "PyTorch FSDP2 + Gloo", "DDP": "PyTorch DDP + Gloo", "alone": "fsdp-train, no communication",
         "shm": "fsdp-train, shared memory", "gloo": "fsdp-train, Gloo"}
# What "alone" would reach if each of its steps took as long as that of the slower job: an estimate of what ranks lose by waiting for
# one another on a machine that scatters.
IN_STEP = "in step"
BASES = ("FSDP2", "DDP", "alone")  # beside which our sides are judged


@dataclass(frozen=True)
class Case:
    """A program of `steps` optimizer steps on batches of `micro_batch` x `length` tokens for each of two ranks."""

    steps: int
    micro_batch: int
    length: int
    mode: str
    model: str = "33.6 M"

    def batch(self) -> str:
        return f"{self.micro_batch} x {self.length}"

    def rounds(self) -> int:
        return MODES[self.mode].get("train", {}).get("grad_accumulation", 1)

    def tokens_per_step(self) -> int:
        return 2 * self.rounds() * self.micro_batch * self.length


def write_case(folder: Path, case: Case) -> Path:
    steps, micro_batch, length = case.steps, case.micro_batch, case.length
    (folder / "config.json").write_text(json.dumps(MODELS[case.model]))
    sentence = "It was the best of times, it was the worst of times. "
    (folder / "train.txt").write_text(sentence * (case.steps * case.tokens_per_step() // len(sentence) + length))
    config = {
        "model": {"config": str(folder / "config.json"), "weights": "none", "seed": 0},
        "data": {"train": [str(folder / "train.txt")], "valid": [], "format": "text", "tokenizer": "byte",
                 "seq_len": length, "shuffle": False, "seed": 0},
        "train": {"steps": steps, "micro_batch_size": micro_batch, "grad_accumulation": 1, "max_grad_norm": 0,
                  "eval_every": 0},
        "optimizer": {"name": "adamw", "lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "parallel": {"backend": "gloo"},
        "checkpoint": {"dir": "", "every_steps": 0, "resume": "none"},
        "metrics": {"jsonl": str(folder / "metrics.jsonl"), "every_steps": 1},
    }
    for section, values in MODES[case.mode].items():
        config[section] = {**config.get(section, {}), **values}
    path = folder / "train.json"
    path.write_text(json.dumps(config))
    return path


def step_records(metrics: Path) -> list[dict]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record for record in records if "step_seconds" in record]


def step_seconds(metrics: Path) -> list[float]:
    return [record["step_seconds"] for record in step_records(metrics)][WARM_UP_STEPS:]


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PARITY), "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")


def launcher_of(side: str) -> list[str]:
    return [measure.TORCHRUN if side in ("FSDP2", "DDP") else measure.FSDPRUN, "--standalone"]


def train(side: str, case: Case, ranks: int, programs: Path = measure.BIN) -> list[float]:
    """Seconds of each step, with the fsdp-train of `programs`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = write_case(folder, case)
        metrics = folder / "metrics.jsonl"
        command = [*launcher_of(side), f"--nproc-per-node={ranks}"]
        if side in ("FSDP2", "DDP"):
            command += [str(PARITY / "fsdp2_train.py"), "--config", str(config), "--output", str(metrics), "--optimizer", "fused",
                        *(["--ddp"] if side == "DDP" else [])]
        else:
            command += ["--no-python", str(programs / "fsdp-train"), "--config", str(config),
                        "--set", f"parallel.backend={'auto' if side == 'alone' else side}"]
        run(command, folder)
        return step_seconds(metrics)


def tokens_per_second(side: str, case: Case) -> dict[str, float]:
    """By side; "alone" gives what "in step" would make of its steps, too."""
    if side != "alone":
        return {side: case.tokens_per_step() / statistics.median(train(side, case, 2))}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = [pool.submit(train, side, case, 1) for _ in range(2)]
        steps = [job.result() for job in jobs]
    slower = statistics.median(max(both) for both in zip(*steps, strict=True))
    return {side: sum(case.tokens_per_step() / 2 / statistics.median(one) for one in steps),
            IN_STEP: case.tokens_per_step() / slower}


def head(case: Case) -> list[str]:
    return [f"33.6 M parameters, 2 ranks, {case.batch()}, {case.mode}, tokens/s", "median (range)",
            "times FSDP2 (median / best)", "aim", "times DDP", "aim", "times no communication", "aim"]


def limit_beside(base: str, side: str, case: Case) -> limits.Ratio | None:
    """What the side promises beside the other one; nothing about those that are not ours."""
    if base == "FSDP2":
        return limits.TRAIN.get((side, case.batch())) if case.mode == "fp32" else None
    of_batches = {"DDP": limits.TRAIN_DDP, "alone": limits.TRAIN_ALONE}[base]
    return of_batches.get((case.mode, case.batch())) if side == "shm" else None


def judge(ratio: float, limit: limits.Ratio | None) -> tuple[str, bool]:
    """What the ratio is to be, in words, and whether the run fails."""
    if limit is None:
        return "-", False
    fails_below = "" if limit.fails_below == limit.aim else f"; fails below {limit.fails_below:g}"
    return measure.in_words(ratio, limit.aim) + fails_below, ratio < limit.fails_below


def row(side: str, case: Case, speeds: dict[str, list[float]]) -> tuple[list[str], bool]:
    """Median and best as ratios to those of other sides, each with what it is to be; and whether one of them fails the run."""
    cells, failed = [NAMES[side], measure.summary(speeds[side])], False
    for base in BASES:
        if base not in speeds or base == side:
            cells += ["-", "-"]
            continue
        median, best = (of(speeds[side]) / of(speeds[base]) for of in (statistics.median, max))
        words, is_wrong = judge(median, limit_beside(base, side, case))
        cells += [f"{median:.2f} / {best:.2f}", words]
        failed |= is_wrong
    return cells, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--mode", choices=list(MODES), default="fp32")
    parser.add_argument("--sides", nargs="+", default=list(NAMES), choices=list(NAMES))
    options = parser.parse_args()
    case = Case(options.steps, options.micro_batch, options.length, options.mode)
    speeds: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for side in options.sides:
            for measured, speed in tokens_per_second(side, case).items():
                speeds.setdefault(measured, []).append(speed)
    in_step = speeds.pop(IN_STEP, None)
    rows = [row(side, case, speeds) for side in speeds]
    print(measure.table(head(case), [cells for cells, _ in rows]))
    if in_step:
        share = statistics.median(in_step) / statistics.median(speeds["alone"])
        print(f"without communication, each step as long as that of the slower job: {measure.summary(in_step)}, {share:.2f} of its jobs' own")
    return int(any(failed for _, failed in rows))


if __name__ == "__main__":
    sys.exit(main())
