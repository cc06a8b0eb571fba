"""A small training with DistributedDataParallel that can be interrupted: it saves when it is told to end, and goes on
from there. Runs under torchrun as well."""

import argparse
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("checkpoint.pt"))
    options = parser.parse_args()

    # Before the time limit, a preemption or the launcher's end: stop at the next step that all ranks agree on.
    told_to_end = []
    for notice in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(notice, lambda *_: told_to_end.append(True))

    uses_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if uses_gpus else torch.device("cpu")
    if uses_gpus:
        torch.cuda.set_device(device)  # NCCL's barrier uses it.
    dist.init_process_group("nccl" if uses_gpus else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]

    def save(step):
        if rank == 0:
            part = options.checkpoint.with_suffix(".part")
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
            part.rename(options.checkpoint)  # Whole, or not there.
        dist.barrier()

    for step in range(first, options.steps):
        batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(step * 1000 + rank)).to(device)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
        # Signals reach the ranks at different moments.
        ends = torch.tensor([len(told_to_end)], device=device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        if ends.item() > 0:
            save(step + 1)
            break
    else:
        save(options.steps)
    dist.destroy_process_group()
    # At a time limit Slurm sends SIGTERM to the workers, and so does the launcher. Python gives up its handlers before its
    # process has ended, and a worker that dies of a signal then is taken for one that has not saved.
    for notice in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(notice, signal.SIG_IGN)


if __name__ == "__main__":
    main()
