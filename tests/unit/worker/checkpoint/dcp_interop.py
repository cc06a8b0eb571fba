"""The Python side of checkpoint_test: writes a checkpoint as FSDP2 does and reads some of ours.

  dcp_interop.py TO_WRITE [TO_READ ...]

TO_WRITE: by four gloo ranks, DTensor Shard(0): uneven rows, empty shards. TO_READ: every value is compared, through
dcp.load and dcp_to_torch_save.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

STEP = 4
SPECS = [
    ("model", "embed.weight", (7, 5), torch.float32),
    ("model", "layers.0.weight", (3, 2, 4), torch.bfloat16),
    ("model", "norm.weight", (5,), torch.float32),
    ("optim", ("embed.weight", "exp_avg"), (7, 5), torch.float32),
    ("optim", ("embed.weight", "step"), (), torch.float32),
]
PARAM_GROUPS = [{"lr": 0.1, "betas": [0.9, 0.95], "params": ["embed.weight"]}]
TRAIN_STATE = {"step": STEP, "seed": 2**64 - 1}


def whole(index):
    _, _, shape, dtype = SPECS[index]
    count = int(torch.Size(shape).numel())
    return (torch.arange(count, dtype=torch.float32) + STEP + 30.0 * index).to(dtype).reshape(shape)


def nested(make):
    model, state = {}, {}
    for index, (part, name, _, _) in enumerate(SPECS):
        if part == "model":
            model[name] = make(index)
        else:
            state.setdefault(name[0], {})[name[1]] = make(index)
    return {"model": model, "optim": {"state": state}}


def compare(loaded):
    for index, (part, name, _, dtype) in enumerate(SPECS):
        got = loaded["model"][name] if part == "model" else loaded["optim"]["state"][name[0]][name[1]]
        assert got.dtype == dtype and torch.equal(got, whole(index)), (part, name, got)


def read(path):
    template = nested(lambda index: torch.zeros_like(whole(index)))
    dcp.load(template, checkpoint_id=path)
    compare(template)
    with tempfile.TemporaryDirectory() as folder:
        single = os.path.join(folder, "all.pt")
        dcp_to_torch_save(path, single)
        everything = torch.load(single, weights_only=True)
    compare(everything)
    assert everything["optim"]["param_groups"] == PARAM_GROUPS, everything["optim"]["param_groups"]
    assert everything["train"]["state"] == TRAIN_STATE, everything["train"]["state"]


def write_rank(rank, size, path, store):
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = dist.init_device_mesh("cpu", (size,))
    state = nested(
        lambda index: distribute_tensor(whole(index), mesh, [Shard(0)]) if SPECS[index][2] else whole(index)
    )
    # Tuples and nested lists as torch.optim has them: DCP flattens the groups into many items.
    state["optim"]["param_groups"] = [dict(PARAM_GROUPS[0], betas=(0.9, 0.95))]
    state["train"] = {"state": TRAIN_STATE}
    dcp.save(state, checkpoint_id=path)
    dist.destroy_process_group()


def write(path):
    with tempfile.TemporaryDirectory() as folder:
        # Forked, so that the ranks need not import torch again; nothing has started a thread yet.
        mp.start_processes(write_rank, args=(4, path, os.path.join(folder, "store")), nprocs=4, start_method="fork")


def main():
    to_write, *to_read = sys.argv[1:]
    write(to_write)
    for path in to_read:
        read(path)


if __name__ == "__main__":
    main()
