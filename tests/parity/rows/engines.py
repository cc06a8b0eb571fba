"""FSDP2, FSDP1 and DDP, as the operations of a case need them."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from event_log import EventLog
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import (BackwardPrefetch, CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy,
                                    fully_shard)
from torch.distributed.fsdp.wrap import always_wrap_policy, lambda_auto_wrap_policy, size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
FSDP1_PREFIX = "_fsdp_wrapped_module."


def full(value: torch.Tensor | None) -> torch.Tensor | None:
    return value.full_tensor() if isinstance(value, DTensor) else value


def wrap_policy_of(model: nn.Module, options: dict) -> Callable:
    if options["policy"] == "always":
        return always_wrap_policy
    if options["policy"] == "size":
        return functools.partial(size_based_auto_wrap_policy, min_num_params=options["min"])
    chosen = {model.get_submodule(name) for name in options["names"]}
    return functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: module in chosen)


class Fsdp2:
    wrap = staticmethod(fully_shard)

    def __init__(self):
        self.ignored: list[str] = []

    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        for unit in options["units"]:
            policy = unit.get("precision", {})
            how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(
                *(DTYPES.get(policy.get(name)) for name in ("param", "reduce", "output")), policy.get("cast_forward_inputs", True))}
            if "reshard" in unit:
                how["reshard_after_forward"] = unit["reshard"]
            if unit.get("offload", False):
                how["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
            if "placement" in unit:
                how["shard_placement_fn"] = functools.partial(self.placement_of, dict(model.named_parameters()), unit["placement"])
            self.ignored += unit.get("ignored", [])
            if ignored := {parameter for name, parameter in model.named_parameters() if name.startswith(tuple(unit.get("ignored", [])))}:
                how["ignored_params"] = ignored
            if "modules" in unit:
                self.wrap([model.get_submodule(name) for name in unit["modules"]], **how)
            else:
                self.wrap(model.get_submodule(unit["name"]), **how)
        return model

    @staticmethod
    def placement_of(parameters: dict[str, nn.Parameter], dims: dict[str, int], parameter: nn.Parameter) -> Shard | None:
        """By the end of its name."""
        name = next(name for name, each in parameters.items() if each is parameter)
        return next((Shard(dim) for suffix, dim in dims.items() if name.endswith(suffix)), None)

    def set(self, model: nn.Module, options: dict) -> None:
        unit, what = model.get_submodule(options.get("unit", "")), options["what"]
        if what == "gradient_divide_factor":
            # Gloo has no sum that multiplies.
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_gradient_divide_factor(options["value"])
        elif what in ("is_last_backward", "unshard_in_backward", "force_sum_reduction_for_comms"):
            getattr(unit, f"set_{what}")(options["value"])
        else:
            getattr(unit, f"set_{what}")(options["value"], recurse=options.get("recurse", True))

    @contextlib.contextmanager
    def whole(self, model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor, torch.Tensor | None]]]:
        # Shards, which read() puts together: for DTensor to do it costs a quarter of all time.
        yield [(name, parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()
               if not name.startswith(tuple(self.ignored))]

    def clip(self, model: nn.Module, max_norm: float, norm_type: float, log: EventLog) -> torch.Tensor:
        with CommDebugMode() as comm:
            norm = full(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type))
        for operation, count in comm.get_comm_counts().items():
            if "all_reduce" in str(operation):
                log.events += ["all_reduce - 1 Float"] * count
        return norm


class Replicate(Fsdp2):
    """DDP on FSDP2's engine; here a mesh whose rows are one rank."""

    wrap = staticmethod(replicate)

    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        return super().shard(model, options, mesh["dp_replicate"])


class Fsdp1:
    def __init__(self):
        self.unsynchronised: contextlib.AbstractContextManager | None = None

    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        ahead = {name: options[name] for name in ("forward_prefetch", "limit_all_gathers") if name in options}
        if "backward_prefetch" in options:
            name = options["backward_prefetch"]
            ahead["backward_prefetch"] = BackwardPrefetch[name] if name else None
        for unit in options["units"]:
            policy = unit.get("precision", {})
            by_hook = options.get("by_hook", False)  # what libfsdp has as reduce_dtype
            precision = MixedPrecision(DTYPES.get(policy.get("param")), DTYPES.get(policy.get("reduce"))) if policy and not by_hook else None
            with mock.patch.dict(os.environ, FSDP_USE_FULL_PREC_IN_EVAL=str(int(policy.get("full_precision_in_eval", False)))):
                wrapped = FullyShardedDataParallel(
                    model.get_submodule(unit["name"]), device_mesh=mesh, sharding_strategy=ShardingStrategy[options["strategy"]],
                    mixed_precision=precision, device_id=torch.device("cpu"), use_orig_params=True, **ahead)
            if not unit["name"]:
                if by_hook:
                    self.compress(wrapped, policy["reduce"], mesh)
                return wrapped
            parent, _, child = unit["name"].rpartition(".")
            setattr(model.get_submodule(parent), child, wrapped)
        raise AssertionError("the last unit is not the root")

    @staticmethod
    def compress(model: FullyShardedDataParallel, dtype: str, mesh: DeviceMesh) -> None:
        hook = {"float16": default_hooks.fp16_compress_hook, "bfloat16": default_hooks.bf16_compress_hook}[dtype]

        def without_streams(*args) -> None:  # the CPU's tensors cannot record one
            with mock.patch.object(torch.Tensor, "record_stream", lambda *_: None):
                hook(*args)

        model.register_comm_hook(default_hooks.LowPrecisionState(mesh.get_group()), without_streams)

    def set(self, model: nn.Module, options: dict) -> None:
        if options["what"] != "requires_gradient_sync":
            return  # what its no_sync() and strategies do by themselves
        if self.unsynchronised is not None:
            self.unsynchronised.__exit__(None, None, None)
            self.unsynchronised = None
        if not options["value"]:
            self.unsynchronised = model.no_sync()
            self.unsynchronised.__enter__()

    @contextlib.contextmanager
    def whole(self, model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor, torch.Tensor | None]]]:
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            # What is frozen beside what is not has a part of the unit's gradient.
            yield [(name.replace(FSDP1_PREFIX, ""), parameter.detach(), parameter.grad if parameter.requires_grad else None)
                   for name, parameter in model.named_parameters()]

    def clip(self, model: nn.Module, max_norm: float, norm_type: float, log: EventLog) -> torch.Tensor:
        return model.clip_grad_norm_(max_norm, norm_type)


class Ddp:
    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        return DistributedDataParallel(model)

    def set(self, model: nn.Module, options: dict) -> None:
        assert options["what"] == "requires_gradient_sync", options
        model.require_backward_grad_sync = options["value"]

    @contextlib.contextmanager
    def whole(self, model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor, torch.Tensor | None]]]:
        yield [(name.removeprefix("module."), parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()]

    def clip(self, model: nn.Module, max_norm: float, norm_type: float, log: EventLog) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)


ENGINES = {"fsdp2": Fsdp2, "replicate": Replicate, "fsdp1": Fsdp1, "ddp": Ddp}
