#!/usr/bin/env python3
"""examples/libfsdp/mnist with PyTorch's FSDP2: the same net, data, options and output, step by step alike."""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(self.dropout1(x).flatten(1)))
        return torch.log_softmax(self.fc2(self.dropout2(x)), 1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def synthesize(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    patterns = torch.randn(10, 1, 28, 28, generator=seeded(0))
    labels = torch.arange(count) % 10
    noise = torch.randn(count, 1, 28, 28, generator=seeded(seed))
    return patterns.index_select(0, labels) + 2 * noise, labels


def load(folder: Path, kind: str, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    def read(name: str, header: int) -> torch.Tensor:
        return torch.frombuffer(bytearray((folder / f"{kind}-{name}-ubyte").read_bytes()), dtype=torch.uint8)[header:]

    images = read("images-idx3", 16).view(-1, 1, 28, 28)[:limit].float() / 255
    return (images - 0.1307) / 0.3081, read("labels-idx1", 8)[:limit].long()


@torch.no_grad()
def test(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    model.eval()
    sums, rank, world = torch.zeros(2), dist.get_rank(), dist.get_world_size()
    parts = world * (1 + len(labels) // (500 * world))
    for image, label in list(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True))[rank::world]:
        output = model(image)
        sums[0] += F.nll_loss(output, label, reduction="sum")
        sums[1] += (output.argmax(1) == label).sum()
    dist.all_reduce(sums)
    sums /= len(labels)
    if rank == 0:
        print(f"test: loss {sums[0]:.9g}, accuracy {sums[1]:.9g}", flush=True)
    model.train()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Net()
    fully_shard(model.fc1)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    torch.manual_seed(1 + rank)

    if options.data:
        train_set, test_set = (load(options.data, kind, options.limit) for kind in ("train", "t10k"))
    else:
        train_set, test_set = (synthesize(min(options.limit, 6000), seed) for seed in (1, 2))
    images, labels = train_set
    step = 0
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=seeded(epoch))
        for i in range(len(labels) // (options.batch_size * world)):
            rows = order.narrow(0, (i * world + rank) * options.batch_size, options.batch_size)
            loss = F.nll_loss(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            step += 1
            if rank == 0:
                print(f"step {step}: loss {mean / world:.9g}", flush=True)
        scheduler.step()
        test(model, *test_set)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
