"""The text changes under a run."""

import os

from events import wait_for_files
from train_case import TrainCase
from unittest_main import main


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
