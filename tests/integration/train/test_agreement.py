"""Ranks that were started with input that does not fit together: one line that names rank, key and both values."""

import json
import shlex
import shutil

from train_case import MODEL, TRAIN, TrainCase
from unittest_main import main


class AgreementCase(TrainCase):
    def run_ranks(self, *settings, of_rank_1):
        """A job of two ranks of which the second has further settings, as if started by another node's command line."""
        _, train = self.arguments(*settings, ranks=0)
        further = shlex.join(word for text in of_rank_1 for word in ("--set", text))
        return self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", "sh", "-c",
                            f'if [ "$RANK" = 1 ]; then exec "$@" {further}; else exec "$@"; fi', "sh", TRAIN, *train)

    def refuse(self, *words, settings=(), of_rank_1):
        rc, out, err = self.run_ranks(*settings, of_rank_1=of_rank_1)
        self.assertNotEqual(rc, 0)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, out + err)
        for word in words:
            self.assertIn(str(word), lines[0])
        self.assertRegex(err, r"exitcode  : 78 ")
        self.assertIn("0 of 3 restarts used", err)
        self.assertEqual(self.records(), [])
        return lines[0]

    def copies(self):
        """The settings that name copies of model and text elsewhere."""
        other = self.dir / "other"
        other.mkdir()
        shutil.copytree(self.model, other / "model")
        shutil.copy(self.dir / "train.txt", other)
        return other, [f"model.config={other / 'model'}", f'data.train=["{other / "train.txt"}"]']


class InputTest(AgreementCase):
    def test_another_configuration(self):
        line = self.refuse(of_rank_1=["data.seq_len=32", "train.micro_batch_size=2"])
        self.assertRegex(line, r"fsdp-train: rank 1 \(.+\): data.seq_len is 32, rank 0 has 16; "
                               r"also different: train.micro_batch_size; start all nodes with the same")

    def test_another_backend(self):
        line = self.refuse(of_rank_1=["parallel.backend=gloo"])
        self.assertIn("fsdp-train: rank 1: parallel.backend is gloo, rank 0 has shm; ", line)

    def test_another_model(self):
        other, copies = self.copies()
        (other / "model" / "config.json").write_text(json.dumps({**MODEL, "num_hidden_layers": 3}))
        self.refuse("rank 1", "num_hidden_layers is 3, rank 0 has 2", of_rank_1=copies)

    def test_other_data(self):
        other, copies = self.copies()
        with open(other / "train.txt", "r+b") as text:
            text.seek(10_000)
            text.write(b"X")
        self.refuse("rank 1", "the digest of data.train", of_rank_1=copies)
        with open(other / "train.txt", "ab") as text:
            text.write(b"X")
        self.refuse("rank 1", "the size of data.train is 20001, rank 0 has 20000", of_rank_1=copies)

    def test_the_same_at_other_paths_is_the_same(self):
        _, copies = self.copies()
        link = self.dir / "link"
        link.symlink_to(self.checkpoints)
        rc, out, err = self.run_ranks(*self.saving(), of_rank_1=[*copies, f"checkpoint.dir={link}", "metrics.jsonl="])
        self.assertEqual(rc, 0, err)
        self.assertIn("done: 6 steps", out)
        self.assertEqual(self.steps_saved(), [2, 4, 6])


class SharedDirectoryTest(AgreementCase):
    def test_directory_that_the_other_node_does_not_see(self):
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        self.refuse("checkpoint.dir is not shared", "rank 1", elsewhere, "rank 0", self.checkpoints, "mount",
                    settings=self.saving(), of_rank_1=[f"checkpoint.dir={elsewhere}"])
        for place in (elsewhere, self.checkpoints):
            self.assertEqual(list(place.iterdir()), [])


if __name__ == "__main__":
    main()
