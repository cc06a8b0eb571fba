"""list, inspect, verify and diff, of what Python wrote and of what fsdpctl did."""

import json
import os
import struct
import time

import torch
from ckpt_case import CkptCase
from safetensors.torch import save_file
from unittest_main import main


class ReadCase(CkptCase):
    def state(self):
        torch.manual_seed(4)
        return {"model": {"a": torch.randn(6, 5), "b": torch.arange(9)}, "optim": {"lr": 0.1}, "step": 3}


class ListTest(ReadCase):
    def test_complete_and_incomplete_ones(self):
        self.save("step-10", self.state())
        self.save("step-20", self.state())
        (self.dir / "step-30").mkdir()
        left = "step-40.tmp-1-0123456789abcdef"
        (self.dir / left).mkdir()
        (self.dir / "notes").mkdir()
        os.utime(self.dir / "step-10" / ".metadata", (time.time() - 7200, time.time() - 7200))
        report = self.report("list", self.dir)
        by_name = {entry["name"]: entry for entry in report["checkpoints"]}
        self.assertEqual(set(by_name), {"step-10", "step-20", "step-30", left})
        self.assertEqual([name for name, entry in by_name.items() if entry["complete"]], ["step-20", "step-10"])
        self.assertGreaterEqual(by_name["step-10"]["age_s"], 7200)
        self.assertEqual(by_name["step-20"]["bytes"],
                         sum(path.stat().st_size for path in (self.dir / "step-20").iterdir()))
        self.assertIsNone(report["claim"])
        text, _ = self.ckpt("list", self.dir)
        self.assertIn("claimed by nobody", text)
        self.assertRegex(text, r"step-30 .* not complete\n")

    def test_who_holds_it(self):
        claim = {"job_id": "run7", "generation": 3, "claim": "0123456789abcdef", "host": "node3", "pid": 4711}
        (self.dir / ".claim").write_text(json.dumps(claim))
        report = self.report("list", self.dir)["claim"]
        self.assertEqual((report["state"], report["job"], report["host"], report["pid"]), ("held", "run7", "node3", 4711))
        self.assertIn("job run7, process 4711 on node3, last sign of life", self.ckpt("list", self.dir)[0])
        os.utime(self.dir / ".claim", (0, 0))
        self.assertEqual(self.report("list", self.dir)["claim"]["state"], "released")
        (self.dir / ".claim").write_text(json.dumps(claim | {"job_id": ""}))
        self.assertIn("claimed by a start without a job id, process 4711 on node3, last sign of life", self.ckpt("list", self.dir)[0])

    def test_no_such_folder(self):
        self.refuse([self.dir / "none"], "list", self.dir / "none")


class InspectTest(ReadCase):
    def test_tensors_and_objects(self):
        report = self.report("inspect", self.save("checkpoint", self.state()))
        self.assertEqual(report["layout"], "dcp")
        self.assertEqual(report["tensors"][0], {"key": "model.a", "dtype": "float32", "shape": [6, 5], "pieces": 1,
                                                "files": ["__0_0.distcp"]})
        self.assertEqual(report["objects"], ["optim.lr", "step"])
        self.assertEqual(report["tensor_bytes"], 6 * 5 * 4 + 9 * 8)

    def test_the_training_state(self):
        state = {"train": {"state": {"step": 5, "config": {"train": {"steps": 9}}, "model_config": {"model_type": "llama"}}},
                 "model": {"a": torch.ones(1)}}
        report = self.report("inspect", self.save("checkpoint", state))
        self.assertEqual(report["config"], {"train": {"steps": 9}})
        self.assertEqual(report["model_config"], {"model_type": "llama"})
        self.assertEqual(report["train_state"], {"step": 5})

    def test_a_folder_of_checkpoints_is_not_one(self):
        self.save("step-10", self.state())
        self.refuse(["step-10", "name one"], "inspect", self.dir)
        self.refuse([self.dir / "none", "no such"], "inspect", self.dir / "none")

    def test_control_characters_do_not_reach_the_terminal(self):
        text, _ = self.ckpt("inspect", self.save("checkpoint", {"model": {"a\x1b[31m": torch.ones(1)}}))
        self.assertNotIn("\x1b", text)
        self.assertIn("model.a?[31m", text)


class VerifyTest(ReadCase):
    def test_what_python_wrote(self):
        checkpoint = self.save("checkpoint", self.state())
        self.assertTrue(self.report("verify", checkpoint)["intact"])
        data = (checkpoint / "__0_0.distcp").read_bytes()
        self.damage(checkpoint / "__0_0.distcp", data.index(self.state()["model"]["a"].numpy().tobytes()) + 5)
        report = self.report("verify", checkpoint, code=1)
        self.assertEqual([damage["item"] for damage in report["damaged"]], ["model.a"])
        self.assertIn("__0_0.distcp", report["damaged"][0]["problem"])

    def test_what_fsdpctl_wrote(self):
        save_file({"a": torch.randn(50, 3), "b": torch.randn(9)}, self.dir / "model.safetensors")
        self.ckpt("import", self.dir / "model.safetensors", self.dir / "out")
        self.assertTrue(self.report("verify", self.dir / "out")["intact"])
        for name in ("__0_0.distcp", ".metadata", "fsdprun.json"):
            with self.subTest(name):
                path = self.dir / "out" / name
                good = path.read_bytes()
                self.damage(path, len(good) // 2)
                report = self.report("verify", self.dir / "out", code=1)
                self.assertIn(name, report["damaged"][0]["problem"])
                path.unlink()
                # Without fsdprun.json it is one that Python might have written.
                self.ckpt("verify", self.dir / "out", code=0 if name == "fsdprun.json" else 1)
                path.write_bytes(good[:-2])
                self.ckpt("verify", self.dir / "out", code=1)
                path.write_bytes(good)

    def test_items_without_a_checksum_are_counted(self):
        checkpoint = self.save("checkpoint", self.state())
        self.assertEqual(self.report("verify", checkpoint)["without_checksum"], 0)
        torch.serialization.set_crc32_options(False)
        self.addCleanup(torch.serialization.set_crc32_options, True)
        checkpoint = self.save("unchecked", self.state())
        report = self.report("verify", checkpoint)
        self.assertEqual(report["without_checksum"], 4)
        self.assertIsNone(report["intact"])
        text, _ = self.ckpt("verify", checkpoint)
        self.assertIn("no damage found", text)
        self.assertIn("4 of them have no checksum, as torch.serialization.set_crc32_options can say", text)

    def test_every_byte_of_the_data_counts(self):
        checkpoint = self.save("checkpoint", {"model": {"a": torch.arange(4.0)}})
        path = checkpoint / "__0_0.distcp"
        good = path.read_bytes()
        begin = good.index(torch.arange(4.0).numpy().tobytes())
        for place in range(begin, begin + 16):
            self.damage(path, place)
            self.assertFalse(self.report("verify", checkpoint, code=1)["intact"])
            path.write_bytes(good)


class DiffTest(ReadCase):
    def test_differences(self):
        state = self.state()
        first = self.save("first", state)
        self.assertTrue(self.report("diff", first, self.save("same", state))["equal"])
        state["model"]["a"][2, 3] += 0.5
        state["model"]["a"][5, 4] += 0.25
        state["model"]["b"] = state["model"]["b"].int()
        state["model"]["c"] = torch.ones(1)
        report = self.report("diff", first, self.save("second", state), code=1)
        self.assertEqual(report["only_in_b"], ["model.c"])
        self.assertEqual(report["other_form"][0]["b"], {"dtype": "int32", "shape": [9]})
        values = report["other_values"][0]
        self.assertEqual((values["key"], values["different"]), ("model.a", 2))
        self.assertAlmostEqual(values["max_difference"], 0.5, places=6)

    def test_nan_and_the_sign_of_zero(self):
        nan = float("nan")
        first = self.save("first", {"model": {"a": torch.tensor([nan, 0.0, 1.0])}})
        second = self.save("second", {"model": {"a": torch.tensor([nan, -0.0, nan])}})
        self.assertTrue(self.report("diff", first, first)["equal"])
        values = self.report("diff", first, second, code=1)["other_values"][0]
        self.assertEqual((values["different"], values["max_difference"]), (2, None))


class ShardedTest(CkptCase):
    """What torch's HuggingFaceStorageWriter(save_distributed=True) writes."""

    def write(self, rank, tensors, offsets, name=None):
        folder = self.dir / "sharded"
        folder.mkdir(exist_ok=True)
        info = {"DCP_SHARDING_INFO": json.dumps({key: {"saved_offsets": value} for key, value in offsets.items()}),
                "DCP_VERSION": "1.0", "format": "pt"}
        save_file(tensors, folder / (name or f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"), info)
        return folder

    def three_ranks(self):
        self.whole = torch.randn(7, 3)
        for rank, rows in enumerate((slice(0, 3), slice(3, 6), slice(6, 7))):
            folder = self.write(rank, {"w": self.whole[rows].clone(), "r": torch.ones(2)}, {"w": [rows.start, 0], "r": [0]})
        return folder

    def test_parts_are_joined(self):
        folder = self.three_ranks()
        self.assertEqual([(t["key"], t["shape"], t["pieces"]) for t in self.report("inspect", folder)["tensors"]],
                         [("r", [2], 1), ("w", [7, 3], 3)])
        self.ckpt("export", folder, self.dir / "out.pt", "--format=pt")
        self.assertTrue(torch.equal(torch.load(self.dir / "out.pt")["w"], self.whole))

    def test_a_missing_middle_shard(self):
        folder = self.three_ranks()
        (folder / "shard-00002-model-00001-of-00001.safetensors").unlink()
        for words in (("inspect", folder), ("export", folder, self.dir / "out.pt", "--format=pt"), ("import", folder, self.dir / "o")):
            self.refuse(["shard-00002"], *words)
        self.ckpt("verify", folder, code=1)
        self.assertFalse((self.dir / "out.pt").exists())

    def test_a_part_that_no_file_has(self):
        self.write(0, {"w": torch.ones(2, 3)}, {"w": [0, 0]})
        folder = self.write(1, {"w": torch.ones(2, 3)}, {"w": [3, 0]})
        self.refuse(["3 of the 15 elements of w"], "inspect", folder)

    def test_bad_offsets(self):
        for offsets in ([1], [-1, 0], [0.5, 0], ["a", 0], [1 << 60, 0], [0, 0, 0]):
            with self.subTest(offsets):
                folder = self.write(0, {"w": torch.ones(2, 3)}, {"w": offsets})
                self.refuse([folder, "w"], "inspect", folder)
        # A part without elements may say any size.
        header = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [0, 1 << 53]}})},
                             "w": {"dtype": "F32", "shape": [0, (1 << 63) - 1], "data_offsets": [0, 0]}}).encode()
        path = folder / "shard-00001-model-00001-of-00001.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        self.refuse([path, "w", "beyond any tensor"], "inspect", folder)
        header = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": "[" * 300}}).encode()
        path = folder / "shard-00001-model-00001-of-00001.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        self.refuse([path, "DCP_SHARDING_INFO"], "inspect", folder)


if __name__ == "__main__":
    main()
