"""Ranks of PyTorch over Gloo that are forked, so that its packages are imported once.

Call fork_ranks before anything else of PyTorch has started a thread.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _run_rank(rank: int, size: int, folder: str, work, arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    result = work(*arguments)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's own teardown of Gloo aborts once in a while.


def fork_ranks(size: int, work, *arguments):
    """Calls `work` on each of `size` ranks; what it returns on the first, by way of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run_rank, args=(size, folder, work, arguments), nprocs=size, start_method="fork")
        return json.loads(Path(folder, "result.json").read_text())
