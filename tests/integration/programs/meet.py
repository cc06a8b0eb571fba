"""Meets the other workers and reduces, in the world and in parts of it. Arguments: how to meet, one after another for
each restart (tcp stands for the launcher's store by its address), and a folder for notes. The last rank is killed until
there is no further way to meet."""

import os
import signal
import sys

import torch
import torch.distributed as dist


def one_hot_sum(group, world, rank):
    mine = torch.zeros(world)
    mine[rank] = 1
    dist.all_reduce(mine, group=group)
    return mine.tolist()


def main(methods, folder):
    rank, world, restart = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    method = methods.split(",")[restart]
    if method == "tcp":
        where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    else:
        dist.init_process_group("gloo", init_method=method)
    assert dist.is_torchelastic_launched()
    assert one_hot_sum(None, world, rank) == [1.0] * world
    halves = [dist.new_group([r for r in range(world) if r % 2 == half]) for half in range(2)]
    assert one_hot_sum(halves[rank % 2], world, rank) == [float(r % 2 == rank % 2) for r in range(world)]
    dist.barrier()
    with open(os.path.join(folder, f"met.{restart}.{rank}"), "w") as file:
        file.write(method)
    dist.barrier()
    if restart + 1 < len(methods.split(",")) and rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
