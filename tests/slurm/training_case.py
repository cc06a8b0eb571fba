"""fsdp-train in a real Slurm: a tiny model, its losses by step, and the losses of a training that nothing has stopped."""

import json
import pathlib
import random
import sys

import slurm_case
from queue_case import QueueCase
from slurm_case import BIN, FSDPRUN

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration/train"))
from train_case import MODEL  # noqa: E402

# The new run begins at once where the old one has ended, on nodes that are all this machine.
CLAIM_TIMEOUT_S = 5
# A machine with other work may leave a node without a word for longer than the 3 s that are the default.
LEASE = "--rdzv-conf=keep_alive_interval=10,keep_alive_max_attempt=3"
PART = 100


class TrainingCase(QueueCase):
    steps = 1000
    forwards = 1  # of a step

    def setUp(self):
        super().setUp()
        model = self.dir / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        letters = random.Random(7)
        (self.dir / "train.txt").write_text("".join(letters.choices("abcdefgh \n", k=20_000)))
        self.write_configurations()

    def write_configurations(self):
        for name in ("undisturbed", "run"):
            (self.dir / f"{name}.json").write_text(json.dumps({
                "model": {"config": str(self.dir / "model")},
                "data": {"train": [str(self.dir / "train.txt")], "seq_len": 16, "shuffle": True, "seed": 3},
                "train": {"steps": self.steps, "grad_accumulation": self.forwards},
                "checkpoint": {"dir": str(self.dir / f"{name}-checkpoints"), "resume": "auto", "keep": 2,
                               "claim_timeout_seconds": CLAIM_TIMEOUT_S},
                "metrics": {"jsonl": str(self.dir / f"{name}.jsonl")},
            }))

    def command(self, *options, name="run"):
        return f"exec {FSDPRUN} {LEASE} {' '.join(options)} --no-python {BIN / 'fsdp-train'} --config {self.dir / name}.json"

    def losses(self, name="run"):
        """[(step, loss)] in the order of writing; 17 digits: equal means bit-equal."""
        path = self.dir / f"{name}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(record["step"], record["loss"]) for record in map(json.loads, lines) if "loss" in record]

    def last_step(self, name="run"):
        return (self.losses(name) or [(0, 0)])[-1][0]

    def wait_for_step(self, step, job, name="run"):
        slurm_case.slurm.wait_until(lambda: self.last_step(name) >= step, f"step {step}", job)

    def finish_training(self, job, name="run"):
        """A slow machine may take its time, but not for a part of the steps."""
        for step in range(PART, self.steps, PART):
            self.wait_for_step(step, job, name)
        self.finish(job)

    def assert_as_undisturbed(self):
        """Every step once, with the bits of a training that was left alone."""
        self.finish_training(self.submit(self.command(name="undisturbed"), "--nodes=2"), "undisturbed")
        undisturbed = self.losses("undisturbed")
        self.assertEqual([step for step, _ in undisturbed], list(range(1, self.steps + 1)))
        self.assertEqual(self.losses(), undisturbed)
