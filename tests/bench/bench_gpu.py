#!/usr/bin/env python3
"""One GPU: a Llama of 1.1 billion parameters in bfloat16, windows of 4,096 tokens, by libfsdp, without FSDP, and by PyTorch's FSDP2.

    bench_gpu.py --program gpu_train [--device cuda|cpu] [--seconds S] [--sides SIDE...] [--output FILE.json]

At one rank there is next to nothing to communicate, and NCCL copies without a kernel of its own: what is compared is what the engines
cost, on the device and on the host, and what they take of its memory. All sides compute the same operations in bfloat16, with a master
copy of the weights in float32 (but for "bare"), recompute nothing, and update by the fused AdamW. They take turns of their own, each in a
process, most important first:

fsdp      libfsdp at one rank, whose units cast their weights and are gathered through NCCL; gradients need no reduction there
fsdp2     PyTorch's FSDP2, eager
bare      the same C++ model without FSDP, all in bfloat16, weights and moments as well: what the model costs
two_ranks libfsdp, over a group of two ranks whose second one is the first: every gather and reduction of two ranks, through NCCL. It
          updates half of the weights
fused     as fsdp, with the model's fused operations
graph     as fsdp, with each step as a replay of one CUDA graph (fsdp::DeviceGraph)

tokens/s and MFU are of the median step, with the range of all behind the warm-ups; MFU is of the GPU's data sheet. host is the time in
which the host has issued a step. --device cpu: a model of no size, to try the script.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
from gpu_results import read_result  # noqa: E402

GPU_FOLDER = ROOT / "tests/gpu"
WARM_UPS = 3
# Of dense bfloat16, by NVIDIA's data sheets, SXM unless the name says otherwise.
PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12}
# TinyLlama-1.1B, which has 2,048 positions.
LLAMA_1B = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
            "num_key_value_heads": 4, "max_position_embeddings": 4096}
TINY = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128}
LENGTHS = {"cuda": 4096, "cpu": 32}
STEPS = {"cuda": 15, "cpu": 5}


@dataclass(frozen=True)
class Side:
    name: str
    what: str
    changes: dict = field(default_factory=dict)
    is_pytorch: bool = False


SIDES = [
    Side("fsdp", "libfsdp"),
    Side("fsdp2", "PyTorch FSDP2, eager", is_pytorch=True),
    Side("bare", "without FSDP, all in bfloat16", {"group": "none"}),
    Side("two_ranks", "libfsdp as at two ranks", {"group": "mirrored"}),
    Side("fused", "libfsdp, fused operations", {"kernels": "fused"}),
    Side("graph", "libfsdp, steps as a graph", {"graph": True}),
]


def case_of(side: Side, device: str, batch: int, seconds: float) -> dict:
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
             "tie_word_embeddings": False, **(LLAMA_1B if device == "cuda" else TINY)}
    return {"model": model, "device": device, "group": "alone", "communicates": True, "precision": "bfloat16", "kernels": "reference",
            "activation_checkpointing": False, "graph": False, "optimizer": "adamw", "lr": 1e-4, "lr_factor": 1, "max_grad_norm": 0, "first_step": 0,
            "steps": STEPS[device], "micro_batches": 1, "batch": batch, "length": LENGTHS[device], "init": "random", "read_from": "",
            "write_to": "", "timed": True, "seconds": seconds, **side.changes}


def summary(values: list[float], scale: float = 1) -> dict:
    scaled = sorted(value * scale for value in values)
    return {"median": statistics.median(scaled), "min": scaled[0], "max": scaled[-1]}


def numbers_of(result: dict, case: dict, flops_per_token: float | None, peak_flops: float | None) -> dict:
    """`flops_per_token`: of libfsdp's side, which counts them."""
    seconds, host = result["seconds"][WARM_UPS:], result["host_seconds"][WARM_UPS:]
    if not seconds:
        raise RuntimeError(f"only {len(result['seconds'])} steps in time, all of them warm-ups")
    tokens = case["batch"] * case["length"]
    numbers = {"steps": len(seconds), "tokens_per_second": summary([tokens / value for value in seconds]),
               "step_ms": summary(seconds, 1e3), "host_ms": summary(host, 1e3), "peak_gib": result["peak_bytes"] / 2**30,
               "parameters": result["parameters"], "first_loss": result["losses"][0], "last_loss": result["losses"][-1],
               "collectives": result.get("collectives"), "slot_gib": result.get("slot_bytes", 0) / 2**30}
    if flops_per_token and peak_flops:
        numbers["mfu"] = summary([tokens / value * flops_per_token / peak_flops for value in seconds])
    return numbers


def gpu_name(device: str) -> str:
    if device == "cpu":
        return ""
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def peak_flops_of(name: str) -> float | None:
    return next((flops for key, flops in PEAK_FLOPS.items() if all(word in name for word in key.split())), None)


def run(side: Side, case: dict, program: Path, folder: Path, limit_s: float) -> dict:
    path, output = folder / f"{side.name}.case.json", folder / f"{side.name}.json"
    path.write_text(json.dumps(case))
    command = [sys.executable, str(GPU_FOLDER / "fsdp2_train_gpu.py")] if side.is_pytorch else [str(program)]
    done = subprocess.run([*command, str(path), str(output)], capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode != 0:
        said = output.read_text(errors="replace")[:2000] if output.exists() else ""
        raise RuntimeError(f"exit code {done.returncode}: {said} {(done.stdout + done.stderr)[-2000:]}")
    return read_result(output, Path(command[-1]).name)


def in_range(values: dict | None, form: str) -> str:
    if values is None:
        return "-"
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def table(records: list[dict]) -> str:
    head = ["side", "tokens/s", "MFU", "step, ms", "host, ms", "peak, GiB", "steps"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['what']} | failed: {record['error'].splitlines()[0][:100]} |" + " |" * (len(head) - 2))
            continue
        lines.append("| " + " | ".join([
            record["what"], in_range(record["tokens_per_second"], ".0f"), in_range(record.get("mfu"), ".3f"),
            in_range(record["step_ms"], ".1f"), in_range(record["host_ms"], ".1f"), f"{record['peak_gib']:.1f}", str(record["steps"])]) + " |")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="gpu_train")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch", type=int, default=2, help="windows of a step (2)")
    parser.add_argument("--seconds", type=float, default=300, help="for all sides together (300); those that are not reached are named")
    parser.add_argument("--sides", nargs="+", choices=[side.name for side in SIDES], metavar="SIDE", help="some of them")
    parser.add_argument("--output", type=Path, help="JSON: a record for each side, written as soon as it is there")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    sides = [side for side in SIDES if not options.sides or side.name in options.sides]
    deadline = time.monotonic() + options.seconds
    peak_flops = peak_flops_of(gpu_name(options.device))
    flops_per_token = None
    records: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, side in enumerate(sides):
            left = deadline - time.monotonic()
            share = left / (len(sides) - number)
            # Half of it for the steps: the rest is to load LibTorch, to make the model, and to warm up.
            case = case_of(side, options.device, options.batch, share / 2)
            record = {"side": side.name, "what": side.what}
            try:
                if left < 5:
                    raise RuntimeError("not reached in time")
                result = run(side, case, options.program, Path(folder), min(left, 2 * share + 30))
                flops_per_token = flops_per_token or result.get("flops_per_token")
                record |= numbers_of(result, case, flops_per_token, peak_flops)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                record["error"] = str(error)
            records.append(record)
            if options.output:
                options.output.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records))
    return 1 if any("error" in record for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
