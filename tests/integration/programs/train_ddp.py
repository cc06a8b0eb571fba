"""A training with DDP as PyTorch's tutorials write it. Argument: where rank 0 writes the losses."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from leaving import leave


def main(output):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(64, 16)
    data = TensorDataset(features, features.sin().sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
    if dist.get_rank() == 0:
        with open(output, "w") as file:
            json.dump(losses, file)
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
