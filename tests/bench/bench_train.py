#!/usr/bin/env python3
"""Training throughput of a 33.6 M-parameter Llama on 2 ranks: fsdp-train against PyTorch's FSDP2 over Gloo, in turns.

Same shapes, batches, fp32, one compute thread per rank. The Python side shards each decoder layer and the root, keeps
FSDP2's default prefetching and uses torch.optim.AdamW(fused=True), the fastest of its three implementations here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
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


def write_case(folder: Path, steps: int, micro_batch: int, length: int) -> Path:
    (folder / "config.json").write_text(json.dumps(MODEL))
    sentence = "It was the best of times, it was the worst of times. "
    (folder / "train.txt").write_text(sentence * (2 * steps * micro_batch * length // len(sentence) + length))
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
    path = folder / "train.json"
    path.write_text(json.dumps(config))
    return path


def tokens_per_second(metrics: Path, tokens_per_step: int) -> float:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [record["step_seconds"] for record in records if "step_seconds" in record][WARM_UP_STEPS:]
    return tokens_per_step / statistics.median(seconds)


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PARITY), "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")


def measure_once(side: str, steps: int, micro_batch: int, length: int) -> float:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = write_case(folder, steps, micro_batch, length)
        metrics = folder / "metrics.jsonl"
        if side == "FSDP2":
            run([measure.TORCHRUN, "--standalone", "--nproc-per-node=2", str(PARITY / "fsdp2_train.py"), "--config",
                 str(config), "--output", str(metrics), "--optimizer", "fused"], folder)
        else:
            run([measure.FSDPRUN, "--standalone", "--nproc-per-node=2", "--no-python", str(measure.BIN / "fsdp-train"),
                 "--config", str(config), "--set", f"parallel.backend={side}"], folder)
        return tokens_per_second(metrics, 2 * micro_batch * length)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--sides", nargs="+", default=["FSDP2", "shm", "gloo"], choices=["FSDP2", "shm", "gloo"])
    parser.add_argument("--shm-at-least", type=float, default=limits.TRAIN["shm"].fails_below,
                        help="fail below this ratio to FSDP2")
    parser.add_argument("--gloo-at-least", type=float, default=limits.TRAIN["gloo"].fails_below,
                        help="fail below this ratio to FSDP2")
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {side: [] for side in options.sides}
    for _ in range(options.repeats):
        for side, values in speeds.items():
            values.append(measure_once(side, options.steps, options.micro_batch, options.length))
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    base = medians.get("FSDP2")
    names = {"FSDP2": "PyTorch FSDP2 + Gloo", "shm": "fsdp-train, shared memory", "gloo": "fsdp-train, Gloo"}
    print(measure.table(["33.6 M parameters, 2 ranks, tokens/s", "median (range)", "times FSDP2", "aim"], [
        [names[side], measure.summary(values), f"{medians[side] / base:.2f}" if base else "-",
         measure.in_words(medians[side] / base, limits.TRAIN[side].aim) if base and side in limits.TRAIN else "-"]
        for side, values in speeds.items()]))
    required = {"shm": options.shm_at_least, "gloo": options.gloo_at_least}
    return int(any(base and side in medians and medians[side] / base < ratio for side, ratio in required.items()))


if __name__ == "__main__":
    sys.exit(main())
