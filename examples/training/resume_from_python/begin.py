#!/usr/bin/env python3
"""Begins a training with PyTorch's FSDP2, and saves it: fsdprun --standalone --nproc-per-node 2 begin.py TEXT STEPS."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, BATCH = 64, 4  # data.seq_len and train.micro_batch_size of train.json

CONFIG = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=None, eos_token_id=None)


def batch_of(text: bytes, step: int, rank: int, ranks: int) -> torch.Tensor:
    """[BATCH, LENGTH + 1]: the windows of the step, dealt out to the ranks in turn, as fsdp-train and DistributedSampler do."""
    windows = [(step * BATCH + i) * ranks + rank for i in range(BATCH)]
    return torch.tensor([list(text[window * LENGTH:window * LENGTH + LENGTH + 1]) for window in windows])


def main() -> None:
    path, steps = sys.argv[1], int(sys.argv[2])
    with open(path, "rb") as file:
        text = file.read()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    if rank == 0:
        CONFIG.save_pretrained("model")
    for block in model.model.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        windows = batch_of(text, step, rank, ranks)
        logits = model(input_ids=windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step + 1} loss {loss.item() / ranks:.6f}")
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id="python")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
