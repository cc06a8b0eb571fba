#!/usr/bin/env python3
"""fsdp-train tokenize: what it says, what it leaves behind, and that its files are what a training takes."""

import contextlib
import json
import os
import signal

from job_case import wait_until
from train_case import TRAIN, TrainCase
from unittest_main import main


class TokenizeTest(TrainCase):
    def setUp(self):
        super().setUp()
        self.output = self.dir / "out"
        self.output.mkdir()

    def tokenize(self, *arguments):
        return ["tokenize", "--tokenizer", "bytes", "--output", self.output / "a", *arguments]

    def names(self):
        return sorted(path.name for path in self.output.iterdir())

    def test_wrong_arguments_and_inputs_are_told_in_one_line(self):
        text = self.dir / "train.txt"
        for arguments, complaint in ((["--format", "npy", text], "--format npy: expected one of llmc, megatron, raw"),
                                     (["--threads", "many", text], "--threads many: expected an integer"),
                                     (["--more", text], "--more: expected a known argument"),
                                     ([], "no input")):
            rc, out, err = self.run_job(*self.tokenize(*arguments), binary=TRAIN)
            self.assertIn(rc, (2, 78), err)
            self.assertEqual(out, "")
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn(complaint, err)
        rc, _, err = self.run_job("tokenize", "--output", self.output / "a", text, binary=TRAIN)
        self.assertIn(rc, (2, 78))
        self.assertIn("--tokenizer", err)
        (self.dir / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
        rc, out, err = self.run_job(*self.tokenize(self.dir / "bad.jsonl"), binary=TRAIN)
        self.assertEqual((rc, out), (78, ""))
        self.assertIn(f'{self.dir / "bad.jsonl"}:2: the key "text" is missing', err)
        self.assertEqual(self.names(), [])

    def test_an_interrupt_leaves_nothing(self):
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        program = self.start(*self.tokenize("--input-format", "lines", pipe), binary=TRAIN)
        with open(pipe, "w") as text:
            # More than a pipe holds: when it is written, all but the end has been read.
            text.write("a line\n" * 200_000)
            text.flush()
            self.assertTrue(any(name.startswith("a.bin.tmp-") for name in self.names()))
            os.kill(program.pid, signal.SIGINT)
        rc, out, err = self.finish(program)
        self.assertEqual((rc, out), (-signal.SIGINT, ""), err)
        self.assertIn("interrupted; what was written is removed", err)
        self.assertEqual(self.names(), [])

    def test_an_interrupt_is_noticed_while_input_is_awaited(self):
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        for opens in (False, True):
            program = self.start(*self.tokenize("--input-format", "lines", pipe), binary=TRAIN)
            # Who writes comes, and writes nothing; or does not come at all.
            with open(pipe, "w") if opens else contextlib.nullcontext():
                wait_until(lambda: self.names() != [], "the output")
                os.kill(program.pid, signal.SIGINT)
                rc, out, err = self.finish(program)
            self.assertEqual((rc, out), (-signal.SIGINT, ""), err)
            self.assertIn("interrupted; what was written is removed", err)
            self.assertEqual(self.names(), [])

    def test_an_interrupt_does_not_wait_for_a_large_document(self):
        # Quadratic: what follows each letter is looked at to the end of the text.
        rule = {"type": "Split", "pattern": {"Regex": "[a-z]+(?=[0-9])"}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "Sequence", "pretokenizers": [rule, byte_level]},
                     "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
        (self.dir / "t.json").write_text(json.dumps(tokenizer))
        (self.dir / "large.txt").write_text("a" * 20_000_000)
        program = self.start("tokenize", "--tokenizer", self.dir / "t.json", "--output", self.output / "a",
                             self.dir / "large.txt", binary=TRAIN)
        wait_until(lambda: self.names() != [], "the output")
        os.kill(program.pid, signal.SIGINT)
        rc, out, err = self.finish(program)
        self.assertEqual((rc, out), (-signal.SIGINT, ""), err)
        self.assertIn("interrupted; what was written is removed", err)
        self.assertEqual(self.names(), [])

    def test_an_interrupt_keeps_what_was_to_be_replaced(self):
        text = self.dir / "train.txt"
        self.assertEqual(self.run_job(*self.tokenize("--format", "megatron", text), binary=TRAIN)[0], 0)
        before = {path.name: path.read_bytes() for path in self.output.iterdir()}
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        program = self.start(*self.tokenize("--format", "megatron", "--force", "--input-format", "lines", pipe), binary=TRAIN)
        with open(pipe, "w") as lines:
            lines.write("a line\n" * 200_000)
            lines.flush()
            os.kill(program.pid, signal.SIGTERM)
            rc, _, err = self.finish(program)
        self.assertEqual(rc, -signal.SIGTERM, err)
        self.assertEqual({path.name: path.read_bytes() for path in self.output.iterdir()}, before)

    def test_what_is_written_is_trained_on(self):
        text = self.dir / "train.txt"
        rc, out, err = self.run_job(*self.tokenize("--format", "llmc", text), binary=TRAIN)
        self.assertEqual((rc, err), (0, ""))
        self.assertRegex(out, r"^wrote 20,000 tokens of 1 documents to \S+/a\.bin in \d+\.\d s\n$")
        self.assertEqual(json.loads((self.output / "a.bin.json").read_text())["tokens"], 20_000)
        rc, _, err = self.run_job(*self.tokenize(text), binary=TRAIN)
        self.assertEqual(rc, 1)
        self.assertIn("replace it with --force", err)
        self.train_well()
        losses = [record["loss"] for record in self.records() if "loss" in record]
        self.metrics.unlink()
        self.train_well(f'data.train=["{self.output / "a.bin"}"]')
        self.assertEqual([record["loss"] for record in self.records() if "loss" in record], losses)


if __name__ == "__main__":
    main()
