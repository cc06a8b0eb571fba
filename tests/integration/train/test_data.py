"""The text changes: between two runs of which the second continues the first, and under a run."""

import os

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
