"""What a rank has noted, by case and key, in two files that reference.py and main.cc write alike.

<path>.json has the texts, and of each tensor its dtype, its shape and where it begins in <path>.bin, which has one behind the
other, at multiples of 8. (torch.save takes ten times as long for thousands of small ones.)
"""

import json
from pathlib import Path

import models
import torch

ALIGNMENT = 8
# A part of a tensor comes with the ranks that have the others, and the dimension along which it is divided.
Noted = dict[str, torch.Tensor | tuple[torch.Tensor, list[int], int] | list[str] | str]
DTYPES = {name: dtype for dtype, name in models.DTYPE_NAMES.items()}


def write(path: Path, cases: dict[str, Noted]) -> None:
    data = bytearray()

    def described(value) -> dict | list | str:
        if isinstance(value, tuple):
            return {**described(value[0]), "ranks": value[1], "dimension": value[2]}
        if not isinstance(value, torch.Tensor):
            return value
        begin = len(data)
        data.extend(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        data.extend(bytes(-len(data) % ALIGNMENT))
        return {"dtype": models.DTYPE_NAMES[value.dtype], "shape": list(value.shape), "begin": begin}

    index = {case: {key: described(value) for key, value in noted.items()} for case, noted in cases.items()}
    Path(f"{path}.json").write_text(json.dumps(index))
    Path(f"{path}.bin").write_bytes(data)


def read(path: Path) -> dict[str, Noted]:
    data = bytearray(Path(f"{path}.bin").read_bytes())

    def value_of(described):
        if not isinstance(described, dict):
            return described
        shape, dtype = described["shape"], DTYPES[described["dtype"]]
        numel = torch.Size(shape).numel()
        flat = torch.frombuffer(data, dtype=dtype, count=numel, offset=described["begin"]) if numel else torch.empty(0, dtype=dtype)
        tensor = flat.view(shape)
        return (tensor, described["ranks"], described["dimension"]) if "ranks" in described else tensor

    cases = json.loads(Path(f"{path}.json").read_text())
    return {case: {key: value_of(described) for key, described in noted.items()} for case, noted in cases.items()}
