"""Runs the cases of table.py with PyTorch: FSDP2, or what a case names instead. The other side of script.cc.

All ranks of a number of ranks run in processes that are forked from the caller's, which has loaded PyTorch.
"""

import contextlib
import gc
import multiprocessing
import os
import traceback
import weakref
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from unittest import mock

import models
import torch
import torch._dynamo  # noqa: F401: which an optimizer's first step loads, once for all ranks
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (FSDPModule, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy,
                                    ShardingStrategy, fully_shard, register_fsdp_forward_method)
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

LIMIT_S = 240
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


class EventLog:
    """Notes what is issued, for which unit, in lines "kind unit numel dtype"."""

    def __init__(self):
        self.events: list[str] = []
        self.is_noting = True
        self.unit = "-"

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        was, self.is_noting = self.is_noting, False
        yield
        self.is_noting = was

    def add(self, kind: str, larger: torch.Tensor) -> None:
        if self.is_noting:
            self.events.append(f"{kind} {self.unit} {larger.numel()} {models.DTYPE_NAMES.get(larger.dtype, larger.dtype)}")

    def noting(self, kind: str, function, larger: str):
        """`function`, of dist, which is noted with the size of its argument of that name."""
        def noted(*args, **kwargs):
            value = kwargs[larger] if larger in kwargs else args[0 if larger != "input" else 1]
            self.add(kind, value if isinstance(value, torch.Tensor) else torch.cat([part.flatten() for part in value]))
            return function(*args, **kwargs)
        return noted

    def for_unit(self, function):
        def called(group: FSDPParamGroup, *args, **kwargs):
            was, self.unit = self.unit, group._module_fqn or "root"
            try:
                return function(group, *args, **kwargs)
            finally:
                self.unit = was
        return called

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, kind, larger in (("all_gather_into_tensor", "gather", "output_tensor"), ("all_gather", "gather", "tensor_list"),
                                       ("reduce_scatter_tensor", "reduce", "input"), ("all_reduce", "all_reduce", "tensor")):
                stack.enter_context(mock.patch.object(dist, name, self.noting(kind, getattr(dist, name), larger)))
            for name in ("unshard", "post_backward"):
                stack.enter_context(mock.patch.object(FSDPParamGroup, name, self.for_unit(getattr(FSDPParamGroup, name))))
            yield


class Fsdp2:
    def __init__(self):
        self.ignored: list[str] = []

    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        for unit in options["units"]:
            policy = unit.get("precision", {})
            how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(
                *(DTYPES.get(policy.get(name)) for name in ("param", "reduce", "output")), policy.get("cast_forward_inputs", True))}
            if "reshard" in unit:
                how["reshard_after_forward"] = unit["reshard"]
            self.ignored += unit.get("ignored", [])
            if ignored := {parameter for name, parameter in model.named_parameters() if name.startswith(tuple(unit.get("ignored", [])))}:
                how["ignored_params"] = ignored
            if "modules" in unit:
                fully_shard([model.get_submodule(name) for name in unit["modules"]], **how)
            else:
                fully_shard(model.get_submodule(unit["name"]), **how)
        return model

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
        yield [(name, full(parameter.detach()), full(parameter.grad)) for name, parameter in model.named_parameters()
               if not name.startswith(tuple(self.ignored))]

    def clip(self, model: nn.Module, max_norm: float, log: EventLog) -> torch.Tensor:
        with CommDebugMode() as comm:
            norm = full(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm))
        for operation, count in comm.get_comm_counts().items():
            if "all_reduce" in str(operation):
                log.events += ["all_reduce - 1 Float"] * count
        return norm


class Fsdp1:
    def __init__(self):
        self.unsynchronised: contextlib.AbstractContextManager | None = None

    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        for unit in options["units"]:
            policy = unit.get("precision", {})
            precision = MixedPrecision(DTYPES.get(policy.get("param")), DTYPES.get(policy.get("reduce"))) if policy else None
            wrapped = FullyShardedDataParallel(
                model.get_submodule(unit["name"]), device_mesh=mesh, sharding_strategy=ShardingStrategy[options["strategy"]],
                mixed_precision=precision, device_id=torch.device("cpu"), use_orig_params=True)
            if not unit["name"]:
                return wrapped
            parent, _, child = unit["name"].rpartition(".")
            setattr(model.get_submodule(parent), child, wrapped)
        raise AssertionError("the last unit is not the root")

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
            yield [(name.replace("_fsdp_wrapped_module.", ""), parameter.detach(), parameter.grad)
                   for name, parameter in model.named_parameters()]

    def clip(self, model: nn.Module, max_norm: float, log: EventLog) -> torch.Tensor:
        return model.clip_grad_norm_(max_norm)


class Ddp:
    def shard(self, model: nn.Module, options: dict, mesh: DeviceMesh) -> nn.Module:
        return DistributedDataParallel(model)

    def set(self, model: nn.Module, options: dict) -> None:
        assert options["what"] == "requires_gradient_sync", options
        model.require_backward_grad_sync = options["value"]

    @contextlib.contextmanager
    def whole(self, model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor, torch.Tensor | None]]]:
        yield [(name.removeprefix("module."), parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()]

    def clip(self, model: nn.Module, max_norm: float, log: EventLog) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


ENGINES = {"fsdp2": Fsdp2, "fsdp1": Fsdp1, "ddp": Ddp}


def full(value: torch.Tensor | None) -> torch.Tensor | None:
    return value.full_tensor() if isinstance(value, DTensor) else value


class Case:
    """A method for each operation of a script."""

    meshes: dict[tuple[int, ...], DeviceMesh] = {}

    def __init__(self, case: dict, log: EventLog):
        self.spec, self.script, self.log = case["model"], case["script"], log
        self.engine = ENGINES[case["reference"]]()
        self.pending: dict[str, torch.Tensor] = {}
        self.all_losses: list[torch.Tensor] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.texts: dict[str, list[str]] = {}
        self.handles: list = []
        self.notes = 0

    def run(self) -> None:
        self.log.events.clear()
        self.build({"seed": 42})
        for name, options in self.script:
            getattr(self, name)(options)

    # --- the model

    def build(self, options: dict) -> None:
        self.model = models.make_model(self.spec)
        models.draw_parameters(self.model, options["seed"])
        if "dtype" in self.spec:
            self.model.to(DTYPES[self.spec["dtype"]])
        self.seen = getattr(self.model, "seen", [])

    def shard(self, options: dict) -> None:
        shape = tuple(options["mesh"])
        if shape not in self.meshes:
            self.meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard")[-len(shape):])
        self.bare = self.model
        self.model = self.engine.shard(self.model, options, self.meshes[shape])
        if "then_to" in options:
            self.model.to(DTYPES[options["then_to"]])

    # --- training

    def optimizer(self, options: dict) -> None:
        if options["kind"] == "sgd":
            self.torch_optimizer = torch.optim.SGD(self.model.parameters(), options["lr"], momentum=0.9)
        else:
            # Of FSDP2, what is sharded.
            chosen = [parameter for parameter in self.model.parameters()
                      if isinstance(parameter, DTensor) or not isinstance(self.engine, Fsdp2)]
            self.torch_optimizer = torch.optim.AdamW(chosen, options["lr"], weight_decay=0.1)

    def forward(self, options: dict) -> None:
        torch.manual_seed(1000 * options["seed"] + dist.get_rank() + 1)
        x = self.bare.draw_input(options.get("batch", 3))
        if x.is_floating_point() and "input" in options:
            x = x.to(DTYPES[options["input"]])
        x.requires_grad_(options.get("input_requires_grad", False))
        module = self.model.get_submodule(options["of"]) if "of" in options else self.model
        with torch.set_grad_enabled(options.get("grad", True)):
            if "method" in options:
                register_fsdp_forward_method(module, options["method"])
                module = getattr(module, options["method"])
            output = module() if options.get("no_input", False) else module(x)
            output = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
            loss = output.square().mean()
        self.pending[options.get("as", "loss")] = loss
        self.all_losses.append(loss.detach().double())

    def backward(self, options: dict) -> None:
        first, *rest = (self.pending[name] for name in options.get("of", ["loss"]))
        for loss in rest:
            first = first + loss
        (first * options.get("scale", 1.0)).backward()
        self.pending.clear()

    def step(self, options: dict) -> None:
        self.torch_optimizer.step()

    def zero_grad(self, options: dict) -> None:
        self.torch_optimizer.zero_grad(set_to_none=not options.get("in_place", False))

    def clip(self, options: dict) -> None:
        self.note("norm", self.engine.clip(self.model, options["max_norm"], self.log))

    # --- settings

    def set(self, options: dict) -> None:
        self.engine.set(self.model, options)

    def prefetch(self, options: dict) -> None:
        unit = self.model.get_submodule(options.get("unit", ""))
        modules = [self.model.get_submodule(name) for name in options["units"]]
        getattr(unit, f"set_modules_to_{options['pass']}_prefetch")(modules)

    def unshard(self, options: dict) -> None:
        handle = self.model.get_submodule(options.get("unit", "")).unshard(async_op=options.get("async", False))
        if handle is not None:
            self.handles.append(handle)

    def wait(self, options: dict) -> None:
        while self.handles:
            self.handles.pop(0).wait()

    def reshard(self, options: dict) -> None:
        self.model.get_submodule(options.get("unit", "")).reshard()

    # --- state dicts

    @staticmethod
    def state_options(options: dict) -> StateDictOptions:
        return StateDictOptions(full_state_dict=options.get("full", False), cpu_offload=options.get("cpu_offload", False),
                                broadcast_from_rank0=options.get("broadcast_from_rank0", False))

    def save(self, options: dict) -> None:
        with self.log.paused():
            self.saved = get_model_state_dict(self.model, options=self.state_options(options))
        for name, value in self.saved.items():
            if not isinstance(value, DTensor):
                self.note(f"state {name}", value)
        self.note("names of the state", list(self.saved))

    def load(self, options: dict) -> None:
        set_model_state_dict(self.model, self.saved, options=self.state_options(options))

    def forget(self, options: dict) -> None:
        units = [weakref.ref(module) for module in self.model.modules() if isinstance(module, FSDPModule)]
        self.pending.clear()
        del self.model, self.bare
        self.torch_optimizer = None
        gc.collect()
        self.note("units alive", [f"{sum(unit() is not None for unit in units)} of {len(units)}"])

    # --- results

    def note(self, what: str, value: torch.Tensor | list[str]) -> None:
        key = f"{self.notes:03} {what}"
        self.notes += 1
        if isinstance(value, torch.Tensor):
            self.tensors[key] = value.detach().clone()
        else:
            self.texts[key] = value

    def note_each(self, what: str, values: list[tuple[str, torch.Tensor | None]]) -> None:
        for name, value in values:
            if value is not None:
                self.note(f"{what} {name}", value)

    def losses(self, options: dict) -> None:
        self.note("losses", torch.stack(self.all_losses))
        self.all_losses.clear()

    def gradients(self, options: dict) -> None:
        with self.log.paused(), self.engine.whole(self.model) as whole:
            self.note_each("gradient", [(name, gradient) for name, _, gradient in whole])

    def parameters(self, options: dict) -> None:
        with self.log.paused(), self.engine.whole(self.model) as whole:
            self.note_each("parameter", [(name, parameter) for name, parameter, _ in whole])

    def unsharded(self, options: dict) -> None:
        self.note_each("unsharded", [(name, parameter.detach()) for name, parameter in self.model.named_parameters()])

    def local(self, options: dict) -> None:
        for name, parameter in self.model.named_parameters():
            if name.startswith(tuple(options["of"])):
                self.note(f"local {name}", parameter)
                self.note(f"local gradient {name}", parameter.grad)

    def events(self, options: dict) -> None:
        self.note("events", list(self.log.events))
        self.log.events.clear()

    def dtypes(self, options: dict) -> None:
        self.note("dtypes", list(self.seen))
        self.seen.clear()


def run_rank(rank: int, ranks: int, port: int, cases: list[dict], output: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    log = EventLog()
    tensors, texts = {}, {}
    with log.installed():
        for case in cases:
            run = Case(case, log)
            try:
                run.run()
                tensors[case["name"]], texts[case["name"]] = run.tensors, run.texts
            except Exception:
                texts[case["name"]] = {"error": traceback.format_exc()}
    torch.save((tensors, texts), f"{output}.{rank}.pt")


def run_process(*arguments) -> None:
    code = 1
    try:
        run_rank(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # PyTorch's own teardown of Gloo aborts once in a while


def run(ranks: int, port: int, cases: list[dict], output: Path) -> None:
    """Writes <output>.<rank>.pt: the tensors and the texts, each by case and key."""
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=run_process, args=(rank, ranks, port, cases, output)) for rank in range(ranks)]
    for process in started:
        process.start()
    running = list(started)
    while running:
        ended = wait([process.sentinel for process in running], LIMIT_S)
        running = [process for process in running if process.sentinel not in ended]
        if not ended or any(process.exitcode for process in started if process not in running):
            for process in running:
                process.kill()
            raise SystemExit(f"PyTorch at {ranks} ranks fails or does not end")
