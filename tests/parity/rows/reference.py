"""Runs the cases of table.py with PyTorch: FSDP2, or what a case names instead. The other side of script.cc.

All ranks of a number of ranks run in processes that are forked from the caller's, which has loaded PyTorch.
"""

import datetime
import gc
import multiprocessing
import os
import time
import traceback
import weakref
from multiprocessing.connection import wait
from pathlib import Path

import models
import noted_files
import torch
import torch._dynamo  # noqa: F401: which an optimizer's first step loads, once for all ranks
import torch.distributed as dist
from engines import DTYPES, ENGINES, FSDP1_PREFIX, Fsdp1, Fsdp2, wrap_policy_of
from event_log import EventLog
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, register_fsdp_forward_method
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

# As libfsdp's: of one operation.
TIMEOUT = datetime.timedelta(seconds=60)


class Case:
    """A method for each operation of a script."""

    meshes: dict[tuple[int, ...], DeviceMesh] = {}

    def __init__(self, case: dict, log: EventLog):
        self.spec, self.script, self.log = case["model"], case["script"], log
        self.engine = ENGINES[case["reference"]]()
        self.pending: dict[str, torch.Tensor] = {}
        self.all_losses: list[torch.Tensor] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.parts: dict[str, tuple[torch.Tensor, list[int], int]] = {}  # and the ranks that have the others, and along what
        self.texts: dict[str, list[str]] = {}
        self.handles: list = []
        # Of FSDP2: what is sharded, and this rank's part, on which an optimizer does the same in a fifth of DTensor's time.
        self.shards: list[tuple[DTensor, torch.nn.Parameter]] = []
        self.grad_scaler: torch.amp.GradScaler | None = None
        self.position = 0

    def run(self) -> None:
        self.log.events.clear()
        self.log.late = None
        self.build({"seed": 42})
        for self.position, (name, options) in enumerate(self.script):
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
        named = list(self.model.named_parameters())
        chosen = [parameter for _, parameter in named]
        self.shards = []
        in_backward = options.get("in_backward", False)
        if isinstance(self.engine, Fsdp2):
            chosen = [parameter for parameter in chosen if isinstance(parameter, DTensor)]
            # A scaler asks the ranks whether a DTensor overflows, and hooks are of the parameters themselves.
            if not in_backward and all(name != "scaler" for name, _ in self.script):
                self.shards = [(parameter, torch.nn.Parameter(parameter.to_local().detach())) for parameter in chosen]
                chosen = [shard for _, shard in self.shards]
        if in_backward:
            self.step_in_backward(chosen, options["lr"])
        elif "groups" in options:
            suffixes = [group["suffix"] for group in options["groups"]]
            self.torch_optimizer = torch.optim.AdamW([
                {"params": [parameter for name, parameter in named if name.endswith(suffix)], "lr": group["lr"], "weight_decay": group["weight_decay"]}
                for suffix, group in zip(suffixes, options["groups"])], options["lr"], weight_decay=0.1)
        elif options["kind"] == "sgd":
            self.torch_optimizer = torch.optim.SGD(chosen, options["lr"], momentum=0.9)
        else:
            self.torch_optimizer = torch.optim.AdamW(chosen, options["lr"], weight_decay=0.1)

    def step_in_backward(self, parameters: list[torch.Tensor], lr: float) -> None:
        """As PyTorch's tutorial has it. What steps behind the backward has nothing to do then."""
        optimizers = {parameter: torch.optim.AdamW([parameter], lr, weight_decay=0.1) for parameter in parameters}

        def hook(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook)
        self.torch_optimizer = torch.optim.SGD([torch.zeros(1)])

    def forward(self, options: dict) -> None:
        models.seed_generator(1000 * options["seed"] + dist.get_rank() + 1)
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
        first = first * options.get("scale", 1.0)
        if options.get("overflows", False) and dist.get_rank() == 0:
            first = first * float("inf")
        (self.grad_scaler.scale(first) if self.grad_scaler else first).backward()
        self.pending.clear()

    def step(self, options: dict) -> None:
        for parameter, shard in self.shards:
            shard.data = parameter.to_local().detach()
            shard.grad = None if parameter.grad is None else parameter.grad.to_local()
        if self.grad_scaler:
            self.grad_scaler.step(self.torch_optimizer)
        else:
            self.torch_optimizer.step()

    def zero_grad(self, options: dict) -> None:
        if not options.get("in_place", False):
            for parameter, _ in self.shards:
                parameter.grad = None
        self.torch_optimizer.zero_grad(set_to_none=not options.get("in_place", False))

    def clip(self, options: dict) -> None:
        # JSON has no infinity.
        norm_type = options.get("norm_type", 2.0) or float("inf")
        self.note("norm", self.engine.clip(self.model, options["max_norm"], norm_type, self.log))

    # --- scaled losses

    def scaler(self, options: dict) -> None:
        make = ShardedGradScaler if isinstance(self.engine, Fsdp1) else torch.amp.GradScaler
        self.grad_scaler = make("cpu", init_scale=options["init_scale"], growth_interval=options.get("growth_interval", 2000))

    def unscale(self, options: dict) -> None:
        self.grad_scaler.unscale_(self.torch_optimizer)

    def update_scale(self, options: dict) -> None:
        self.grad_scaler.update()
        self.note("scale", torch.tensor(self.grad_scaler.get_scale(), dtype=torch.float64))

    # --- settings

    def delay(self, options: dict) -> None:
        self.log.late = options["what"]

    def mode(self, options: dict) -> None:
        self.model.train(options["train"])

    def summon(self, options: dict) -> None:
        """FSDP1's. Notes the whole parameters, and doubles them."""
        how = {"recurse": True, "writeback": True, "with_grads": False, **{name: options[name] for name in options if name not in ("of", "unit")}}
        root = self.model.get_submodule(options.get("unit", ""))
        with self.log.paused(), FullyShardedDataParallel.summon_full_params(root, **how):
            for name, parameter in self.named():
                if name.startswith(tuple(options["of"])):
                    self.note(f"whole {name}", parameter)
                    if how["with_grads"] and parameter.grad is not None:
                        self.note(f"whole gradient {name}", parameter.grad)
                    parameter.data.mul_(2)

    def freeze(self, options: dict) -> None:
        for name, parameter in self.model.named_parameters():
            if name.startswith(tuple(options["of"])):
                parameter.requires_grad_(not options["value"])

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
        self.shards.clear()
        gc.collect()
        self.note("units alive", [f"{sum(unit() is not None for unit in units)} of {len(units)}"])

    # --- results

    def note(self, what: str, value: torch.Tensor | list[str]) -> None:
        key = f"{self.position:03} {what}"
        if isinstance(value, DTensor) and value.placements[-1].is_replicate():
            value = value.to_local()
        if isinstance(value, DTensor):
            assert value.placements[-1].is_shard(), value
            mesh = value.device_mesh
            ranks = dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1))
            self.parts[key] = value.to_local().detach().clone(), ranks, value.placements[-1].dim
        elif isinstance(value, torch.Tensor):
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

    def shards_of_rank(self, options: dict) -> None:
        for name, parameter in self.model.named_parameters():
            self.note(f"shard {name}", parameter.to_local())
            if parameter.grad is not None:
                self.note(f"shard of the gradient {name}", parameter.grad.to_local())

    def events(self, options: dict) -> None:
        self.note("events", list(self.log.events))
        self.log.events.clear()

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """As before FSDP1 has wrapped modules."""
        return [(name.replace(FSDP1_PREFIX, ""), parameter) for name, parameter in self.model.named_parameters()]

    def planned(self, options: dict) -> None:
        """What a policy of FSDP1's makes units, with how many elements each."""
        ignored = [self.model.get_submodule(name) for name in options.get("ignored", [])]
        wrapped = FullyShardedDataParallel(self.model, auto_wrap_policy=wrap_policy_of(self.model, options), ignored_modules=ignored,
                                           device_id=torch.device("cpu"))
        units = FullyShardedDataParallel.fsdp_modules(wrapped)
        names = {module: name.replace(FSDP1_PREFIX, "").removesuffix("_fsdp_wrapped_module").rstrip(".")
                 for name, module in wrapped.named_modules()}
        self.note("planned", sorted(f"{names[unit]} {sum(unit._handle.flat_param._numels)}" for unit in units if unit._handle))

    def members(self, options: dict) -> None:
        """FSDP2's: what each unit has, with all in it."""
        lines = []
        for unit, module in self.model.named_modules():
            if isinstance(module, FSDPModule):
                taken = {id(each.sharded_param) for part in module.modules() if isinstance(part, FSDPModule)
                         for each in part._get_fsdp_state()._fsdp_param_group.fsdp_params}
                lines += [f"{unit}: {name}" for name, parameter in module.named_parameters() if id(parameter) in taken]
        self.note("members", sorted(lines))

    def dtypes(self, options: dict) -> None:
        self.note("dtypes", list(self.seen))
        self.seen.clear()


def run_rank(rank: int, ranks: int, port: int, cases: list[dict], output: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=TIMEOUT)
    torch.set_num_threads(1)
    gc.disable()  # a tenth of all time; what the cases leave is small
    log = EventLog()
    noted = {}
    with log.installed():
        for case in cases:
            Path(f"{output}.{rank}.at").write_text(case["name"])
            run = Case(case, log)
            try:
                run.run()
                noted[case["name"]] = {**run.tensors, **run.parts, **run.texts}
            except Exception:
                noted[case["name"]] = {"error": traceback.format_exc()}
    noted_files.write(Path(f"{output}.{rank}"), noted)


def run_process(*arguments) -> None:
    code = 1
    try:
        run_rank(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # PyTorch's own teardown of Gloo aborts once in a while


def cases_at(output: Path) -> str:
    """Those in which the ranks are, or have ended."""
    return ", ".join(sorted({path.read_text() for path in output.parent.glob(f"{output.name}.*.at")}))


def run(ranks: int, port: int, cases: list[dict], output: Path, limit_s: float) -> None:
    """Writes <output>.<rank>.json and .bin, for read()."""
    deadline = time.monotonic() + limit_s
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=run_process, args=(rank, ranks, port, cases, output)) for rank in range(ranks)]
    for process in started:
        process.start()
    running = list(started)
    while running:
        ended = wait([process.sentinel for process in running], max(0.0, deadline - time.monotonic()))
        running = [process for process in running if process.sentinel not in ended]
        if not ended or any(process.exitcode for process in started if process not in running):
            for process in running:
                process.kill()
            raise SystemExit(f"PyTorch at {ranks} ranks {'fails' if ended else f'has not ended within {limit_s:.0f} s'}, in {cases_at(output)}")


def read(ranks: int, output: Path) -> list[dict[str, noted_files.Noted]]:
    """What has been noted, by rank, case and key; shards have been put together."""
    of_ranks = [noted_files.read(Path(f"{output}.{rank}")) for rank in range(ranks)]

    def whole(case: str, key: str, value):
        if not isinstance(value, tuple):
            return value
        return torch.cat([of_ranks[rank][case][key][0] for rank in value[1]], value[2])

    return [{case: {key: whole(case, key, value) for key, value in noted.items()} for case, noted in of_rank.items()} for of_rank in of_ranks]
