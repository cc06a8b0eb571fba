#!/usr/bin/env python3
"""Reads a checkpoint of fsdp-train with PyTorch's own torch.distributed.checkpoint and compares it with known tensors.

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


def compare(folder: Path, expected: dict[str, torch.Tensor], prefixes: tuple[str, ...]) -> list[str]:
    """Complaints: tensors that the checkpoint lacks, has with another shape, dtype or bits, or has besides those expected. Names are
    the checkpoint's; only those that begin with one of `prefixes` are looked at."""
    state, expected = ({name: tensor for name, tensor in tensors.items() if name.startswith(prefixes)}
                       for tensors in (load_tensors(newest_complete(folder)), expected))
    complaints = [f"the checkpoint also has {name}" for name in sorted(state.keys() - expected.keys())]
    for name, wanted in expected.items():
        if name not in state:
            complaints.append(f"{name} is not in the checkpoint (it has {sorted(state)[:5]} ...)")
        elif state[name].shape != wanted.shape or state[name].dtype != wanted.dtype:
            complaints.append(f"{name}: {state[name].dtype} {tuple(state[name].shape)} in the checkpoint, "
                              f"{wanted.dtype} {tuple(wanted.shape)} expected")
        elif not torch.equal(state[name].view(-1).view(torch.uint8), wanted.contiguous().view(-1).view(torch.uint8)):
            count = int((state[name] != wanted).sum())
            complaints.append(f"{name}: {count} of {wanted.numel()} elements differ")
    return complaints


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        for name, tensor in load_tensors(newest_complete(Path(sys.argv[1]))).items():
            print(f"{name}  {str(tensor.dtype).removeprefix('torch.')}  {list(tensor.shape)}")
        return 0
    weights = {f"model.{name}": tensor for name, tensor in safetensors_io.load(Path(sys.argv[2])).items()}
    complaints = compare(Path(sys.argv[1]), weights, ("model.",))
    print("\n".join(complaints) or "bit-equal")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
