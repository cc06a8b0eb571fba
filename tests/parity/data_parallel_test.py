#!/usr/bin/env python3
"""Trains a model with libfsdp's DistributedDataParallel, over shared memory and over Gloo, and with PyTorch's, on two and on
three ranks, in several ways: small buckets, no_sync, parameters that some ranks leave unused, a static graph, compressed
gradients, uneven inputs. Compares all parameters and a buffer that forward writes, on each rank: bits on two ranks, where a sum
has one order. PowerSGD multiplies matrices by other kernels than PyTorch's, whose first factors are those of libfsdp's seed here.

Run by a launcher with --python-side it is PyTorch's side, which data_parallel.cc mirrors.
"""

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH = 6
WAYS = ("plain", "no_sync", "unused", "static", "fp16", "bf16", "powersgd", "join_all", "join_left")
# Where sums are rounded in another order: of weights of about 1, a few steps of 0.1 with what the dtype rounds.
ROUNDING = {"fp16": 1e-4, "bf16": 1e-3}


def python_side(output: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    def values(sizes: tuple[int, ...], seed: float) -> torch.Tensor:
        index = torch.arange(torch.Size(sizes).numel(), dtype=torch.float64) + seed
        return ((index * 12.9898).sin() * 0.3).to(torch.float32).view(sizes)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(values((WIDTH, WIDTH), 0))
            self.spare = torch.nn.Parameter(values((5, WIDTH), 1))
            self.head = torch.nn.Parameter(values((4, WIDTH), 100))
            self.register_buffer("mean", torch.zeros(WIDTH))
            self.uses_spare = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.linear(x, self.weight).tanh()
            with torch.no_grad():
                self.mean.mul_(0.5).add_(y.detach().mean(0), alpha=0.5)
            y = y - self.mean
            y = y + torch.nn.functional.linear(y, self.spare).sum(1, keepdim=True) if self.uses_spare else y
            return torch.nn.functional.linear(y, self.head)

    class Seed:
        """In the place of a generator that draws the seed of the first factors."""

        def randint(self, _below: int) -> int:
            return 7

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lines = []

    for way in WAYS:
        options = {"plain": {"bucket_cap_mb": 0.0001}, "unused": {"find_unused_parameters": True},
                   "static": {"static_graph": True}}.get(way, {})
        ddp = DistributedDataParallel(Model(), gradient_as_bucket_view=True, **options)
        model = ddp.module
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

        def backward(step: int, ddp=ddp) -> None:
            ddp(values((8, WIDTH), 1000.0 * rank + 100.0 * step)).square().mean().backward()

        def train(step: int, optimizer=optimizer, backward=backward) -> None:
            backward(step)
            optimizer.step()
            optimizer.zero_grad()

        if way == "no_sync":
            for step in range(6):
                with ddp.no_sync() if step % 3 != 2 else contextlib.nullcontext():
                    backward(step)
                if step % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
        elif way in ("join_all", "join_left"):
            with ddp.join(divide_by_initial_world_size=way == "join_all"):
                for step in range(2 + 2 * rank):
                    train(step)
        else:
            if way in ("fp16", "bf16"):
                ddp.register_comm_hook(None, getattr(default_hooks, f"{way}_compress_hook"))
            elif way == "powersgd":
                state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=2.8)
                state.rng = Seed()
                ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            for step in range({"fp16": 3, "bf16": 3, "static": 3, "powersgd": 6}.get(way, 4)):
                model.uses_spare = {"unused": step < 3 and (step + rank) % 2 == 0, "static": False}.get(way, True)
                train(step)
        for name, tensor in [*model.named_parameters(), ("mean", model.mean)]:
            lines.append(" ".join([f"{way}.{name}", *(number.hex() for number in tensor.flatten().tolist())]))
    Path(f"{output}{rank}").write_text("\n".join(lines) + "\n")
    dist.barrier()
    # The modules still hold the group, and PyTorch may abort when it ends with the interpreter.
    os._exit(0)


def read(path: Path) -> dict[str, list[float]]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {name: [float.fromhex(number) for number in numbers] for name, *numbers in rows}


def are_alike(name: str, mine: list[float] | None, other: list[float] | None, ranks: int) -> bool:
    way = name.split(".")[0]
    if mine is None or other is None or len(mine) != len(other):
        return False
    if ranks == 2 and way != "powersgd":
        return mine == other
    bound = ROUNDING.get(way, 2e-6)
    return all(math.isclose(a, b, rel_tol=bound, abs_tol=bound) for a, b in zip(mine, other, strict=True))


def compare(ours: Path, theirs: Path, ranks: int) -> int:
    mine, other = read(ours), read(theirs)
    assert {name.split(".")[0] for name in other} == set(WAYS), "PyTorch's side is not complete"
    differing = [name for name in sorted(mine.keys() | other.keys())
                 if not are_alike(name, mine.get(name), other.get(name), ranks)]
    for name in differing:
        print(f"{name}: {mine.get(name)} here, {other.get(name)} with PyTorch")
    print(f"{ours.name}: {len(other)} tensors, {len(differing)} differ from PyTorch's")
    return len(differing)


def launch(programs: Path, ranks: int, command: list[str]) -> None:
    launcher = [str(programs / "fsdprun"), "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    done = subprocess.run([*launcher, *command], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--python-side")
    options = parser.parse_args()
    if options.python_side:
        python_side(options.python_side)
        return 0
    differing = 0
    for ranks in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            launch(options.bin, ranks, [sys.executable, __file__, "--python-side", f"{folder}/theirs"])
            for backend in ("shm", "gloo"):
                launch(options.bin, ranks, [str(options.program), f"{folder}/{backend}", backend])
                for rank in range(ranks):
                    differing += compare(Path(folder, f"{backend}{rank}"), Path(folder, f"theirs{rank}"), ranks)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
