#!/usr/bin/env python3
"""Training throughput of a 33.6 M-parameter Llama on 2 ranks: fsdp-train against PyTorch's FSDP2 and DDP over Gloo, in turns.

Same shapes and batches, one compute thread per rank. The Python side shards each decoder layer and the root, keeps
FSDP2's default prefetching and uses torch.optim.AdamW(fused=True), the fastest of its three implementations here. The side
"alone" is fsdp-train without communication: two jobs of one rank at once, each with the whole model and optimizer.
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


@dataclass(frozen=True)
class Case:
    """A program of `steps` optimizer steps on batches of `micro_batch` x `length` tokens for each of two ranks."""

    steps: int
    micro_batch: int
    length: int
    mode: str
    model: str = "33.6 M"

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


def seconds_per_step(metrics: Path) -> float:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median([record["step_seconds"] for record in records if "step_seconds" in record][WARM_UP_STEPS:])


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PARITY), "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")


def launcher_of(side: str) -> list[str]:
    return [measure.TORCHRUN if side in ("FSDP2", "DDP") else measure.FSDPRUN, "--standalone"]


def train(side: str, case: Case, ranks: int) -> float:
    """Seconds per step."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = write_case(folder, case)
        metrics = folder / "metrics.jsonl"
        command = [*launcher_of(side), f"--nproc-per-node={ranks}"]
        if side in ("FSDP2", "DDP"):
            command += [str(PARITY / "fsdp2_train.py"), "--config", str(config), "--output", str(metrics), "--optimizer", "fused",
                        *(["--ddp"] if side == "DDP" else [])]
        else:
            command += ["--no-python", str(measure.BIN / "fsdp-train"), "--config", str(config),
                        "--set", f"parallel.backend={'auto' if side == 'alone' else side}"]
        run(command, folder)
        return seconds_per_step(metrics)


def tokens_per_second(side: str, case: Case) -> float:
    if side != "alone":
        return case.tokens_per_step() / train(side, case, 2)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = [pool.submit(train, side, case, 1) for _ in range(2)]
        return sum(case.tokens_per_step() / 2 / job.result() for job in jobs)


def row(side: str, speeds: dict[str, list[float]]) -> list[str]:
    """Median and best, each as a ratio to those of the other sides."""
    def ratios(base: str) -> str:
        if base not in speeds or base == side:
            return "-"
        return " / ".join(f"{of(speeds[side]) / of(speeds[base]):.2f}" for of in (statistics.median, max))

    ratio = statistics.median(speeds[side]) / statistics.median(speeds["FSDP2"]) if "FSDP2" in speeds else None
    has_aim = ratio is not None and side in limits.TRAIN
    return [NAMES[side], measure.summary(speeds[side]), ratios("FSDP2"), ratios("DDP"), ratios("alone"),
            measure.in_words(ratio, limits.TRAIN[side].aim) if has_aim else "-"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--mode", choices=list(MODES), default="fp32")
    parser.add_argument("--sides", nargs="+", default=["FSDP2", "shm", "gloo"], choices=list(NAMES))
    parser.add_argument("--shm-at-least", type=float, default=limits.TRAIN["shm"].fails_below,
                        help="fail below this ratio to FSDP2")
    parser.add_argument("--gloo-at-least", type=float, default=limits.TRAIN["gloo"].fails_below,
                        help="fail below this ratio to FSDP2")
    options = parser.parse_args()
    case = Case(options.steps, options.micro_batch, options.length, options.mode)
    speeds: dict[str, list[float]] = {side: [] for side in options.sides}
    for _ in range(options.repeats):
        for side, values in speeds.items():
            values.append(tokens_per_second(side, case))
    what = f"33.6 M parameters, 2 ranks, {options.micro_batch} x {options.length}, {options.mode}, tokens/s"
    print(measure.table([what, "median (range)", "times FSDP2 (median / best)", "times DDP", "times no communication", "aim"],
                        [row(side, speeds) for side in speeds]))
    required = {"shm": options.shm_at_least, "gloo": options.gloo_at_least}
    base = statistics.median(speeds["FSDP2"]) if "FSDP2" in speeds else None
    return int(any(base and side in speeds and statistics.median(speeds[side]) / base < least
                   for side, least in required.items()))


if __name__ == "__main__":
    sys.exit(main())
