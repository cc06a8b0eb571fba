#!/usr/bin/env python3
"""examples/libfsdp/transformer with PyTorch's FSDP2: the same model, data, options and output, step by step alike.
Without its checkpoints."""

import argparse
import sys

import frontend
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH, DROPOUT = 64, 32, 4, 4, 16, 16, 0.1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.wqkv, self.wo = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.w1, self.w2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.wqkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.wo(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.w2(F.gelu(self.w1(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens) + self.pos.weight
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def shard(model: Transformer, options: argparse.Namespace) -> None:
    sharding = {}
    if options.bfloat16:
        sharding["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = model.layers
    for number in range(len(layers)):
        if options.recompute:
            layers[number] = checkpoint_wrapper(layers[number])
        fully_shard(layers[number], **sharding)
    fully_shard(model, **sharding)
    if options.prefetch:
        for number in range(len(layers) - 2):
            layers[number].set_modules_to_forward_prefetch([layers[number + 1], layers[number + 2]])
            layers[number + 2].set_modules_to_backward_prefetch([layers[number + 1], layers[number]])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Transformer()
    if options.bfloat16:
        frontend.compute_as_frontend(model)
    shard(model, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, options.steps + 1):
        torch.manual_seed(step * world + rank)
        first, difference = torch.randint(VOCABULARY, (BATCH, 1)), torch.randint(1, 5, (BATCH, 1))
        tokens = (first + difference * torch.arange(LENGTH + 1)) % VOCABULARY
        logits = model(tokens[:, :LENGTH]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean / world:.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
