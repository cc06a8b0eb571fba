"""Data in all formats, at all world sizes; and data that change: between two runs of which the second continues the first,
and under a run."""

import json
import os
import random
import struct

import torch
from torch.distributed.checkpoint import format_utils

from events import wait_for_files
from train_case import TrainCase
from unittest_main import main


class ChangedDataCase(TrainCase):
    ORDER = ()

    def setUp(self):
        super().setUp()
        self.text = self.dir / "train.txt"

    def settings(self, steps):
        return (*self.saving(every=4), f"train.steps={steps}", *self.ORDER)

    def train_four_steps(self):
        self.train_well(*self.settings(4))
        self.before = (self.metrics.read_bytes(), self.steps_saved())

    def refuse(self, words, *settings):
        """The second run is refused for good, changes nothing, and can be told to go on."""
        _, err = self.assert_refused(78, [self.checkpoints / "step-4", "data.on_change", "warn", *words],
                                     *self.settings(6), *settings, launcher=["--max-restarts=3"])
        self.assertIn("0 of 3 restarts used", err)
        self.assertEqual((self.metrics.read_bytes(), self.steps_saved()), self.before)
        out, _ = self.train_well(*self.settings(6), *settings, "data.on_change=warn")
        self.assertIn("resuming after step 4", out)
        warnings = [line for line in out.splitlines() if "warning: " in line]
        self.assertEqual(len(warnings), 1, out)
        for word in words:
            self.assertIn(word, warnings[0])

    def change_a_letter(self):
        with open(self.text, "r+b") as text:
            text.seek(10_000)
            text.write(b"X")

    def append(self):
        with open(self.text, "ab") as text:
            text.write(b"more of it " * 100)


class ShuffledTest(ChangedDataCase):
    def setUp(self):
        super().setUp()
        self.train_four_steps()

    def test_other_text(self):
        self.change_a_letter()
        self.refuse(["the text of data.train was 20000 bytes"])

    def test_more_text(self):
        self.append()
        self.refuse(["the text of data.train was 20000 bytes", "is 21100 bytes"])

    def test_another_seed(self):
        self.refuse(["data.seed was 0 at the checkpoint and is 7 now"], "data.seed=7")

    def test_no_shuffling(self):
        self.refuse(["data.shuffle was true at the checkpoint and is false now"], "data.shuffle=false")

    def test_another_length_of_windows(self):
        self.refuse(["data.seq_len was 16 at the checkpoint and is 32 now"], "data.seq_len=32")

    def test_text_at_another_path_is_the_same_text(self):
        moved = self.dir / "moved.txt"
        self.text.rename(moved)
        out, _ = self.train_well(*self.settings(6), f'data.train=["{moved}"]')
        self.assertNotIn("warning", out)

    def test_checkpoint_of_an_older_version_goes_on_with_a_warning(self):
        format_utils.dcp_to_torch_save(self.checkpoints / "step-4", self.dir / "whole.pt")
        state = torch.load(self.dir / "whole.pt")
        del state["train"]["state"]["evaluated_step"]
        for key in ("bytes", "digest", "seq_len", "shuffle", "seed"):
            del state["train"]["state"]["data"][key]
        torch.save(state, self.dir / "older.pt")
        format_utils.torch_save_to_dcp(self.dir / "older.pt", self.dir / "older")
        out, _ = self.train_well(*self.settings(6), f"checkpoint.resume={self.dir / 'older'}",
                                 f"checkpoint.dir={self.dir / 'second'}")
        self.assertIn("warning: the checkpoint does not say which data it was trained on", out)
        reference = self.dir / "reference.jsonl"
        self.train_well("train.steps=6", f"metrics.jsonl={reference}")
        expected = self.losses(reference)
        self.assertEqual((self.losses()[5], self.losses()[6]), (expected[5], expected[6]))


class UnshuffledTest(ChangedDataCase):
    ORDER = ("data.shuffle=false", "optimizer.lr=0")  # A loss says which text it is of.

    def setUp(self):
        super().setUp()
        self.train_four_steps()

    def test_other_text(self):
        self.change_a_letter()
        self.refuse(["the text of data.train was 20000 bytes"])

    def test_shorter_text(self):
        os.truncate(self.text, 19_000)
        self.refuse(["the text of data.train was 20000 bytes", "is 19000 bytes"])

    def test_more_text_behind_the_old_end_is_harmless(self):
        self.append()
        out, _ = self.train_well(*self.settings(6))
        self.assertIn("warning: the text of data.train was 20000 bytes", out)
        reference = self.dir / "reference.jsonl"
        self.train_well("train.steps=6", *self.ORDER, f"metrics.jsonl={reference}")
        self.assertEqual(self.losses(), self.losses(reference))

    def test_windows_of_another_length_continue_at_the_same_token(self):
        out, _ = self.train_well(*self.settings(6), "data.seq_len=32")
        self.assertIn("warning: data.seq_len was 16 at the checkpoint and is 32 now", out)
        # Four steps with two windows of 16 tokens are two steps with two windows of 32.
        reference = self.dir / "reference.jsonl"
        self.train_well("train.steps=4", *self.ORDER, "data.seq_len=32", f"metrics.jsonl={reference}")
        expected = self.losses(reference)
        self.assertEqual((self.losses()[5], self.losses()[6]), (expected[3], expected[4]))
        self.assertNotEqual(expected[3], expected[4])


class FormatCase(TrainCase):
    """Ids below 256, so that the bytes of a text are the same ids."""

    def setUp(self):
        super().setUp()
        self.ids = random.Random(3).choices(range(256), k=700)
        self.lengths = [1, 40, 17, 300, 2, 3, 5, 332]  # of the documents

    def write(self, name, content):
        (self.dir / name).write_bytes(content)
        return [str(self.dir / name)]

    def llmc(self, name, ids):
        header = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)
        return self.write(name + ".bin", header + struct.pack(f"<{len(ids)}H", *ids))

    def megatron(self, name, ids, lengths):
        pointers = [4 * sum(lengths[:i]) for i in range(len(lengths))]
        documents = range(len(lengths) + 1)
        self.write(name + ".idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lengths), len(documents))
                   + struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(documents)}q", *lengths, *pointers, *documents))
        return self.write(name + ".bin", struct.pack(f"<{len(ids)}i", *ids))

    def described(self, name, ids, tokenizer="0123456789abcdef"):
        self.write(name + ".bin.json", json.dumps({
            "format": "fsdprun-tokens-1", "dtype": "uint32", "tokens": len(ids), "vocab_size": 256, "document_end": None,
            "tokenizer": {"kind": "tokenizer.json", "digest": tokenizer}, "sources": []}).encode())
        return self.write(name + ".bin", struct.pack(f"<{len(ids)}I", *ids))

    def check_any_world(self, settings, reference, data=((), (), ())):
        """Two steps each on 2, 3 and 1 ranks give the losses of six steps on 2, which are 6 windows each. `data`: settings
        of the three starts."""
        directory = self.dir / reference.stem
        for (steps, ranks), files in zip(((2, 2), (4, 3), (6, 1)), data, strict=True):
            out, _ = self.train_well(*settings, *files, f"train.steps={steps}", f"train.grad_accumulation={6 // ranks}",
                                     f"checkpoint.dir={directory}", ranks=ranks)
            if steps > 2:
                self.assertIn(f"resuming after step {steps - 2}", out)
            self.assertNotIn("warning: the", out)
        for (step, loss), expected in zip(self.losses().items(), self.losses(reference).values(), strict=True):
            self.assertAlmostEqual(loss / expected, 1, delta=1e-5, msg=f"step {step}")
        if self.evaluation(reference) is not None:
            self.assertAlmostEqual(self.evaluation() / self.evaluation(reference), 1, delta=1e-5)
        self.metrics.unlink()

    def evaluation(self, path=None):
        """The last one's loss."""
        losses = [record["eval_loss"] for record in self.records(path) if "eval_loss" in record]
        return losses[-1] if losses else None

    def train_reference(self, name, *settings):
        reference = self.dir / f"{name}.jsonl"
        self.train_well(*settings, "train.steps=6", "train.grad_accumulation=3", f"metrics.jsonl={reference}")
        return reference


class AnyWorldTest(FormatCase):
    ORDER = ("data.sampler=global", "data.seed=5", "optimizer.lr=0.02")

    def test_a_run_goes_on_at_any_world_size_with_the_same_ids_in_another_format(self):
        formats = {
            "llmc": self.llmc("l", self.ids), "megatron": self.megatron("m", self.ids, self.lengths),
            "raw": self.write("r.tokens", struct.pack(f"<{len(self.ids)}q", *self.ids)),
            "text": self.write("t.txt", bytes(self.ids)),
        }
        reference = self.train_reference("reference", *self.ORDER, f"data.train={json.dumps(formats['text'])}")
        settings = {name: (f"data.train={json.dumps(files)}", *(("data.dtype=int64",) if name == "raw" else ()))
                    for name, files in formats.items()}
        for names in (["llmc", "megatron", "raw"], ["megatron", "raw", "llmc"], ["raw", "llmc", "megatron"], ["text"] * 3):
            with self.subTest(names):
                path = self.dir / f"{names[0]}.jsonl"
                path.write_bytes(reference.read_bytes())
                self.check_any_world(self.ORDER, path, [settings[name] for name in names])

    def test_mixture(self):
        self.llmc("a-1", self.ids[:200])
        self.llmc("a-2", self.ids[200:300])
        mixture = [{"files": [str(self.dir / "a-*.bin")], "weight": 0.7},
                   {"files": self.megatron("m", self.ids[300:], [len(self.ids) - 300]), "weight": 0.3}]
        settings = ("data.train=null", *self.ORDER, f"data.mixture={json.dumps(mixture)}")
        self.check_any_world(settings, self.train_reference("mixture", *settings))

    def test_documents(self):
        files = json.dumps(self.megatron("m", self.ids, self.lengths))
        evaluations = {}
        for documents in ("mask", "separate"):
            settings = (*self.ORDER, f"data.train={files}", f"data.documents={documents}", f"data.valid={files}",
                        "train.eval_every=6")
            reference = self.train_reference(documents, *settings)
            self.check_any_world(settings, reference)
            evaluations[documents] = self.evaluation(reference)
        self.assertNotAlmostEqual(evaluations["mask"] / evaluations["separate"], 1, delta=1e-5)

    def test_fused_loss_leaves_out_the_same_targets(self):
        files = json.dumps(self.megatron("m", self.ids, self.lengths))
        settings = (*self.ORDER, f"data.train={files}", "data.documents=separate")
        reference = self.train_reference("reference", *settings)
        fused = self.train_reference("fused", *settings, "model.kernels=fused")
        for loss, expected in zip(self.losses(fused).values(), self.losses(reference).values(), strict=True):
            self.assertAlmostEqual(loss / expected, 1, delta=1e-4)


class BadTokensTest(FormatCase):
    def refuse(self, words, *settings, **kwargs):
        return self.assert_refused(78, words, *settings, **kwargs)

    def test_id_beyond_the_vocabulary_is_named_at_the_start(self):
        self.ids[300] = 256
        self.refuse([f"data file {self.dir}/l.bin: token 300, uint16 at offset 1624, is 256: expected an id below the "
                     "model's vocab_size, 256"], f"data.train={json.dumps(self.llmc('l', self.ids))}")

    def test_id_that_only_a_step_comes_to_ends_the_job_for_good(self):
        ids = bytearray(2 * 5_000_000)
        ids[2 * 70_000 + 1] = 1  # not among what is sampled at the start
        files = json.dumps(self.write("r.bin", ids))
        rc, out, err = self.train(f"data.train={files}", "data.dtype=uint16", "data.shuffle=false", "data.seq_len=64",
                                  "train.micro_batch_size=16", "train.steps=1000", launcher=["--max-restarts=3"])
        self.assertNotEqual(rc, 0)
        self.assertIn(f"data file {self.dir}/r.bin: token 70000, uint16 at offset 140000, is 256: expected an id below the "
                      "model's vocab_size, 256", err)
        self.assertRegex(err, "exitcode  : 78 ")
        self.assertIn("0 of 3 restarts used", err)
        self.assertIn(len(self.losses()), range(33, 35))  # of 2,048 tokens each

    def test_index_of_other_data(self):
        files = json.dumps(self.megatron("m", self.ids, [*self.lengths, 1]))
        self.refuse([f"{self.dir}/m.bin: it has 2800 bytes", f"{self.dir}/m.idx add up to 2804"], f"data.train={files}")

    def test_another_tokenizer_than_the_checkpoints(self):
        files = json.dumps(self.described("d", self.ids))
        self.train_well(f"data.train={files}", "train.steps=2", *self.saving())
        self.described("d", self.ids, tokenizer="fedcba9876543210")
        self.refuse(["the tokenizer of the data was 0123456789abcdef at the checkpoint and is fedcba9876543210 now"],
                    f"data.train={files}", "train.steps=4", *self.saving())
        self.assertEqual(self.steps_saved(), [2])


class TruncationTest(TrainCase):
    def test_file_that_becomes_shorter_under_a_training_is_named(self):
        launcher = self.start_training("train.steps=100000000")
        wait_for_files(lambda: len(self.records()) > 10, self.dir, "steps", writes=True)
        os.truncate(self.dir / "train.txt", 5_000)
        rc, out, err = self.finish(launcher)
        self.assertNotEqual(rc, 0)
        lines = [line for line in self.own_lines(out, err) if "data file" in line]
        self.assertIn(len(lines), (1, 2), out + err)  # Of each rank that has read there.
        for line in lines:
            self.assertRegex(line, rf"fsdp-train: rank [01]: cannot read data file {self.dir}/train.txt at offset \d+: "
                                   r"it had 20000 bytes when the run began and has become shorter")
        self.assertIn("exitcode  : 1 ", err)


if __name__ == "__main__":
    main()
