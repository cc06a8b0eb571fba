"""Support for black-box tests of fsdp-train: a tiny model and text, runs under fsdprun or alone, small disks."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile

from job_case import BIN, JobCase, processes_with

TRAIN = pathlib.Path(os.environ.get("FSDP_TRAIN", BIN / "fsdp-train")).resolve()

MODEL = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}


class TrainCase(JobCase):
    def setUp(self):
        super().setUp()
        self.env["OMP_NUM_THREADS"] = "1"
        self.model = self.dir / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(MODEL))
        letters = random.Random(7)
        (self.dir / "train.txt").write_text("".join(letters.choices("abcdefgh \n", k=20_000)))
        self.checkpoints = self.dir / "checkpoints"
        self.metrics = self.dir / "metrics.jsonl"
        self.config = self.dir / "train.json"
        self.config.write_text(json.dumps({
            "model": {"config": str(self.model)},
            "data": {"train": [str(self.dir / "train.txt")], "seq_len": 16},
            "train": {"steps": 6}, "parallel": {"backend": "shm"}, "metrics": {"jsonl": str(self.metrics)},
        }))

    def arguments(self, *settings, ranks=2, launcher=()):
        """(binary, its arguments): under the launcher, or alone with ranks=0."""
        train = ["--config", self.config, *(word for text in settings for word in ("--set", text))]
        if ranks == 0:
            return TRAIN, train
        return BIN / "fsdprun", ["--standalone", f"--nproc-per-node={ranks}", *launcher, "--no-python", TRAIN, *train]

    def start_training(self, *settings, env=None, **kwargs):
        binary, arguments = self.arguments(*settings, **kwargs)
        return self.start(*arguments, binary=binary, env=env)

    def start(self, *args, **popen):
        """A training says something at each step: into files, because a pipe that nobody reads yet would stop it."""
        said = {name: tempfile.TemporaryFile("w+", errors="replace") for name in ("stdout", "stderr")}
        for file in said.values():
            self.addCleanup(file.close)
        launcher = super().start(*args, **{**said, **popen})
        launcher.said = said
        return launcher

    def finish(self, launcher):
        try:
            rc, _, _ = super().finish(launcher)
        except AssertionError as error:
            raise AssertionError("{}\n{}\n{}".format(error, *self.said_by(launcher))) from None
        return rc, *self.said_by(launcher)

    def said_by(self, launcher):
        """What it has written to stdout and stderr; "" where the test has given it a file of its own."""
        for file in launcher.said.values():
            file.seek(0)
            yield file.read()

    def train(self, *settings, **kwargs):
        """(exit code, stdout, stderr) of a run to its end."""
        return self.finish(self.start_training(*settings, **kwargs))

    def train_well(self, *settings, **kwargs):
        rc, out, err = self.train(*settings, **kwargs)
        self.assertEqual(rc, 0, err)
        return out, err

    def processes_that_train(self):
        """Pids of those that this test has started."""
        def name(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
            except OSError:
                return None  # it has ended
        return [pid for pid in processes_with(self.marker) if name(pid) == TRAIN.name]

    def workers(self):
        """Pids of the processes that train, by rank."""
        found = {}
        for pid in self.processes_that_train():
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = next((text[5:] for text in variables if text.startswith(b"RANK=")), b"0")
            found[int(rank)] = pid
        return found

    @contextlib.contextmanager
    def paused(self):
        """Its ranks stand still meanwhile."""
        pids = self.processes_that_train()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def saving(self, every=2, keep=0):
        return (f"checkpoint.dir={self.checkpoints}", f"checkpoint.every_steps={every}", f"checkpoint.keep={keep}")

    def steps_saved(self):
        return sorted(int(path.name[5:]) for path in self.checkpoints.iterdir()
                      if path.name.startswith("step-") and path.name[5:].isdigit())

    def records(self, path=None):
        path = path or self.metrics
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def losses(self, path=None):
        """{step: loss} as written, 17 digits: equal means bit-equal."""
        return {r["step"]: r["loss"] for r in self.records(path) if "loss" in r}

    def own_lines(self, out, err):
        """What fsdp-train itself has said about a failure, without what the launcher quotes."""
        return [line for line in (out + err).splitlines() if line.startswith("fsdp-train:")]

    def assert_refused(self, code, words, *settings, ranks=2, **kwargs):
        """One line of fsdp-train that has all words, and the exit code."""
        rc, out, err = self.train(*settings, ranks=ranks, **kwargs)
        lines = self.own_lines(out, err)
        self.assertEqual(len(lines), 1, out + err)
        for word in words:
            self.assertIn(str(word), lines[0])
        if ranks == 0:
            self.assertEqual(rc, code, err)
        else:
            self.assertNotEqual(rc, 0)
            self.assertRegex(err, rf"exitcode  : {code} ")
        self.assert_nothing_left()
        return lines[0], err

    def disk(self, size, *options):
        """A small file system of its own; the test is skipped where one cannot be mounted."""
        place = self.dir / "disk"
        place.mkdir(exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "none", place],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=False)
        return place

    def fill(self, place, leave=0):
        """Takes all room but `leave` bytes of the disk; returns the file to remove."""
        filler = place / "filler"
        room = os.statvfs(place)
        with open(filler, "wb", buffering=0) as out:
            out.write(b"x" * max(0, room.f_bavail * room.f_frsize - leave))
        return filler
