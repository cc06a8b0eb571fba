#!/usr/bin/env python3
"""Trains a Llama on one device with PyTorch's FSDP2 at one rank: the Python side of gpu_parity.py and tests/bench/bench_gpu.py.

    fsdp2_train_gpu.py CASE OUTPUT [CASE OUTPUT]...

CASE has the keys of train_case.h, of which "group", "communicates" and "kernels" are libfsdp's alone; OUTPUT is as gpu_train's, or
{"error": ...} if the case has failed. One process for several cases: to load PyTorch takes longer than such a training.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
import llama_reference  # noqa: E402
from llama_reference import LlamaConfig, LlamaForCausalLM, next_token_loss  # noqa: E402

WEIGHT_DECAY = 0.1


def config_of(model: dict) -> LlamaConfig:
    heads = model["num_attention_heads"]
    return LlamaConfig(
        vocab_size=model["vocab_size"], hidden_size=model["hidden_size"], intermediate_size=model["intermediate_size"],
        num_hidden_layers=model["num_hidden_layers"], num_attention_heads=heads,
        num_key_value_heads=model.get("num_key_value_heads", heads), head_dim=model["hidden_size"] // heads,
        rms_norm_eps=model.get("rms_norm_eps", 1e-6), rope_theta=model.get("rope_theta", 10000.0),
        tie_word_embeddings=model.get("tie_word_embeddings", False))


def rotary_tables_on(device: torch.device):
    """llama_reference.rotary_tables() on a device, once for each length, as the C++ model has it."""
    tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(config: LlamaConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if length not in tables:
            exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
            inverse_frequency = (1.0 / (config.rope_theta**exponent)).to(device)
            angles = torch.arange(length, device=device).float()[:, None] * inverse_frequency[None, :]
            angles = torch.cat((angles, angles), dim=-1)
            tables[length] = (angles.cos(), angles.sin())
        return tables[length]

    return of


def values_by_formula(index: int, name: str, shape: torch.Size) -> torch.Tensor:
    """fill_by_formula() of training.cc."""
    number = torch.arange(shape.numel(), dtype=torch.float64) + 100.0 * index
    is_norm = name.endswith("norm.weight")
    values = (number * 12.9898).sin() * (0.1 if is_norm else 0.05) + (1.0 if is_norm else 0.0)
    return values.to(torch.float32).view(shape)


def build(case: dict, device: torch.device) -> LlamaForCausalLM:
    config = config_of(case["model"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device=device)
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            if case["init"] == "formula":
                parameter.copy_(values_by_formula(index, name, parameter.shape))
            elif parameter.dim() == 1:
                parameter.fill_(1)
            else:
                parameter.normal_(0, 0.02)
    return model


def shard(model: LlamaForCausalLM, case: dict, device: torch.device) -> None:
    mesh = init_device_mesh(device.type, (1,))
    policy = root_policy = MixedPrecisionPolicy()
    if case["precision"] == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        root_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    layers = model.model.layers
    for number in range(len(layers)):
        if case["activation_checkpointing"]:
            layers[number] = checkpoint_wrapper(layers[number])
        fully_shard(layers[number], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=root_policy)


def make_optimizer(model: torch.nn.Module, case: dict, device: torch.device) -> torch.optim.Optimizer:
    if case["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=0.9)
    # What fsdp::AdamW is: PyTorch's default on the CPU, the fused kernel on a GPU.
    fused = {"fused": True} if device.type == "cuda" else {}
    return torch.optim.AdamW(model.parameters(), lr=case["lr"], weight_decay=WEIGHT_DECAY, **fused)


def tokens_of(case: dict, step: int, number: int, device: torch.device) -> torch.Tensor:
    index = torch.arange(case["batch"] * (case["length"] + 1)) + 1000 * step + 100 * number
    tokens = (index * index * 7 + index * 13).remainder(case["model"]["vocab_size"])
    return tokens.view(case["batch"], case["length"] + 1).to(device)


def full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@dataclass
class Training:
    case: dict
    device: torch.device
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, rounds: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        losses = []
        for number, tokens in enumerate(rounds, 1):
            self.model.set_requires_gradient_sync(number == len(rounds))
            loss = next_token_loss(self.model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous())
            (loss / len(rounds) if len(rounds) > 1 else loss).backward()
            losses.append(loss.detach())
        norm = None
        if self.case["max_grad_norm"] > 0:
            norm = full(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.case["max_grad_norm"]))
        if self.case["optimizer"] == "sgd":
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.grad.add_(parameter, alpha=WEIGHT_DECAY)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses, norm

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def write(self, folder: str) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        torch.save(plain_names(get_model_state_dict(self.model, options=options)), f"{folder}/model.pt")
        torch.save(get_optimizer_state_dict(self.model, self.optimizer, options=options), f"{folder}/optimizer.pt")

    def read(self, folder: str) -> None:
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, torch.load(f"{folder}/model.pt", weights_only=True), options=options)
        set_optimizer_state_dict(self.model, self.optimizer, torch.load(f"{folder}/optimizer.pt", weights_only=True), options=options)


def plain_names(state: dict) -> dict:
    return {name: value.contiguous() for name, value in state.items()}


def train(case: dict) -> dict:
    device = torch.device("cuda", 0) if case["device"] == "cuda" else torch.device("cpu")
    torch.use_deterministic_algorithms(not case["timed"], warn_only=True)
    llama_reference.rotary_tables = rotary_tables_on(device)
    model = build(case, device)
    shard(model, case, device)
    training = Training(case, device, model, make_optimizer(model, case, device))
    if case["read_from"]:
        training.read(case["read_from"])
    losses, norms, seconds, host_seconds = [], [], [], []
    started = time.perf_counter()
    for step in range(case["first_step"], case["first_step"] + case["steps"]):
        for group in training.optimizer.param_groups if case["lr_factor"] != 1 else []:
            group["lr"] = case["lr"] * case["lr_factor"]**step
        rounds = [tokens_of(case, step, number, device) for number in range(case["micro_batches"])]
        begin = time.perf_counter()
        of_rounds, norm = training.step(rounds)
        host_seconds.append(time.perf_counter() - begin)
        if case["timed"]:
            training.synchronize()
        seconds.append(time.perf_counter() - begin)
        losses.append(torch.stack(of_rounds).double().mean())
        norms += [] if norm is None else [norm]
        if 0 < case["seconds"] < time.perf_counter() - started:
            break
    training.synchronize()
    result = {"losses": [loss.item() for loss in losses], "norms": [norm.item() for norm in norms],
              "seconds": seconds, "host_seconds": host_seconds,
              "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
              "parameters": sum(parameter.numel() for parameter in model.parameters()), "group": "PyTorch FSDP2"}
    if case["write_to"]:
        training.write(case["write_to"])
    return result


def main() -> int:
    if len(sys.argv) < 3 or len(sys.argv) % 2 == 0:
        print("usage: fsdp2_train_gpu.py CASE OUTPUT [CASE OUTPUT]...", file=sys.stderr)
        return 2
    cases = [json.loads(Path(path).read_text()) for path in sys.argv[1::2]]
    backend = "nccl" if cases[0]["device"] == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    failures = 0
    for case, output in zip(cases, sys.argv[2::2], strict=True):
        try:
            result = train(case)
        except Exception as error:  # the other cases go on
            result = {"error": f"{type(error).__name__}: {error}"}
            failures += 1
        Path(output).write_text(json.dumps(result) + "\n")
    sys.stdout.flush()
    # PyTorch's own teardown of its groups aborts once in a while, which would fail what has succeeded.
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    sys.exit(main())
