#!/usr/bin/env python3
"""libfsdp's other ways to train, beside the same with PyTorch, in turns: the 33.6 M-parameter Llama of bench_train.py on 2 ranks.

ddp: DistributedDataParallel of both, in float32. Python has torch.optim.AdamW(fused=True), the fastest of its implementations
here; C++ has its kernel, and torch::optim::AdamW, the one that LibTorch comes with. no_shard is FSDP's way to the same: units with a
whole copy on each rank, and fsdp::AdamW.

float16: fully_shard of both, computing in float16, reducing in float32, with a GradScaler; Python has the fused AdamW.

offload: fully_shard of both with a CPUOffloadPolicy, in float32; on a mesh of CPUs, where it moves nothing, it shows what it costs.

One compute thread per rank. All sides start with the same weights and see the same batches, and the run fails if their losses do
not agree. It also fails if a ratio is below its limit (limits.py).
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bench_train
import limits
import measure

RANKS = 2


@dataclass(frozen=True)
class Side:
    name: str
    arguments: tuple[str, ...]  # of fsdp2_train.py, or of library_train
    is_pytorch: bool = False

    def command(self, config: Path, output: Path) -> list[str]:
        launcher = [measure.TORCHRUN if self.is_pytorch else measure.FSDPRUN, "--standalone", f"--nproc-per-node={RANKS}"]
        if self.is_pytorch:
            return [*launcher, str(bench_train.PARITY / "fsdp2_train.py"), "--config", str(config), "--output", str(output), *self.arguments]
        return [*launcher, "--no-python", str(measure.BIN / "library_train"), str(config), str(output), *self.arguments]


@dataclass(frozen=True)
class Comparison:
    sides: list[Side]  # PyTorch's first, then ours that the aim is for
    losses_differ_by: float  # at most, as a fraction


COMPARISONS = {
    "ddp": Comparison([
        Side("PyTorch DDP, Gloo", ("--ddp", "--optimizer", "fused"), is_pytorch=True),
        Side("libfsdp DDP, shared memory", ("shm", "ddp_fused")),
        Side("libfsdp DDP, Gloo", ("gloo", "ddp_fused")),
        Side("libfsdp DDP, shared memory, torch::optim::AdamW", ("shm", "ddp")),
        Side("libfsdp no_shard, shared memory", ("shm", "no_shard")),
    ], losses_differ_by=1e-4),
    "float16": Comparison([
        Side("PyTorch FSDP2, Gloo, float16", ("--float16", "--optimizer", "fused"), is_pytorch=True),
        Side("libfsdp full_shard, shared memory, float16", ("shm", "full_shard", "float16")),
        Side("libfsdp full_shard, Gloo, float16", ("gloo", "full_shard", "float16")),
    ], losses_differ_by=5e-3),
    "offload": Comparison([
        Side("PyTorch FSDP2, Gloo, CPUOffloadPolicy", ("--offload", "--optimizer", "fused"), is_pytorch=True),
        Side("libfsdp full_shard, shared memory, CPUOffloadPolicy", ("shm", "full_shard", "offload")),
        Side("libfsdp full_shard, Gloo, CPUOffloadPolicy", ("gloo", "full_shard", "offload")),
        Side("libfsdp full_shard, shared memory, without", ("shm", "full_shard")),
    ], losses_differ_by=1e-4),
}


@dataclass(frozen=True)
class Run:
    tokens_per_second: float
    losses: list[float]


def write_weights(folder: Path, case: bench_train.Case) -> None:
    """Of a model that PyTorch has initialised, as Hugging Face keeps them."""
    sys.path.insert(0, str(bench_train.PARITY))
    import safetensors_io
    import torch
    from llama_reference import LlamaConfig, LlamaForCausalLM
    bench_train.write_case(folder, case)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_file(folder / "config.json"))
    safetensors_io.save(folder / "model.safetensors", model.state_dict())


def train(side: Side, case: bench_train.Case, weights: Path) -> Run:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config, output = bench_train.write_case(folder, case), folder / "steps.jsonl"
        settings = json.loads(config.read_text())
        settings["model"]["weights"] = str(weights)
        config.write_text(json.dumps(settings))
        bench_train.run(side.command(config, output), folder)
        seconds = statistics.median(bench_train.step_seconds(output))
        return Run(case.tokens_per_step() / seconds, [record["loss"] for record in bench_train.step_records(output)])


def difference(losses: list[float], expected: list[float]) -> float:
    """The largest of a step, as a fraction; infinite where steps are missing or a loss is not a number."""
    if len(losses) != len(expected):
        return math.inf
    parts = [abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=True)]
    return max(math.inf if math.isnan(part) else part for part in parts)


def row(side: Side, runs: dict[str, list[Run]], base: Side, limit: limits.Ratio | None) -> tuple[list[str], bool]:
    """Its cells, and whether it misses its limit."""
    speeds, base_speeds = ([run.tokens_per_second for run in runs[which.name]] for which in (side, base))
    differs_by = max(difference(run.losses, runs[base.name][0].losses) for run in runs[side.name])
    median, best = (of(speeds) / of(base_speeds) for of in (statistics.median, max))
    words, is_below = bench_train.judge(median, limit)
    ratio = "-" if side is base else f"{median:.2f} / {best:.2f}"
    return [side.name, measure.summary(speeds), ratio, words, f"{differs_by:.1e}"], is_below


def compare(what: str, case: bench_train.Case, repeats: int) -> bool:
    """Prints the table; whether losses agree and no ratio is below its limit."""
    comparison = COMPARISONS[what]
    base, judged = comparison.sides[:2]
    runs: dict[str, list[Run]] = {side.name: [] for side in comparison.sides}
    with tempfile.TemporaryDirectory() as weights:
        write_weights(Path(weights), case)
        for _ in range(repeats):
            for side in comparison.sides:
                runs[side.name].append(train(side, case, Path(weights)))
    rows, is_well = [], True
    for side in comparison.sides:
        cells, is_below = row(side, runs, base, limits.LIBRARY.get((what, case.batch())) if side is judged else None)
        rows.append(cells)
        is_well &= not is_below and float(cells[-1]) <= comparison.losses_differ_by
    print(measure.table([f"{case.model} parameters, {RANKS} ranks, {case.batch()}, {what}, tokens/s", "median (range)",
                         "times PyTorch (median / best)", "aim", f"losses differ by (at most {comparison.losses_differ_by:g})"], rows))
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=list(COMPARISONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--model", choices=list(bench_train.MODELS), default="33.6 M")
    options = parser.parse_args()
    if options.steps <= bench_train.WARM_UP_STEPS:
        parser.error(f"--steps: more than the {bench_train.WARM_UP_STEPS} that are left out")
    case = bench_train.Case(options.steps, options.micro_batch, options.length, "fp32", options.model)
    return int(not compare(options.what, case, options.repeats))


if __name__ == "__main__":
    sys.exit(main())
