#!/usr/bin/env python3
"""examples/libfsdp/t5 with PyTorch's FSDP2: the same model, data, options and output, step by step alike."""

import argparse
import sys

import frontend
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS = 64, 64, 4, 128, 2
FARTHEST, BATCH, LENGTH = 8, 16, 12


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        def split(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(memory)), split(self.v(memory)), bias,
                                               scale=1.0)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, is_decoder: bool):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention = Attention()
        self.wi, self.wo = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)
        if is_decoder:
            self.norm3, self.cross = Norm(), Attention()

    def forward(self, x: torch.Tensor, bias: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, bias)
        if memory is not None:
            x = x + self.cross(self.norm3(x), memory, None)
        return x + self.wo(torch.relu(self.wi(self.norm2(x))))


class Stack(nn.Module):
    def __init__(self, is_decoder: bool):
        super().__init__()
        self.biases = nn.Embedding(2 * FARTHEST + 1, HEADS)
        self.norm = Norm()
        self.blocks = nn.ModuleList(Block(is_decoder) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        position = torch.arange(x.size(1))
        distance = position - position.unsqueeze(1)
        bias = self.biases(distance.clamp(-FARTHEST, FARTHEST) + FARTHEST).permute(2, 0, 1)
        if memory is not None:
            bias = bias.masked_fill(distance > 0, -float("inf"))
        for block in self.blocks:
            x = block(x, bias, memory)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = Stack(is_decoder=False), Stack(is_decoder=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(self.words(source), None)
        x = self.decoder(self.words(target), memory)
        return F.linear(x * WIDTH**-0.5, self.words.weight)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sharding = {}
    if options.bfloat16:
        sharding["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    torch.manual_seed(0)
    model = T5()
    if options.bfloat16:
        frontend.compute_as_frontend(model)
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(1 + rank)
    for step in range(1, options.steps + 1):
        source = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
        target = source.sort(1).values
        begun = F.pad(target, (1, -1))
        loss = F.cross_entropy(model(source, begun).float().flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean / world:.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
