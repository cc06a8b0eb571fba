"""What the tests of fsdpctl ckpt share: the command, small models, and checkpoints that Python writes."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp

FSDPCTL = pathlib.Path(os.environ["FSDPRUN_BIN"]) / "fsdpctl"


class CkptCase(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun-ckpt-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def ckpt(self, *words, code=0):
        """Runs `fsdpctl ckpt`; returns what it printed on both streams."""
        done = subprocess.run([FSDPCTL, "ckpt", *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done.stdout, done.stderr

    def report(self, *words, code=0):
        return json.loads(self.ckpt(*words, "--json", code=code)[0])

    def refuse(self, words, *arguments):
        """It fails with one line, which has all words."""
        _, err = self.ckpt(*arguments, code=2 if arguments[0] == "diff" else 1)
        self.assertEqual(err.count("\n"), 1, err)
        for word in words:
            self.assertIn(str(word), err)
        return err

    def save(self, name, state):
        """A checkpoint of Python's, by one process."""
        path = self.dir / name
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def save_model(self, name, model, **objects):
        return self.save(name, {"model": model.state_dict(), **objects})

    def damage(self, path, place):
        """Flips one bit of the byte at `place`, or of the first byte of this content."""
        data = bytearray(path.read_bytes())
        data[place if isinstance(place, int) else data.index(place)] ^= 1
        path.write_bytes(data)

    def leftovers(self):
        return [path.name for path in self.dir.rglob("*.tmp-*")]

    def assert_tensors_equal(self, got, expected):
        self.assertEqual(sorted(got), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual(got[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(got[name].view(torch.uint8) if tensor.ndim else got[name],
                                        tensor.view(torch.uint8) if tensor.ndim else tensor), name)
