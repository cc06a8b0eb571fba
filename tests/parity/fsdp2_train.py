#!/usr/bin/env python3
"""Trains the reference Llama with PyTorch's FSDP2 or DDP over Gloo, from the same config file as fsdp-train.

Run by a launcher (torchrun or fsdprun), one process per rank. Reads the keys of fsdp-train's configuration that decide
what is computed, and writes one JSON line per step: step, loss (mean over ranks), losses (per rank), grad_norm, lr.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy
import safetensors_io
import torch
import torch.distributed as dist
from llama_reference import LlamaConfig, LlamaForCausalLM, next_token_loss
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.utils.data.distributed import DistributedSampler


class Windows:
    """The token stream cut into windows: window i is inputs tokens[i*T .. i*T+T-1], targets one further."""

    def __init__(self, paths: list[str], length: int):
        joined = b"".join(Path(path).read_bytes() for path in paths)
        self.tokens = torch.from_numpy(numpy.frombuffer(joined, dtype=numpy.uint8).astype(numpy.int64))
        self.length = length
        self.count = (len(self.tokens) - 1) // length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self.length
        return self.tokens[begin : begin + self.length], self.tokens[begin + 1 : begin + self.length + 1]


def window_order(windows: Windows, data: dict) -> list[int]:
    """This rank's windows of the first epoch in the order in which it sees them."""
    sampler = DistributedSampler(range(windows.count), dist.get_world_size(), dist.get_rank(),
                                 shuffle=data.get("shuffle", False), seed=data.get("seed", 0))
    return list(sampler)


def make_scheduler(optimizer: torch.optim.Optimizer, steps: int, schedule: dict) -> LRScheduler:
    """PyTorch's own schedulers put together: a linear warm-up, then constant, or a line or cosine down to min_lr_ratio."""
    warmup, lowest = schedule.get("warmup_steps", 0), schedule.get("min_lr_ratio", 0.0)
    kind, rest = schedule.get("kind", "constant"), max(1, steps - warmup)
    if kind == "cosine":
        main = CosineAnnealingLR(optimizer, T_max=rest, eta_min=lowest * optimizer.defaults["lr"])
    elif kind == "linear":
        main = LinearLR(optimizer, start_factor=1.0, end_factor=lowest, total_iters=rest)
    else:
        main = ConstantLR(optimizer, factor=1.0)
    if warmup == 0:
        return main
    rise = LinearLR(optimizer, start_factor=1 / warmup, end_factor=1.0, total_iters=max(1, warmup - 1))
    return SequentialLR(optimizer, [rise, main], milestones=[warmup])


def shard(model: LlamaForCausalLM, config: dict, world: int, is_offloaded: bool) -> None:
    """Each block a unit and the rest the root's, with the dtypes and checkpointed blocks of the configuration."""
    offload = CPUOffloadPolicy(pin_memory=False) if is_offloaded else OffloadPolicy()
    copies = config.get("parallel", {}).get("dp_replicate", 1)
    mesh = (init_device_mesh("cpu", (world,)) if copies == 1 else
            init_device_mesh("cpu", (copies, world // copies), mesh_dim_names=("dp_replicate", "dp_shard")))
    precision = config.get("precision", {})
    dtypes = {key: getattr(torch, precision.get(key, "float32")) for key in ("param", "reduce", "output")}
    policy = MixedPrecisionPolicy(param_dtype=dtypes["param"], reduce_dtype=dtypes["reduce"])
    root_policy = MixedPrecisionPolicy(param_dtype=dtypes["param"], reduce_dtype=dtypes["reduce"], output_dtype=dtypes["output"])
    layers = model.model.layers
    for number in range(len(layers)):
        if config["train"].get("activation_checkpointing", False):
            layers[number] = checkpoint_wrapper(layers[number])
        fully_shard(layers[number], mesh=mesh, mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=root_policy, offload_policy=offload)


def replicate(model: LlamaForCausalLM, config: dict) -> DistributedDataParallel:
    """The whole model on each rank; in half precision by autocast, as DDP is used."""
    layers = model.model.layers
    for number in range(len(layers)):
        if config["train"].get("activation_checkpointing", False):
            layers[number] = checkpoint_wrapper(layers[number])
    dtype = getattr(torch, config.get("precision", {}).get("param", "float32"))
    if dtype != torch.float32:
        model.forward = torch.autocast("cpu", dtype=dtype)(model.forward)
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def build_model(config: dict) -> LlamaForCausalLM:
    model_config = LlamaConfig.from_file(Path(config["model"]["config"]))
    torch.manual_seed(config["model"].get("seed", 0))
    model = LlamaForCausalLM(model_config)
    weights = config["model"].get("weights", "none")
    if weights != "none":
        missing, unexpected = model.load_state_dict(safetensors_io.load(Path(weights) / "model.safetensors"), strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model


class WholeMatrices:
    """torch.optim.Muon of the matrices in blocks, each whole on each rank, and AdamW of the rest, sharded.

    On DTensors Muon would multiply pieces of matrices, whose sums come in another order.
    """

    def __init__(self, model: torch.nn.Module, muon: dict, adamw: dict):
        in_blocks = {name: parameter for name, parameter in model.named_parameters()
                     if parameter.dim() == 2 and ".layers." in name}
        self.matrices = [(parameter, torch.nn.Parameter(full(parameter.detach()).clone())) for parameter in in_blocks.values()]
        self.muon = torch.optim.Muon([whole for _, whole in self.matrices], **muon)
        self.adamw = torch.optim.AdamW([parameter for name, parameter in model.named_parameters() if name not in in_blocks],
                                       **adamw)
        self.param_groups = self.muon.param_groups + self.adamw.param_groups
        self.defaults = self.muon.defaults

    @property
    def state(self) -> dict:
        return {**self.adamw.state, **{parameter: self.muon.state[whole] for parameter, whole in self.matrices}}

    def step(self) -> None:
        for parameter, whole in self.matrices:
            whole.grad = full(parameter.grad)
        self.muon.step()
        self.adamw.step()
        for parameter, whole in self.matrices:
            mine = whole.detach().chunk(dist.get_world_size())[dist.get_rank():][:1]
            for part in mine:  # none on ranks behind the last chunk
                parameter.to_local().detach().copy_(part)

    def zero_grad(self) -> None:
        for parameter, _ in self.matrices:
            parameter.grad = None
        self.adamw.zero_grad()


def make_optimizer(config: dict, model: torch.nn.Module, kind: str) -> torch.optim.Optimizer | WholeMatrices:
    options = config["optimizer"]
    if options.get("name") == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options["lr"], momentum=options["momentum"],
                               weight_decay=options["weight_decay"], nesterov=options["nesterov"])
    if options.get("name") == "muon":
        adamw = {"lr": options["lr"], "betas": tuple(options["betas"]), "eps": options["eps"]}
        return WholeMatrices(model, {"lr": options["lr"], "weight_decay": options["weight_decay"],
                                     "adjust_lr_fn": options["adjust_lr_fn"]},
                             {**adamw, "weight_decay": options["weight_decay"]})
    extra = {"default": {}, "fused": {"fused": True}, "foreach": {"foreach": True}}[kind]
    return torch.optim.AdamW(model.parameters(), lr=options["lr"], betas=tuple(options["betas"]), eps=options["eps"],
                             weight_decay=options["weight_decay"], **extra)


def set_gradient_sync(model: torch.nn.Module, is_needed: bool) -> None:
    """Of the next forward and backward: what DDP's no_sync() does, and FSDP2's counterpart."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = is_needed
    else:
        model.set_requires_gradient_sync(is_needed)


def train_step(model, optimizer, scaler: torch.amp.GradScaler, windows: Windows, order: list[int], config: dict, step: int,
               is_measured: bool) -> tuple[torch.Tensor, float | None]:
    """One optimizer step; returns this rank's mean loss and the global gradient norm, if it is clipped or measured."""
    train = config["train"]
    micro, rounds = train["micro_batch_size"], train.get("grad_accumulation", 1)
    indices = order[step * micro * rounds : (step + 1) * micro * rounds]
    total = torch.zeros(())
    for number in range(rounds):
        pairs = [windows[i] for i in indices[number * micro : (number + 1) * micro]]
        inputs, targets = (torch.stack(side) for side in zip(*pairs))
        set_gradient_sync(model, train.get("sync_each_micro_batch", True) or number + 1 == rounds)
        loss = next_token_loss(model(inputs), targets)
        scaler.scale(loss / rounds if rounds > 1 else loss).backward()
        total += loss.detach() / rounds if rounds > 1 else loss.detach()
    norm, limit = None, train.get("max_grad_norm", 0)
    if limit > 0 or is_measured:
        scaler.unscale_(optimizer)
        # An infinite limit only measures: all gradients are multiplied by 1.
        norm_tensor = torch.nn.utils.clip_grad_norm_(model.parameters(), limit if limit > 0 else float("inf"))
        norm = full(norm_tensor).item()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return total, norm


def full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def save_full_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, path: Path) -> None:
    """Weights, moments and step counts, whole, under the names that they have in a checkpoint."""
    state = {f"model.{name}": full(value) for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("model.lm_head.weight", None)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            state[f"optim.state.{name}.{key}"] = full(value)
        if "momentum_buffer" in optimizer.state[parameter]:
            state[f"optim.state.{name}.step"] = torch.tensor(float(steps))  # fsdp-train counts them
    if dist.get_rank() == 0:
        safetensors_io.save(path, state)


def train(config: dict, output_path: Path, final_state: Path | None, optimizer_kind: str = "default", is_measured: bool = False,
          is_ddp: bool = False, is_float16: bool = False, is_offloaded: bool = False) -> None:
    """All steps on this rank of the group that there is; see the options of main()."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build_model(config)
    if is_ddp:
        model = replicate(model, config)
    else:
        shard(model, config, world, is_offloaded)
    steps = config["train"]["steps"]
    optimizer = make_optimizer(config, model, optimizer_kind)
    # Of what WholeMatrices has, that of Muon: its rates are constant.
    scheduler = make_scheduler(getattr(optimizer, "muon", optimizer), steps, config.get("schedule", {}))
    scaler = torch.amp.GradScaler("cpu", enabled=is_float16)
    windows = Windows(config["data"]["train"], config["data"]["seq_len"])
    order = window_order(windows, config["data"])
    tokens_per_step = (config["train"]["micro_batch_size"] * config["train"].get("grad_accumulation", 1) * world
                       * config["data"]["seq_len"])
    with open(output_path if rank == 0 else "/dev/null", "w") as output:
        for step in range(steps):
            started = time.perf_counter()
            lr = optimizer.param_groups[0]["lr"]
            loss, norm = train_step(model, optimizer, scaler, windows, order, config, step, is_measured)
            scheduler.step()
            gathered = torch.empty(world)
            dist.all_gather_into_tensor(gathered, loss.view(1))
            record = {"step": step + 1, "loss": gathered.mean().item(), "losses": gathered.tolist(),
                      "grad_norm": norm, "lr": lr, "tokens": tokens_per_step * (step + 1),
                      "step_seconds": time.perf_counter() - started}
            output.write(json.dumps(record) + "\n")
            output.flush()
    if final_state:
        save_full_state(model, optimizer, steps, final_state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="fsdp-train's configuration")
    parser.add_argument("--output", type=Path, required=True, help="JSONL with one record per step")
    parser.add_argument("--final-state", type=Path, help="write the trained weights and the optimizer's state there, as safetensors")
    parser.add_argument("--grad-norm", action="store_true", help="measure the gradient norm though it is not clipped")
    parser.add_argument("--ddp", action="store_true", help="with DistributedDataParallel instead of FSDP2")
    parser.add_argument("--optimizer", choices=["default", "fused", "foreach"], default="default")
    parser.add_argument("--float16", action="store_true", help="compute in it, reduce in float32, and scale the loss")
    parser.add_argument("--offload", action="store_true", help="keep parameters, gradients and the optimizer's state on the CPU")
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    if options.float16:
        config["precision"] = {"param": "float16", "reduce": "float32", "output": "float32"}

    dist.init_process_group("gloo")
    train(config, options.output, options.final_state, options.optimizer, options.grad_norm, options.ddp, options.float16, options.offload)
    dist.barrier()
    # All is written. PyTorch's own teardown of Gloo aborts once in a while ("terminate called without an active
    # exception"), which would fail a comparison that has succeeded.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
