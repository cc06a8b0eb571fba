#!/usr/bin/env python3
"""Passes model and optimizer between libfsdp and PyTorch in files, with a step of training on each side.

libfsdp trains two steps and saves; Python loads that with torch.load(weights_only=True) into a module and an AdamW, by
Module.load_state_dict and torch.distributed.checkpoint.state_dict, takes a step, and saves with torch.save; libfsdp loads that
on another number of ranks and takes a step. Python takes the same steps alone, and all bits are compared after each. From two
ranks to three, and from three to two, where torch.save is told to leave checksums out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_optimizer_state_dict,
                                                     set_optimizer_state_dict)

BLOCKS, WIDTH = 2, 6


def values(sizes: tuple[int, ...], seed: float) -> torch.Tensor:
    index = torch.arange(torch.Size(sizes).numel(), dtype=torch.float64) + seed
    return ((index * 12.9898).sin() * 0.3).to(torch.float32).view(sizes)


class Block(torch.nn.Module):
    def __init__(self, seed: float):
        super().__init__()
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.weight = torch.nn.Parameter(values((WIDTH, WIDTH), seed))
        self.spare = torch.nn.Parameter(values((5, WIDTH), seed + 1))
        self.frozen = torch.nn.Parameter(values((3,), seed + 2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.linear(x, self.weight).tanh() * self.scale


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for number in range(BLOCKS):
            setattr(self, f"block{number}", Block(10.0 * number))
        self.head = torch.nn.Parameter(values((WIDTH, WIDTH), 100))
        self.tied = self.head
        self.register_buffer("seen", torch.full((), 3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.linear(x, self.head)
        for number in range(BLOCKS):
            x = getattr(self, f"block{number}")(x)
        return torch.nn.functional.linear(x, self.tied)


class Training:
    """In one process, with the gradients of all ranks, averaged in the order of the ranks."""

    def __init__(self):
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.1)

    def step(self, number: int, ranks: int) -> None:
        total: dict[str, torch.Tensor] = {}
        for rank in range(ranks):
            self.optimizer.zero_grad()
            self.model(values((8, WIDTH), 1000.0 * rank + 100.0 * number)).square().mean().backward()
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    total[name] = total[name] + parameter.grad if name in total else parameter.grad.clone()
        for name, parameter in self.model.named_parameters():
            parameter.grad = total[name] / ranks if name in total else None
        self.optimizer.step()
        self.optimizer.zero_grad()

    def states(self) -> dict:
        return get_optimizer_state_dict(self.model, self.optimizer, options=StateDictOptions(full_state_dict=True))


def expect_same(what: str, found: dict, expected: dict) -> None:
    assert list(found) == list(expected), f"{what}: names {list(found)}, expected {list(expected)}"
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, f"{what}: {name} is {found[name].dtype}, expected {value.dtype}"
        assert torch.equal(found[name], value), f"{what}: {name} differs by {(found[name] - value).abs().max()}"


def expect_files(what: str, folder: Path, alone: Training) -> tuple[dict, dict]:
    model = torch.load(folder / "model.pt", weights_only=True)
    states = torch.load(folder / "optimizer.pt", weights_only=True)
    expect_same(f"{what}, model", model, alone.model.state_dict())
    assert model["head"].data_ptr() == model["tied"].data_ptr(), "tied parameters are there twice"
    expected = {name: state for name, state in alone.states()["state"].items() if state}
    assert set(states["state"]) == set(expected), f"{what}: states of {sorted(states['state'])}, not {sorted(expected)}"
    for name, state in expected.items():
        expect_same(f"{what}, state of {name}", states["state"][name], state)
    return model, states


def expect_options(states: dict, alone: Training) -> None:
    (group,), (expected,) = states["param_groups"], alone.states()["param_groups"]
    assert group["params"] == expected["params"], group["params"]
    differing = {key: (group.get(key, "nothing"), value) for key, value in expected.items()
                 if key != "params" and (key not in group or group[key] != value)}
    assert not differing, f"options differ (found, expected): {differing}"


def pass_there_and_back(run: Callable[[str, Path, int], None], folder: Path, ranks: int, others: int) -> None:
    alone = Training()
    run("train", folder, ranks)
    alone.step(0, ranks)
    alone.step(1, ranks)
    model, states = expect_files(f"written by libfsdp on {ranks} ranks", folder, alone)
    expect_options(states, alone)

    other = Training()
    other.model.load_state_dict(model, strict=True)
    # Python wants states of parameters that were never updated, too, and else makes them by a step of its own.
    set_optimizer_state_dict(other.model, other.optimizer, states,
                             options=StateDictOptions(full_state_dict=True, strict=False))
    for number in range(BLOCKS):
        other.optimizer.state.pop(getattr(other.model, f"block{number}").spare)
    other.step(2, ranks=1)
    alone.step(2, ranks=1)
    expect_same("a step in Python", other.model.state_dict(), alone.model.state_dict())
    torch.save(other.model.state_dict(), folder / "python_model.pt")
    torch.save(other.states(), folder / "python_optimizer.pt")

    run("copy", folder, others)
    alone.step(3, others)
    expect_files(f"after a step of libfsdp on {others} ranks", folder, alone)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def run(what: str, folder: Path, ranks: int) -> None:
        command = [str(options.bin / "fsdprun"), "--standalone", f"--nproc-per-node={ranks}", "--no-python",
                   str(options.program), what, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode} of {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")

    for ranks, others, has_checksums in ((2, 3, True), (3, 2, False)):
        torch.serialization.set_crc32_options(has_checksums)
        with tempfile.TemporaryDirectory() as folder:
            pass_there_and_back(run, Path(folder), ranks, others)
    print("all bits are the same on both sides")
    return 0


if __name__ == "__main__":
    sys.exit(main())
