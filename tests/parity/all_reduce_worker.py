"""What any Python training script does first: join the process group that the launcher described, and reduce a sum."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
world = dist.get_world_size()
assert total.item() == world * (world + 1) / 2, (total, world)
print(f"rank {dist.get_rank()} of {world}: sum {total.item():g}", flush=True)
dist.destroy_process_group()
