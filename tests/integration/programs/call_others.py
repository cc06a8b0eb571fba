"""torch.distributed.rpc between workers of several roles, which are named by role and number in it. Argument: a folder
into which rank 0 writes who has answered."""

import os
import sys

import torch.distributed.rpc as rpc

NAME = os.environ["ROLE_NAME"] + os.environ["ROLE_RANK"]


def own_name():
    return NAME


def main(folder):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(NAME, rank=rank, world_size=world)
    if rank == 0:
        others = sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos())
        answers = [rpc.rpc_sync(other, own_name) for other in others]
        answers += [rpc.remote(other, own_name).to_here() for other in others]
        with open(os.path.join(folder, "answers"), "w") as file:
            file.write(" ".join(answers))
    rpc.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
