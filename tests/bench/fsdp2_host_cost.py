#!/usr/bin/env python3
"""What FSDP2's wrapping costs on the host: the model of host_cost.cc, plain and sharded over a fake process group of two.

    fsdp2_host_cost.py [TURNS [ITERATIONS]]

Each turn measures both models one after the other and prints a line: microseconds of CPU time per iteration of the plain
one, of the sharded one.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

UNITS = 16
LINEARS = 9  # of a unit
WIDTH = 8
BATCH = 2
WARM_UPS = 20


def make_chain() -> nn.Sequential:
    chain = nn.Sequential(*(nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LINEARS))) for _ in range(UNITS)))
    with torch.no_grad():
        for weight in chain.parameters():
            nn.init.eye_(weight)
    return chain


def make_sharded_chain() -> nn.Sequential:
    chain = make_chain()
    for block in chain:
        fully_shard(block)
    return fully_shard(chain)


class Side:
    def __init__(self, model: nn.Module):
        self.model = model
        self.input = torch.ones(BATCH, WIDTH, requires_grad=True)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.model(self.input).sum().backward()
            self.model.zero_grad(set_to_none=True)
            self.input.grad = None

    def us_per_iteration(self, iterations: int) -> float:
        self.run(WARM_UPS)
        begin = time.thread_time()
        self.run(iterations)
        return (time.thread_time() - begin) * 1e6 / iterations


def main() -> None:
    turns, iterations = (int(argument) for argument in (sys.argv[1:] + ["15", "100"][len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    sides = [Side(make_chain()), Side(make_sharded_chain())]
    for _ in range(turns):
        print(*(side.us_per_iteration(iterations) for side in sides), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
