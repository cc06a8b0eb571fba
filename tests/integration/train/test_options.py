"""What single options promise: weights from a Hugging Face directory, accumulation, evaluation, logs."""

import json
import os
import subprocess

import safetensors_io
import torch
from job_case import BIN, wait_until
from llama_reference import LlamaConfig, LlamaForCausalLM, next_token_loss
from train_case import TRAIN, TrainCase
from unittest_main import main

SEQUENCE = 16


class ReferenceCase(TrainCase):
    """The model's weights in a Hugging Face directory, and what Python says of them."""

    def setUp(self):
        super().setUp()
        config = json.loads((self.model / "config.json").read_text())
        config.update(hidden_act="silu", rope_theta=10000.0, tie_word_embeddings=False)
        (self.model / "config.json").write_text(json.dumps(config))
        torch.manual_seed(3)
        self.reference = LlamaForCausalLM(LlamaConfig.from_file(self.model))
        with torch.no_grad():
            for parameter in self.reference.parameters():
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.1)
        self.save(torch.float32)

    def save(self, dtype):
        self.weights = {name: tensor.to(dtype) for name, tensor in self.reference.state_dict().items()}
        safetensors_io.save(self.model / "model.safetensors", self.weights)

    def windows(self, *numbers, text="train.txt"):
        tokens = torch.tensor(list((self.dir / text).read_bytes()))
        return torch.stack([tokens[n * SEQUENCE:(n + 1) * SEQUENCE + 1] for n in numbers])

    def loss(self, *numbers, text="train.txt"):
        """Mean loss of the windows; float."""
        batch = self.windows(*numbers, text=text)
        return next_token_loss(self.reference(batch[:, :-1]), batch[:, 1:])


class WeightsTest(ReferenceCase):
    SETTINGS = ("data.shuffle=false", "train.steps=1")

    def test_first_loss_is_that_of_python(self):
        self.train_well(*self.SETTINGS, f"model.weights={self.model}")
        expected = ((self.loss(0) + self.loss(1)) / 2).item()
        self.assertAlmostEqual(self.losses()[1], expected, delta=1e-6)

    def test_bfloat16_weights(self):
        self.save(torch.bfloat16)
        self.reference.load_state_dict({name: tensor.float() for name, tensor in self.weights.items()})
        self.train_well(*self.SETTINGS, f"model.weights={self.model}")
        self.assertAlmostEqual(self.losses()[1], ((self.loss(0) + self.loss(1)) / 2).item(), delta=1e-6)

    def test_weights_in_two_files_with_an_index(self):
        names = sorted(self.weights)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, held in parts.items():
            safetensors_io.save(self.model / file, {name: self.weights[name] for name in held})
        (self.model / "model.safetensors").unlink()
        (self.model / "model.safetensors.index.json").write_text(json.dumps({
            "metadata": {}, "weight_map": {name: file for file, held in parts.items() for name in held}}))
        self.train_well(*self.SETTINGS, f"model.weights={self.model}")
        self.assertAlmostEqual(self.losses()[1], ((self.loss(0) + self.loss(1)) / 2).item(), delta=1e-6)

    def test_what_fsdpctl_imports_is_trained_and_sampled(self):
        imported = self.dir / "imported"
        subprocess.run([BIN / "fsdpctl", "ckpt", "import", self.model, imported], check=True, capture_output=True)
        self.train_well(*self.SETTINGS, f"model.weights={imported}")
        self.assertAlmostEqual(self.losses()[1], ((self.loss(0) + self.loss(1)) / 2).item(), delta=1e-6)
        rc, out, err = self.run_job("sample", "--checkpoint", imported, "--prompt", "hello", "--bytes", "4",
                                    "--temperature", "0", binary=TRAIN)
        self.assertEqual((rc, err), (0, ""))
        tokens = list(b"hello")
        for _ in range(4):
            tokens.append(self.reference(torch.tensor([tokens]))[0, -1].argmax().item())
        self.assertEqual(out, bytes(tokens).decode(errors="replace") + "\n")

    def test_wrong_shape(self):
        self.weights["model.norm.weight"] = torch.ones(33)
        safetensors_io.save(self.model / "model.safetensors", self.weights)
        self.assert_refused(78, ["model.norm.weight", "[33]", "[32]"], f"model.weights={self.model}")


class AccumulationTest(ReferenceCase):
    def test_loss_and_gradient_are_means_over_micro_batches(self):
        """3 accumulated micro batches of 2 windows on 2 ranks, against one backward over all 12 windows."""
        whole = self.loss(*range(12))
        whole.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in self.reference.parameters()])).item()
        second = []
        for sync in ("true", "false"):
            self.train_well("data.shuffle=false", "train.steps=2", f"model.weights={self.model}",
                            "train.micro_batch_size=2", "train.grad_accumulation=3", "train.max_grad_norm=0",
                            f"train.sync_each_micro_batch={sync}")
            record = self.records()[-2]
            self.assertAlmostEqual(record["loss"], whole.item(), delta=1e-6)
            self.assertAlmostEqual(record["grad_norm"], norm, delta=1e-5 * norm)
            self.assertEqual(record["tokens"], 12 * SEQUENCE)
            second.append(self.records()[-1]["grad_norm"])
        self.assertAlmostEqual(*second, delta=1e-4 * second[0])


class EvaluationTest(ReferenceCase):
    def evaluations(self, path=None):
        return {r["step"]: r["eval_loss"] for r in self.records(path) if "eval_loss" in r}

    def settings(self):
        (self.dir / "valid.txt").write_bytes((self.dir / "train.txt").read_bytes()[5000:5000 + 7 * SEQUENCE + 1])
        return (f'data.valid=["{self.dir / "valid.txt"}"]', "train.eval_every=2", "train.micro_batch_size=2",
                "train.steps=5", f"model.weights={self.model}")

    def test_mean_over_distinct_windows_at_any_world_size(self):
        settings = (*self.settings(), "optimizer.lr=0")
        expected = self.loss(*range(7), text="valid.txt").item()
        for ranks in (1, 2, 3):
            self.train_well(*settings, ranks=ranks)
            self.assertEqual(sorted(self.evaluations()), [2, 4, 5])
            for loss in self.evaluations().values():
                self.assertAlmostEqual(loss, expected, delta=1e-6)

    def test_evaluation_changes_nothing_and_repeats(self):
        settings = self.settings()
        self.train_well(*settings)
        once = self.evaluations()
        self.assertNotEqual(once[2], once[5])
        losses = self.losses()
        self.train_well(*settings)
        self.assertEqual((self.evaluations(), self.losses()), (once, losses))
        self.train_well(*settings, "train.eval_every=0")
        self.assertEqual((self.evaluations(), self.losses()), ({}, losses))
        self.train_well(*settings, "train.eval_every=0", "data.valid=[]")
        self.assertEqual(self.losses(), losses)

    def test_resumed_run_evaluates_where_the_whole_run_did(self):
        settings = self.settings()
        self.train_well(*settings)
        whole = (self.evaluations(), self.losses())
        self.train_well(*settings, *self.saving(every=3), "train.steps=3")
        self.train_well(*settings, *self.saving(every=3))
        resumed = self.evaluations()
        # A run ends with an evaluation, so the first part has one after step 3 too.
        self.assertEqual({step: loss for step, loss in resumed.items() if step != 3}, whole[0])
        self.assertEqual(self.losses(), whole[1])


class LogTest(TrainCase):
    def test_full_disk_under_the_metrics_is_told_and_the_job_goes_on(self):
        out, err = self.train_well("metrics.jsonl=/dev/full", "train.steps=20")
        self.assertIn("done: 20 steps", out)
        warnings = [line for line in err.splitlines() if "warning:" in line]
        self.assertEqual(len(warnings), 1, err)  # of 20
        self.assertIn("cannot write metrics file /dev/full: No space left on device", warnings[0])
        self.assertIn("training goes on", warnings[0])

    def test_full_disk_under_the_curves_is_told_and_the_job_goes_on(self):
        disk = self.disk("64k")
        self.fill(disk)
        out, err = self.train_well(f"metrics.tensorboard={disk}", "train.steps=300")
        self.assertIn("done: 300 steps", out)
        warnings = [line for line in err.splitlines() if "warning:" in line]
        # When it happens, and at the end what it comes to.
        self.assertEqual(len(warnings), 2, err)
        self.assertRegex(warnings[0], rf"cannot write {disk}/events.out.tfevents\..*: No space left on device; training goes on")
        self.assertRegex(warnings[1], r"No space left on device.*; the last records are lost")
        self.assertEqual(len(self.losses()), 300)

    def test_checkpoints_by_time_are_the_same_on_all_ranks(self):
        self.train_well("train.steps=30", "checkpoint.every_minutes=0.0001", *self.saving(every=0))
        saved = self.steps_saved()
        self.assertEqual(saved[-1], 30)
        self.assertGreater(len(saved), 2, saved)

    def test_no_step_is_a_run_too(self):
        out, _ = self.train_well("train.steps=0", *self.saving())
        self.assertIn("done: 0 steps", out)
        self.assertEqual((self.records(), self.steps_saved()), ([], [0]))

    @staticmethod
    def has_data(pipe):
        try:
            return os.read(pipe, 1)
        except BlockingIOError:
            return b""

    def test_pipe_of_metrics_whose_reader_goes_is_told_and_the_job_goes_on(self):
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        job = self.start_training(f"metrics.jsonl={pipe}", "train.steps=300")
        wait_until(lambda: self.has_data(reader), "the first record")
        os.close(reader)
        rc, _, err = self.finish(job)
        self.assertEqual(rc, 0, err)
        self.assertIn(f"cannot write metrics file {pipe}: Broken pipe", err)

    def test_metrics_every_few_steps_and_at_the_end(self):
        self.train_well("train.steps=7", "metrics.every_steps=3")
        self.assertEqual(sorted(self.losses()), [3, 6, 7])
        self.train_well("train.steps=7", "metrics.every_steps=0")
        self.assertEqual(self.records(), [])

    def test_finished_run_has_nothing_more_to_do(self):
        self.train_well(*self.saving())
        before = self.metrics.read_bytes()
        out, _ = self.train_well(*self.saving())
        self.assertIn("resuming after step 6", out)
        self.assertEqual((self.metrics.read_bytes(), self.steps_saved()), (before, [2, 4, 6]))

    def test_sample_says_what_is_wrong_with_its_checkpoint(self):
        _, train = self.arguments(ranks=0)
        absent = self.dir / "absent"
        rc, out, err = self.run_job("sample", "--checkpoint", absent, *train, binary=TRAIN)
        self.assertEqual((rc, out), (1, ""))
        self.assertEqual(err, f"fsdp-train: {absent}: no such directory; expected a checkpoint or a directory of them\n")

    def test_sample_needs_nothing_but_a_checkpoint(self):
        self.train_well(*self.saving(), "data.seq_len=24", "precision.param=bfloat16")
        sample = ["sample", "--checkpoint", self.checkpoints, "--prompt", "hello", "--bytes", "40"]
        given = ["--config", self.config, "--set", "data.seq_len=24", "--set", "precision.param=bfloat16"]
        rc, with_config, err = self.run_job(*sample, *given, binary=TRAIN)
        self.assertEqual((rc, err), (0, ""))
        self.assertTrue(with_config.startswith("hello"))
        for file in (self.config, self.model / "config.json", self.dir / "train.txt"):
            file.unlink()
        self.assertEqual(self.run_job(*sample, binary=TRAIN), (0, with_config, ""))

    def test_sample_under_a_launcher_prints_once(self):
        self.train_well(*self.saving())
        _, train = self.arguments(ranks=0)
        sample = ["sample", "--checkpoint", self.checkpoints, *train, "--prompt", "hello", "--bytes", "20"]
        rc, alone, err = self.run_job(*sample, binary=TRAIN)
        self.assertEqual((rc, err), (0, ""))
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--no-python", TRAIN, *sample)
        self.assertEqual(rc, 0, err)
        self.assertEqual(out.count("hello"), 1)
        self.assertEqual(out, alone)


if __name__ == "__main__":
    main()
