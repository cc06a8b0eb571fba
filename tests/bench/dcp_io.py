"""What checkpoint_io.cc does, with torch.distributed.checkpoint: DIR PARAMETERS REPEATS.

Also the time for which the second async_save holds up its caller, in "stall".
"""

import json
import os
import resource
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

COLUMNS, ROWS_MAX = 1024, 4096


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cost_of(work) -> tuple[float, float]:
    dist.barrier()
    start, before = time.monotonic(), cpu_seconds()
    work()
    cpu = cpu_seconds() - before
    dist.barrier()
    return time.monotonic() - start, cpu


def state_of(mesh, parameters: int) -> dict[str, torch.Tensor]:
    state, left, index = {}, parameters // COLUMNS, 0
    while left > 0:
        rows = min(left, ROWS_MAX)
        left -= rows
        for key in (f"model.weight_{index}", f"optim.state.weight_{index}.exp_avg", f"optim.state.weight_{index}.exp_avg_sq"):
            state[key] = distribute_tensor(torch.rand(rows, COLUMNS), mesh, [Shard(0)])
        index += 1
    return state


def main() -> None:
    folder, parameters, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    state = state_of(init_device_mesh("cpu", (dist.get_world_size(),)), parameters)
    is_first = dist.get_rank() == 0
    for step in range(1, repeats + 1):
        path = f"{folder}/step-{step}"
        save, save_cpu = cost_of(lambda: dcp.save(state, checkpoint_id=path))
        load, load_cpu = cost_of(lambda: dcp.load(state, checkpoint_id=path))
        dist.barrier()
        if is_first:
            shutil.rmtree(path)
        for _ in range(2):
            pending = []
            stall, _ = cost_of(lambda: pending.append(dcp.async_save(state, checkpoint_id=path)))
            pending[0].result()
            dist.barrier()
            if is_first:
                shutil.rmtree(path)
            dist.barrier()
        if is_first:
            print(json.dumps({"save": save, "save_cpu": save_cpu, "load": load, "load_cpu": load_cpu, "stall": stall}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # PyTorch's own teardown of Gloo aborts once in a while.


if __name__ == "__main__":
    main()
