#!/usr/bin/env python3
"""Trains a model with parameters that some steps leave unused, with libfsdp and with PyTorch's FSDP2, and compares the
bits of all parameters and their step counts: an optimizer leaves a parameter alone whose gradient is None. The parameters are
in two param groups, and a schedule changes the rate of one.

Run by a launcher with --python-side it is PyTorch's side, which unused_parameter.cc mirrors.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCKS, STEPS, WIDTH = 3, 5, 6


def python_side(output: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def values(sizes: tuple[int, ...], seed: float) -> torch.Tensor:
        index = torch.arange(torch.Size(sizes).numel(), dtype=torch.float64) + seed
        return ((index * 12.9898).sin() * 0.3).to(torch.float32).view(sizes)

    class Block(torch.nn.Module):
        def __init__(self, seed: float):
            super().__init__()
            self.weight = torch.nn.Parameter(values((WIDTH, WIDTH), seed))
            self.spare = torch.nn.Parameter(values((5, WIDTH), seed + 1))
            self.uses_spare = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + torch.nn.functional.linear(x, self.weight).tanh()
            return y + torch.nn.functional.linear(y, self.spare).sum(1, keepdim=True) if self.uses_spare else y

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for number in range(BLOCKS):
                setattr(self, f"block{number}", Block(10.0 * number))
            self.head = torch.nn.Parameter(values((4, WIDTH), 100))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in range(BLOCKS):
                x = getattr(self, f"block{number}")(x)
            return torch.nn.functional.linear(x, self.head)

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = Model()
    for number in range(BLOCKS):
        fully_shard(getattr(model, f"block{number}"), mesh=mesh)
    fully_shard(model, mesh=mesh)
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
    rest = [parameter for name, parameter in model.named_parameters() if not name.endswith("weight")]
    optimizer = torch.optim.AdamW([{"params": weights, "lr": 2e-2, "betas": (0.8, 0.95), "weight_decay": 0.1},
                                   {"params": rest, "eps": 1e-6}], lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        if step == 3:
            optimizer.param_groups[1]["lr"] = 5e-3
        for number, uses in enumerate((False, step % 2 == 0, step >= 2)):
            getattr(model, f"block{number}").uses_spare = uses
        model(values((8, WIDTH), 1000.0 * rank + 100.0 * step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    lines = []
    for name, parameter in model.named_parameters():
        steps = int(optimizer.state[parameter]["step"]) if parameter in optimizer.state else 0
        numbers = [number.hex() for number in parameter.full_tensor().flatten().tolist()]
        lines.append(" ".join([name, str(steps), *numbers]))
    if rank == 0:
        output.write_text("\n".join(lines) + "\n")
    dist.destroy_process_group()
    # The modules still hold the group, and PyTorch may abort when it ends with the interpreter.
    os._exit(0)


def read(path: Path) -> dict[str, tuple[int, list[float]]]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {name: (int(steps), [float.fromhex(number) for number in numbers]) for name, steps, *numbers in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--python-side", type=Path)
    options = parser.parse_args()
    if options.python_side:
        python_side(options.python_side)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours", Path(folder) / "theirs"
        launch = [str(options.bin / "fsdprun"), "--standalone", "--nproc-per-node=2", "--no-python"]
        for command in ([sys.executable, __file__, "--python-side", str(theirs)], [str(options.program), str(ours)]):
            done = subprocess.run([*launch, *command], capture_output=True, text=True, check=False, timeout=120,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode != 0:
                sys.exit(f"exit code {done.returncode} of {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        mine, other = read(ours), read(theirs)
    assert {name: steps for name, (steps, _) in other.items()} == {
        "head": 5, **{f"block{n}.weight": 5 for n in range(BLOCKS)}, "block0.spare": 0, "block1.spare": 3,
        "block2.spare": 3}, "FSDP2 did something else than this test is about"
    differing = [name for name in sorted(mine.keys() | other.keys()) if mine.get(name) != other.get(name)]
    for name in differing:
        print(f"{name}: {mine.get(name)} here, {other.get(name)} with FSDP2")
    print(f"{len(other)} parameters, {len(differing)} differ from FSDP2's")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
