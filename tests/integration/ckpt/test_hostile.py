"""Damaged and forged files: one line that names the file, nothing executed, nothing left, nothing old replaced."""

import json
import os
import pathlib
import pickle
import shutil
import struct
import tempfile
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from ckpt_case import CkptCase
from safetensors.torch import save, save_file
from unittest_main import main


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def shorter(length):
    """Some lengths below this one. Unit tests of the readers have them all, without a process for each."""
    return sorted({*range(0, length, max(1, length // 8)), 1, length - 1})


class HostileCase(CkptCase):
    def read_all(self, path, words):
        """No command takes it, and none leaves anything."""
        self.refuse(words, "inspect", path)
        self.refuse(words, "diff", path, path)
        self.refuse(words, "export", path, self.dir / "out.pt", "--format=pt")
        self.ckpt("verify", path, code=1)
        self.assertFalse((self.dir / "out.pt").exists())
        self.assertEqual(self.leftovers(), [])


class DcpTest(HostileCase):
    def test_metadata_truncated(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}})
        path = checkpoint / ".metadata"
        good = path.read_bytes()
        for length in shorter(len(good)):
            path.write_bytes(good[:length])
            self.refuse([path], "inspect", checkpoint)

    def test_data_truncated(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}})
        path = checkpoint / "__0_0.distcp"
        good = path.read_bytes()
        for length in shorter(len(good)):
            path.write_bytes(good[:length])
            self.refuse([path], "export", checkpoint, self.dir / "out.pt", "--format=pt")
            self.ckpt("verify", checkpoint, code=1)
        self.assertFalse((self.dir / "out.pt").exists())

    def test_metadata_that_would_execute(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}})
        for protocol in range(2, 6):
            (checkpoint / ".metadata").write_bytes(pickle.dumps(Bomb(self.dir / "bang"), protocol))
            self.read_all(checkpoint, [".metadata", "system"])
        self.assertFalse((self.dir / "bang").exists())

    def test_an_object_that_would_execute(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}, "train": {"state": Bomb(self.dir / "bang")}})
        report = self.report("inspect", checkpoint)
        self.assertEqual(report["objects"], ["train.state"])
        self.assertNotIn("train_state", report)
        rules = self.dir / "map.json"
        rules.write_text("{}")
        self.ckpt("verify", checkpoint)
        self.ckpt("convert", checkpoint, self.dir / "copy", "--map", rules)
        self.ckpt("export", checkpoint, self.dir / "out.pt", "--format=pt")
        self.assertFalse((self.dir / "bang").exists())

    def test_a_tensor_whose_pickle_would_execute(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}})
        path = checkpoint / "__0_0.distcp"
        length = path.stat().st_size
        forged = self.dir / "forged"
        with zipfile.ZipFile(forged, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Bomb(self.dir / "bang"), 2))
            archive.writestr("archive/byteorder", "little")
            # As long as the item was: the end record must stay the last thing.
            probe = forged.stat().st_size if forged.exists() else 0
            archive.writestr("archive/data/0", b"x" * max(0, length - probe - 600))
        data = forged.read_bytes()
        metadata = (checkpoint / ".metadata").read_bytes()
        self.assertIn(struct.pack("<H", length), metadata)
        (checkpoint / ".metadata").write_bytes(metadata.replace(struct.pack("<H", length), struct.pack("<H", len(data))))
        path.write_bytes(data)
        self.refuse([path, "system"], "export", checkpoint, self.dir / "out.pt", "--format=pt")
        self.assertFalse((self.dir / "bang").exists())

    def test_files_outside_of_the_folder(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.ones(2)}})
        path = checkpoint / ".metadata"
        good = path.read_bytes()
        for name in (b"../x_0.disty", b"/etc/passwd0", b"__0/0.distcp"):
            path.write_bytes(good.replace(b"__0_0.distcp", name))
            self.read_all(checkpoint, [path, name.decode()])


    def test_tensors_larger_than_their_data(self):
        """A .metadata of some hundred bytes that would take all memory, or more than 2^63 bytes."""
        for size, names in ((1 << 56, "w"), (1 << 55, [f"w{i}" for i in range(40)])):
            checkpoint = self.save("checkpoint", {name: torch.ones(7) for name in names})
            path = checkpoint / ".metadata"
            metadata = dcp.FileSystemReader(checkpoint).read_metadata()
            for entry in metadata.state_dict_metadata.values():
                entry.size = torch.Size([size])
                entry.chunks[0].sizes = torch.Size([size])
            path.write_bytes(pickle.dumps(metadata))
            rules = self.dir / "map.json"
            rules.write_text("{}")
            self.read_all(checkpoint, [path, f"a piece of {names[0]} with {size} elements"])
            self.refuse([path], "convert", checkpoint, self.dir / "copy", "--map", rules)
            shutil.rmtree(checkpoint)

    def test_many_tensors_in_one_place_of_a_file_without_blocks(self):
        if os.access("/dev/shm", os.W_OK):  # Files of 2^60 bytes are possible there.
            self.dir = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun-ckpt-", dir="/dev/shm"))
            self.addCleanup(shutil.rmtree, self.dir)
        checkpoint = self.save("checkpoint", {f"w{i}": torch.ones(7) for i in range(40)})
        path = checkpoint / ".metadata"
        metadata = dcp.FileSystemReader(checkpoint).read_metadata()
        try:
            os.truncate(checkpoint / "__0_0.distcp", 1 << 60)
        except OSError:
            self.skipTest("no file so large can be made here")
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, 1 << 60
        for entry in metadata.state_dict_metadata.values():
            entry.size = torch.Size([1 << 56])
            entry.chunks[0].sizes = torch.Size([1 << 56])
        path.write_bytes(pickle.dumps(metadata))
        rules = self.dir / "map.json"
        rules.write_text("{}")
        for words in (("inspect", checkpoint), ("export", checkpoint, self.dir / "out.pt", "--format=pt"),
                      ("convert", checkpoint, self.dir / "out", "--map", rules)):
            self.refuse(["more than 2^63 bytes"], *words)
        rules.write_text('{"w0": "w", "*": null}')
        self.refuse([self.dir / "out", "bytes are needed"], "convert", checkpoint, self.dir / "out", "--map", rules)


class SafetensorsTest(HostileCase):
    def test_truncated(self):
        good = save({"a": torch.ones(2), "b": torch.ones(3)})
        path = self.dir / "model.safetensors"
        for length in shorter(len(good)):
            path.write_bytes(good[:length])
            self.refuse([path], "inspect", path)

    def test_forged_headers(self):
        one = '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
        for text, length in (("{}", (1 << 64) - 1), ("{}", 100_000_001), ("{}", 3), (one + "," + one[1:] + "}", None),
                             (one.replace("[1]", "[9223372036854775807,4]") + "}", None), ('{"a":' * 100, None),
                             (one.replace('[0,1]', '[1,2]') + "}", None), (one.replace("U8", "../x") + "}", None)):
            with self.subTest(text):
                path = self.dir / "model.safetensors"
                path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text.encode() + b"x")
                self.read_all(path, [path])

    def test_index_files(self):
        folder = self.dir / "model"
        folder.mkdir()
        save_file({"a": torch.ones(1)}, self.dir / "outside.safetensors")
        save_file({"a": torch.ones(1)}, folder / "model-00001-of-00001.safetensors")
        index = folder / "model.safetensors.index.json"
        for text in ('{"weight_map": {"a": "../outside.safetensors"}}', '{"weight_map": {"a": "/etc/passwd"}}',
                     '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}', '{"weight_map": []}', "{", "[1]",
                     '{"weight_map": {"b": "model-00001-of-00001.safetensors"}}',
                     '{"weight_map": {"a": "x", "a": "model-00001-of-00001.safetensors"}}'):
            with self.subTest(text):
                index.write_text(text)
                self.read_all(folder, [folder])

    def test_a_missing_middle_shard(self):
        folder = self.dir / "model"
        folder.mkdir()
        for i in range(3):
            save_file({f"t{i}": torch.ones(1)}, folder / f"model-{i + 1:05}-of-00003.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {f"t{i}": f"model-{i + 1:05}-of-00003.safetensors" for i in range(3)}}))
        self.ckpt("inspect", folder)
        (folder / "model-00002-of-00003.safetensors").unlink()
        self.read_all(folder, ["model-00002-of-00003.safetensors"])

    def test_a_full_disk(self):
        """More than is free, in a file that has no blocks."""
        path = self.dir / "model.safetensors"
        size = shutil.disk_usage(self.dir).free + (1 << 30)
        header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            try:
                file.truncate(8 + len(header) + size)
            except OSError:
                self.skipTest("no file so large can be made here")
        (self.dir / "config.json").write_text('{"model_type": "llama"}')
        for words in (("export", path, self.dir / "out", "--config", self.dir / "config.json"),
                      ("export", path, self.dir / "out", "--format=pt"), ("import", path, self.dir / "out")):
            self.refuse([self.dir / "out", "bytes are needed", "bytes are free"], *words)
            self.assertFalse((self.dir / "out").exists())
        self.assertEqual(self.leftovers(), [])


if __name__ == "__main__":
    main()
