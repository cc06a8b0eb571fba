"""What optimizers, batches of a given size and the policies for bad steps promise, over ranks and restarts."""

import random

from train_case import TrainCase
from unittest_main import main

SEQUENCE = 16


class GlobalBatchTest(TrainCase):
    """5 windows a step, which 2 and 3 ranks share unevenly."""

    SETTINGS = ("train.global_batch_size=5", "train.micro_batch_size=2", "data.sampler=global", "optimizer.lr=0.003")

    def test_losses_do_not_depend_on_the_ranks_nor_on_restarts(self):
        self.train_well(*self.SETTINGS, "train.deterministic=true", ranks=0)
        expected = self.records()
        self.metrics.unlink()
        self.train_well(*self.SETTINGS, *self.saving(every=0), "train.steps=2", ranks=2)
        self.train_well(*self.SETTINGS, *self.saving(every=0), "train.steps=4", ranks=3)
        self.train_well(*self.SETTINGS, *self.saving(every=0), ranks=0)
        records = [record for record in self.records() if "loss" in record]
        self.assertEqual([record["step"] for record in records], [1, 2, 3, 4, 5, 6])
        for record, other in zip(records, expected, strict=True):
            self.assertLess(abs(record["loss"] - other["loss"]), 1e-5 * other["loss"], record["step"])
            self.assertEqual(record["tokens"], record["step"] * 5 * SEQUENCE)
            self.assertEqual(record["tokens"], other["tokens"])

    def test_ranks_that_cannot_share_it_are_refused(self):
        self.assert_refused(78, ["train.global_batch_size = 5 on 2 ranks", 'data.sampler = "torch"', "1, 5 ranks"],
                            "train.global_batch_size=5")


class OptimizerTest(TrainCase):
    """Checkpoints have the momentum, and a run goes on from it at any number of ranks."""

    def go_on(self, *settings):
        self.train_well(*settings)
        expected = self.losses()
        self.metrics.unlink()
        self.train_well(*settings, *self.saving(every=3), "train.steps=3")
        out, _ = self.train_well(*settings, *self.saving(every=3))
        self.assertIn("resuming after step 3", out)
        self.assertEqual(self.losses(), expected)
        resharded = self.dir / "resharded.jsonl"
        self.train_well(*settings, f"checkpoint.resume={self.checkpoints / 'step-3'}", f"metrics.jsonl={resharded}",
                        "train.micro_batch_size=2", ranks=0)
        losses = self.losses(resharded)
        self.assertEqual(sorted(losses), [4, 5, 6])
        for step, loss in losses.items():
            self.assertLess(abs(loss - expected[step]), 1e-4 * loss, step)

    def test_sgd(self):
        self.go_on("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.dampening=0.2")

    def test_muon(self):
        self.go_on("optimizer.name=muon", "optimizer.lr=0.01", "optimizer.adamw_lr=0.001")

    def test_adapters(self):
        settings = ("lora.rank=2", "optimizer.lr=0.01")
        self.train_well(*settings, *self.saving(every=3))
        expected = self.losses()
        resharded = self.dir / "resharded.jsonl"
        # One rank reads, and knows, the base that two had.
        out, err = self.train_well(*settings, f"checkpoint.resume={self.checkpoints / 'step-3'}", f"metrics.jsonl={resharded}",
                                   "train.micro_batch_size=2", ranks=0)
        self.assertIn("resuming after step 3", out)
        self.assertNotIn("digest", out + err)
        losses = self.losses(resharded)
        self.assertEqual(sorted(losses), [4, 5, 6])
        for step, loss in losses.items():
            self.assertLess(abs(loss - expected[step]), 1e-4 * loss, step)

    def test_the_state_of_another_optimizer_is_refused(self):
        self.train_well(*self.saving(every=0), "train.steps=1", ranks=0)
        self.assert_refused(78, ["momentum_buffer", "optimizer.name"], *self.saving(every=0), "optimizer.name=sgd",
                            "optimizer.momentum=0.9", ranks=0)


class StepGraphTest(TrainCase):
    """train.step_graph, on CPUs, where what is recorded is called again."""

    def test_losses_are_the_same_beside_saves_and_through_a_restart(self):
        settings = ("train.steps=10", "train.grad_accumulation=2", "schedule.kind=linear", "schedule.warmup_steps=5")
        self.train_well(*settings)
        expected = self.losses()
        self.metrics.unlink()
        as_graphs = (*settings, "train.step_graph=true", *self.saving(every=2), "checkpoint.keep=10")
        self.train_well(*as_graphs, f"metrics.trace_dir={self.dir / 'traces'}", "metrics.trace_steps=[6, 7]")
        self.assertEqual(self.losses(), expected)
        self.metrics.unlink()
        out, _ = self.train_well(*as_graphs, f"checkpoint.resume={self.checkpoints / 'step-4'}",
                                 f"checkpoint.dir={self.dir / 'resumed'}")
        self.assertIn("resuming after step 4", out)
        self.assertEqual(self.losses(), {step: loss for step, loss in expected.items() if step > 4})

    def test_an_optimizer_whose_rate_is_the_hosts_is_refused(self):
        self.assert_refused(78, ["train.step_graph = true", 'optimizer.name = "sgd"'], "train.step_graph=true", "optimizer.name=sgd",
                            ranks=0)


class SpikeTest(TrainCase):
    """A text with one window of bytes that are nowhere else."""

    BAD_STEP = 14
    SETTINGS = ("data.shuffle=false", "train.steps=20")
    SPIKES = ("train.spike_window=6", "train.spike_deviations=5")

    def setUp(self):
        super().setUp()
        letters = random.Random(5)
        self.good = "".join(letters.choices("ab ", k=40 * SEQUENCE)).encode()
        begin = (self.BAD_STEP - 1) * SEQUENCE
        # Its first byte is a target of the window before.
        bad = self.good[begin:begin + 1] + bytes(letters.randrange(128, 256) for _ in range(SEQUENCE - 1))
        self.text = self.good[:begin] + bad + self.good[begin:]

    def train_on(self, text, *settings):
        (self.dir / "train.txt").write_bytes(text)
        return self.train(*self.SETTINGS, *settings, ranks=0)

    def losses_without_it(self):
        rc, _, err = self.train_on(self.good)
        self.assertEqual(rc, 0, err)
        losses = self.losses()
        self.metrics.unlink()
        return losses

    def test_rolled_back_it_goes_on_as_if_the_window_were_not_there(self):
        expected = self.losses_without_it()
        # Nothing tells a process alone which checkpoints are its own.
        rc, out, err = self.train_on(self.text, "train.on_spike=rollback", *self.SPIKES, *self.saving(every=4), "checkpoint.resume=none")
        self.assertEqual(rc, 0, err)
        self.assertIn("resuming after step 12", out)
        warnings = [record for record in self.records() if "warning" in record]
        self.assertEqual([record["step"] for record in warnings], [12])
        self.assertIn(warnings[0]["warning"], err)
        self.assertTrue(warnings[0]["warning"].startswith(f"step {self.BAD_STEP}: the loss "), warnings)
        self.assertIn("went back to the checkpoint of step 12, and goes on without the data of step 14 (from epoch 0, window 13,",
                      warnings[0]["warning"])
        self.assertIn(f"1 to 20, {self.records()[-1]['tokens']} tokens in", out)
        steps = [record["step"] for record in self.records() if "loss" in record]
        self.assertEqual(steps, list(range(1, 21)))
        self.assertEqual(self.losses(), expected)

    def test_skipped_it_changes_no_weight(self):
        rc, _, err = self.train_on(self.text, "train.on_spike=skip", *self.SPIKES)
        self.assertEqual(rc, 0, err)
        skipped = self.losses()
        warnings = [record for record in self.records() if "warning" in record]
        self.assertEqual([record["step"] for record in warnings], [self.BAD_STEP])
        self.assertEqual([record["step"] for record in self.records() if record.get("skipped")], [self.BAD_STEP])
        self.metrics.unlink()
        rc, _, err = self.train_on(self.text, "train.on_spike=stop", *self.SPIKES)
        self.assertNotEqual(rc, 0)
        self.assertIn(f"step {self.BAD_STEP}: the loss {skipped[self.BAD_STEP]:g} or the gradient norm ", err)
        self.assertEqual(max(self.losses()), self.BAD_STEP - 1)

    def test_without_a_checkpoint_there_is_nothing_to_go_back_to(self):
        rc, _, err = self.train_on(self.text, "train.on_spike=rollback", *self.SPIKES, *self.saving(every=0))
        self.assertNotEqual(rc, 0)
        self.assertIn(f"step {self.BAD_STEP}: the loss ", err)
        self.assertIn("there is no checkpoint to go back to; set checkpoint.every_steps", err)


if __name__ == "__main__":
    main()
