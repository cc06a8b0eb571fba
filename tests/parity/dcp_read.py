#!/usr/bin/env python3
"""Reads a checkpoint of fsdp-train with PyTorch's own torch.distributed.checkpoint and compares it with known weights.

usage: dcp_read.py CHECKPOINT [WEIGHTS.safetensors]     without WEIGHTS: lists what the checkpoint holds
"""

import sys
from pathlib import Path

import safetensors_io
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def newest_complete(folder: Path) -> Path:
    """The folder itself or the newest one below it that has a .metadata, which is written last."""
    found = [path.parent for path in folder.rglob(".metadata")]
    if not found:
        sys.exit(f"{folder} holds no complete checkpoint (no .metadata below it)")
    return max(found, key=lambda path: (path / ".metadata").stat().st_mtime_ns)


def load_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint, whole, by its name in the metadata."""
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    state = {name: torch.full(entry.size, float("nan")).to(entry.properties.dtype)
             for name, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return state


def matching_name(wanted: str, names: set[str]) -> str | None:
    """The checkpoint's name of a parameter: as it is, or below one more level such as "model."."""
    return next((name for name in (wanted, f"model.{wanted}", f"app.model.{wanted}") if name in names), None)


def compare(folder: Path, weights: dict[str, torch.Tensor]) -> list[str]:
    """Complaints: parameters that the checkpoint lacks, or has with another shape, dtype or bits."""
    state = load_tensors(newest_complete(folder))
    complaints = []
    for wanted, expected in weights.items():
        # A model whose own names begin with "model." is ambiguous only if both spellings exist: the longer one wins.
        name = matching_name(f"model.{wanted}", set(state)) or matching_name(wanted, set(state))
        if name is None:
            complaints.append(f"{wanted} is not in the checkpoint (it has {sorted(state)[:5]} ...)")
        elif state[name].shape != expected.shape or state[name].dtype != expected.dtype:
            complaints.append(f"{wanted}: {state[name].dtype} {tuple(state[name].shape)} in the checkpoint, "
                              f"{expected.dtype} {tuple(expected.shape)} expected")
        elif not torch.equal(state[name].view(torch.uint8), expected.contiguous().view(torch.uint8)):
            count = int((state[name] != expected).sum())
            complaints.append(f"{wanted}: {count} of {expected.numel()} elements differ")
    return complaints


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        for name, tensor in load_tensors(newest_complete(Path(sys.argv[1]))).items():
            print(f"{name}  {str(tensor.dtype).removeprefix('torch.')}  {list(tensor.shape)}")
        return 0
    complaints = compare(Path(sys.argv[1]), safetensors_io.load(Path(sys.argv[2])))
    print("\n".join(complaints) or "bit-equal")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
