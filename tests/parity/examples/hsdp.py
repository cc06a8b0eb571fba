#!/usr/bin/env python3
"""examples/libfsdp/hsdp with PyTorch's FSDP2: the same model, data, options and output, step by step alike."""

import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

IN, HIDDEN, LAYERS, BATCH, MICRO_BATCHES = 16, 64, 3, 32, 2


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (options.replicas, world // options.replicas),
                                 mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(0)
    layers = []
    for number in range(LAYERS):
        layers += [nn.Linear(IN if number == 0 else HIDDEN, HIDDEN), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))
    for number in range(LAYERS):
        fully_shard(model[2 * number], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    torch.manual_seed(1 + rank)
    for step in range(1, options.steps + 1):
        loss = torch.zeros(())
        for micro in range(MICRO_BATCHES):
            x = torch.randn(BATCH, IN)
            y = x.square().sum(1, keepdim=True).sqrt()
            model.set_requires_all_reduce(micro == MICRO_BATCHES - 1)
            part = F.mse_loss(model(x), y) / MICRO_BATCHES
            part.backward()
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}: loss {loss / world:.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
