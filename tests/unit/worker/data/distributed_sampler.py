"""Prints the indices that torch's DistributedSampler gives, one JSON line per case.

{"samples": n, "world": W, "shuffle": whether, "drop_last": whether, "orders": [permutation per epoch],
 "ranks": [[indices over all epochs] per rank]}
"""

import itertools
import json

import torch
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3
for samples, world, drop_last, shuffle in itertools.product((1, 2, 5, 8, 31, 64), (1, 2, 3, 4, 7), (False, True), (False, True)):
    if drop_last and samples < world:
        continue  # nothing is left
    orders, ranks = [], [[] for _ in range(world)]
    for epoch in range(EPOCHS):
        generator = torch.Generator()
        generator.manual_seed(11 + epoch)
        orders.append(torch.randperm(samples, generator=generator).tolist() if shuffle else list(range(samples)))
        for rank in range(world):
            sampler = DistributedSampler(range(samples), world, rank, shuffle=shuffle, seed=11, drop_last=drop_last)
            sampler.set_epoch(epoch)
            ranks[rank].extend(sampler)
    print(json.dumps({"samples": samples, "world": world, "shuffle": shuffle, "drop_last": drop_last,
                      "orders": orders, "ranks": ranks}))
