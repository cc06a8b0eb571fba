"""Notes what PyTorch's FSDP communicates."""

import contextlib
import time
from collections.abc import Iterator
from unittest import mock

import models
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

DELAY_S = 0.001


class EventLog:
    """Notes what is issued, for which unit, in lines "kind unit numel dtype"."""

    def __init__(self):
        self.events: list[str] = []
        self.is_noting = True
        self.late: str | None = None  # the kind that is issued late
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
            if kind == self.late:
                time.sleep(DELAY_S)
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
