"""A training with FSDP2. Arguments: where rank 0 writes the losses, a checkpoint, and whether it is to be saved at the
end, or loaded at the beginning."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from leaving import leave


def main(output, checkpoint, what):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(int(what == "load"))  # Other weights than those to be loaded.
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if what == "load":
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=checkpoint)
        model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch = torch.linspace(-2, 2, 8 * 16).reshape(8, 16)  # The same for each rank, so that the number of ranks matters little.
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch.sin())
        loss.backward()
        losses.append(loss.item())
        if what != "load":
            optimizer.step()
    if what == "save":
        dcp.save({"model": model.state_dict()}, checkpoint_id=checkpoint)
        losses.append(torch.nn.functional.mse_loss(model(batch), batch.sin()).item())
    if dist.get_rank() == 0:
        with open(output, "w") as file:
            json.dump(losses, file)
    assert int(os.environ["WORLD_SIZE"]) == dist.get_world_size()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
