"""What the official safetensors package makes of a set of files: the oracle of safetensors_oracle_test.cc.

`safetensors_oracle.py OUTPUT.json` writes a list of cases: `name`, `file` (the bytes, in hex), `official` (null if the
package refuses the file, else its tensors and metadata) and `stricter` (where ours refuses what the package accepts: a
part of our message). First files that the package wrote itself, then files with one defect each, then random changes
of good files.
"""

import json
import random
import re
import struct
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import _TYPES, save_file

MUTANTS = 3000
Json = dict | list | str | int | float | None


def tensor(dtype: str, shape: Json, offsets: Json) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def encode(header: Json | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    if not isinstance(header, bytes):
        header = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def one(field: str, value: str) -> str:
    """A header with one tensor of a byte, one of whose fields has another value (as JSON text)."""
    fields = {"dtype": '"U8"', "shape": "[1]", "data_offsets": "[0,1]", field: value}
    return '{"a":{' + ",".join(f'"{key}":{text}' for key, text in fields.items()) + "}}"


def two(first: list[int], second: list[int]) -> dict:
    return {"a": tensor("U8", [first[1] - first[0]], first), "b": tensor("U8", [second[1] - second[0]], second)}


def written_files(scratch: Path) -> dict[str, bytes]:
    """By the package's own writer: every dtype it can store, empty tensors, scalars, metadata, many tensors."""
    def written(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
        save_file(tensors, scratch / "file", metadata)
        return (scratch / "file").read_bytes()

    raw = torch.arange(48, dtype=torch.uint8)
    files = {f"dtype {name}": written({"t": raw.view(dtype).view(2, -1), "scalar": raw[:16].clone().view(dtype)[0].clone(),
                                       "empty": raw[:0].view(dtype).view(0, 3)}) for name, dtype in _TYPES.items()
             if dtype is not torch.bool}
    files["dtype BOOL"] = written({"t": torch.tensor([[True, False], [False, True]])})
    files["no tensors"] = written({})
    files["metadata"] = written({"t": raw}, {"format": "pt", "a \"quoted\" key": "\u00e9\n\u4e2d\U0001f600", "empty": ""})
    files["names"] = written({"\u4e2d": raw, "a.b": raw + 1, "": raw + 2, "\"\\/": raw + 3})
    files["many tensors"] = written({f"layers.{i}.weight": torch.full((i % 5, 3), float(i)) for i in range(400)})
    return files


BYTE = one("dtype", '"U8"')
# Header, data[, length as stored]: one defect each, or something unusual that is legal.
DEFECTS = {
    "legal: padded header": (BYTE + "  \t\n", b"a"),
    "legal: sorted otherwise": (two([2, 4], [0, 2]), b"abcd"),
    "legal: unaligned tensor": ({"a": tensor("U8", [1], [0, 1]), "b": tensor("F32", [1], [1, 5])}, b"abcde"),
    "legal: empty tensor between": ({"a": tensor("U8", [2], [0, 2]), "e": tensor("U8", [0], [2, 2]),
                                     "b": tensor("U8", [1], [2, 3])}, b"abc"),
    "legal: a size of zero before huge ones": (one("shape", "[0,4611686018427387904,4]").replace("[0,1]", "[0,0]"), b""),
    "legal: elements of 4 bits": ({"a": tensor("F4", [2], [0, 1])}, b"a"),
    "legal: elements of 6 bits": ({"a": tensor("F6_E3M2", [4], [0, 3])}, b"abc"),
    "header is empty": ("", b""),
    "header is a list": ("[]", b""),
    "header is cut": (BYTE[:-1], b"a"),
    "header is followed by zeros": (BYTE + "\0\0", b"a"),
    "header is not UTF-8": (b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "header with half a surrogate": ('{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "header is nested deeply": ('{"a":' + "[" * 200 + "]" * 200 + "}", b""),
    "length beyond the file": ("{}", b"", 3),
    "length of 2^63": ("{}", b"", 1 << 63),
    "length of 2^64 - 1": ("{}", b"", (1 << 64) - 1),
    "length too small": (BYTE, b"a", len(BYTE) - 1),
    "length of zero": (BYTE, b"a", 0),
    "hole between": (two([0, 1], [2, 3]), b"abc"),
    "hole at the start": (two([1, 2], [2, 3]), b"abc"),
    "overlap": (two([0, 2], [1, 3]), b"abc"),
    "the same range twice": (two([0, 2], [0, 2]), b"ab"),
    "empty tensor inside another": ({"a": tensor("U8", [2], [0, 2]), "e": tensor("U8", [0], [1, 1])}, b"ab"),
    "trailing bytes": (BYTE, b"ab"),
    "data is cut": (BYTE, b""),
    "offsets backwards": (one("data_offsets", "[1,0]"), b"a"),
    "offsets of three numbers": (one("data_offsets", "[0,1,1]"), b"a"),
    "offsets of one number": (one("data_offsets", "[0]"), b"a"),
    "size unlike shape": (one("shape", "[2]"), b"a"),
    "size unlike dtype": (one("dtype", '"F32"'), b"a"),
    "half a byte": ({"a": tensor("F4", [1], [0, 1])}, b"a"),
    "unknown dtype": (one("dtype", '"Q8"'), b"a"),
    "dtype in lower case": (one("dtype", '"u8"'), b"a"),
    "dtype is a number": (one("dtype", "8"), b"a"),
    "negative size": (one("shape", "[-1]"), b"a"),
    "fraction": (one("shape", "[1.0]"), b"a"),
    "exponent": (one("shape", "[1e0]"), b"a"),
    "size of 2^64": (one("shape", "[18446744073709551616]"), b"a"),
    "sizes that overflow": (one("shape", "[9223372036854775807,4]"), b"a"),
    "sizes that overflow before a zero": (one("shape", "[4611686018427387904,4,0]").replace("[0,1]", "[0,0]"), b""),
    "shape is null": (one("shape", "null"), b"a"),
    "shape is missing": ('{"a":{"dtype":"U8","data_offsets":[0,1]}}', b"a"),
    "field twice": ('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "metadata is a number": ({"__metadata__": {"a": 1}}, b""),
    "metadata twice": ('{"__metadata__":{},"__metadata__":{}}', b""),
    "entry is a number": ('{"a":1}', b""),
}
# What ours refuses and the package lets pass: a part of our message, and the file.
STRICTER = {
    "a name twice": ("twice", ('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                               '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a")),
    "a metadata key twice": ("twice", ('{"__metadata__":{"a":"1","a":"2"}}', b"")),
    "metadata null": ("a null value", ('{"__metadata__":null}', b"")),
    "a field that the format lacks": ("an unknown field", (one("x", "1"), b"a")),
    "an entry as a list": ("a list", ('{"a":["U8",[1],[0,1]]}', b"a")),
    "space before the header": ("does not begin with {", (" " + BYTE, b"a")),
    "more than 64 dimensions": ("more than 64", (one("shape", json.dumps([1] * 65)), b"a")),
    "a size beyond int64": ("out of range", (one("shape", "[9223372036854775808,0]").replace("[0,1]", "[0,0]"), b"")),
}


def official_view(content: bytes, scratch: Path) -> dict | None:
    try:
        tensors = deserialize(content)
    except SafetensorError:
        return None
    (scratch / "file").unlink(missing_ok=True)  # a file that is truncated instead is flushed to the disk
    (scratch / "file").write_bytes(content)
    with safe_open(scratch / "file", framework="np") as file:
        metadata = file.metadata() or {}
    return {"tensors": {name: [entry["dtype"], entry["shape"], bytes(entry["data"]).hex()] for name, entry in tensors},
            "metadata": metadata}


def changed_text(text: str, draw: random.Random) -> str:
    """One change that leaves most of a header as it is: a number, a word, a bracket, a piece left out or doubled."""
    pieces = re.findall(r'"[^"]*"|-?\d+|\s+|.', text)
    at = draw.randrange(len(pieces))
    kind = draw.randrange(5)
    if kind == 0:
        numbers = [i for i, piece in enumerate(pieces) if piece.isdigit()]
        at = draw.choice(numbers) if numbers else at
        near = str(max(0, int(pieces[at]) + draw.choice([-1, 1]))) if pieces[at].isdigit() else "0"
        pieces[at] = draw.choice([near, near, near, "0", "-1", "1.0", "4294967296", "18446744073709551616", "null"])
    elif kind == 1:
        pieces[at] = draw.choice(['"F32"', '"BF16"', '"F4"', '"a"', '"shape"', '"__metadata__"', "{", "]", ",", ":", "\\u0041"])
    elif kind == 2:
        del pieces[at]
    elif kind == 3:
        pieces.insert(at, pieces[draw.randrange(len(pieces))])
    else:
        other = draw.randrange(len(pieces))
        pieces[at], pieces[other] = pieces[other], pieces[at]
    return "".join(pieces)


def mutants(good: list[bytes], draw: random.Random):
    """Good files with changes in the header, whose length is then right again mostly, or anywhere."""
    for _ in range(MUTANTS):
        content = draw.choice(good)
        (length,) = struct.unpack("<Q", content[:8])
        if draw.random() < 0.8:
            text = content[8 : 8 + length].decode()
            for _ in range(draw.choice([1, 1, 2])):
                text = changed_text(text, draw)
            yield encode(text, content[8 + length :])
        else:
            damaged = bytearray(content)
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            yield bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])


def main() -> None:
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)

        def add(name: str, content: bytes, stricter: str | None = None, accepts: bool | None = None) -> None:
            official = official_view(content, scratch)
            assert accepts is None or accepts == (official is not None), f"{name}: the package has changed its mind"
            cases.append({"name": name, "file": content.hex(), "official": official, "stricter": stricter})

        files = written_files(scratch)
        for name, content in files.items():
            add(name, content, accepts=True)
        for name, parts in DEFECTS.items():
            add(name, encode(*parts), accepts=name.startswith("legal"))
        add("shorter than a length", b"1234567", accepts=False)
        for name, (message, parts) in STRICTER.items():
            add(name, encode(*parts), stricter=message, accepts=True)
        good = [content for content in files.values() if len(content) < 1000]
        good += [encode(*parts) for name, parts in DEFECTS.items() if name.startswith("legal")]
        for number, content in enumerate(mutants(good, random.Random(1))):
            add(f"mutant {number}", content)
    Path(sys.argv[1]).write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
