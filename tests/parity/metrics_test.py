#!/usr/bin/env python3
"""What fsdp-train tells of a training, read by the programs that it is for.

TensorBoard's own reader finds one curve of a run that was resumed, with the numbers of metrics.jsonl. The floating-point
operations of a token are those that PyTorch counts. The timeline of two ranks has the events that Perfetto expects, with the
phases, units and collectives of the steps that were asked for.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import make_case
import numpy
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
RANKS, LENGTH = 2, 32
SMALL = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class MetricsCase(unittest.TestCase):
    """What two starts of one run have left, for all tests."""

    folder = None

    @classmethod
    def setUpClass(cls):
        if MetricsCase.folder is None:
            MetricsCase.train_twice()

    @classmethod
    def train_twice(cls):
        cls.folder = Path(unittest.enterModuleContext(tempfile.TemporaryDirectory())).resolve()
        cls.curves, cls.traces = cls.folder / "curves", cls.folder / "traces"
        cls.config = make_case.write_case(cls.folder, steps=8, ranks=RANKS, length=LENGTH, changes={
            "parallel": {"backend": "shm"}, "data": {"shuffle": True, "valid": [str(cls.folder / "train.txt")]},
            "train": {"eval_every": 4, "eval_batches": 1},
            "checkpoint": {"every_steps": 4, "resume": "auto"},
            "metrics": {"tensorboard": str(cls.curves), "trace_dir": str(cls.traces), "trace_steps": [2, 3], "peak_flops": 1e12}})
        cls.train("train.steps=6")
        # What a restart after a crash finds: steps 5 and 6 are done again.
        shutil.rmtree(cls.folder / "checkpoints/step-6")
        cls.said = cls.train("train.steps=8")
        cls.records = records_of(cls.folder / "metrics.jsonl")

    @classmethod
    def train(cls, *settings: str, config: Path | None = None, ranks: int = RANKS) -> str:
        command = [BIN / "fsdprun", "--standalone", f"--nproc-per-node={ranks}", "--no-python", BIN / "fsdp-train", "train",
                   "--config", config or cls.config, *(word for setting in settings for word in ("--set", setting))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode} of {command}\n{done.stdout}\n{done.stderr}")
        return done.stdout


class TensorBoardTest(MetricsCase):
    def test_a_resumed_run_is_one_curve_with_the_numbers_of_the_records(self):
        files = sorted(self.curves.iterdir())
        self.assertEqual(len(files), 2, "one for each start")
        reader = EventAccumulator(str(self.curves), size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        steps = {record["step"]: record for record in self.records if "loss" in record}
        self.assertEqual(sorted(steps), list(range(1, 9)))
        for tag, key in {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "train/tokens": "tokens",
                         "speed/tokens_per_second": "tokens_per_second", "speed/step_seconds": "step_seconds",
                         "speed/data_wait_seconds": "data_wait_seconds", "speed/mfu": "mfu",
                         "speed/flops_per_second": "flops_per_second", "memory/peak_bytes": "memory_bytes"}.items():
            points = [(point.step, point.value) for point in reader.Scalars(tag)]
            self.assertEqual(points, [(step, float(numpy.float32(steps[step][key]))) for step in sorted(steps)], tag)
        evaluations = [(record["step"], float(numpy.float32(record["eval_loss"]))) for record in self.records if "eval_loss" in record]
        self.assertEqual([(point.step, point.value) for point in reader.Scalars("eval/loss")], evaluations)
        self.assertEqual([step for step, _ in evaluations], [4, 8])

    def test_the_configuration_is_shown_as_text(self):
        reader = EventAccumulator(str(self.curves), size_guidance={"tensors": 0})
        reader.Reload()
        text = reader.Tensors("config")[-1].tensor_proto.string_val[0].decode()
        self.assertEqual(text[:8] + text[-5:], "```json\n\n```\n")
        self.assertEqual(json.loads(text[8:-5])["train"]["steps"], 8)


class FlopsTest(MetricsCase):
    def check(self, model, name: str):
        folder = self.folder / name
        model.save_pretrained(folder)
        config = json.loads(self.config.read_text())
        config["model"].update(config=str(folder), weights="none")
        config["metrics"] = {"jsonl": str(folder / "metrics.jsonl"), "peak_flops": 2e12}
        config["checkpoint"]["dir"] = ""
        (folder / "train.json").write_text(json.dumps(config))
        self.train("train.steps=1", "train.eval_every=0", config=folder / "train.json")
        record = records_of(folder / "metrics.jsonl")[0]
        counter = FlopCounterMode(display=False)
        tokens = torch.zeros((2, LENGTH), dtype=torch.int64)
        with counter:
            model(input_ids=tokens, labels=tokens).loss.backward()
        counted = counter.get_total_flops() / tokens.numel()
        self.assertAlmostEqual(record["flops_per_second"] / record["tokens_per_second"] / counted, 1, delta=1e-12)
        self.assertAlmostEqual(record["mfu"], record["flops_per_second"] / (RANKS * 2e12), delta=1e-12)

    def test_flops_of_a_llama_are_those_that_pytorch_counts(self):
        self.check(LlamaForCausalLM(LlamaConfig(**SMALL, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                                num_key_value_heads=2, max_position_embeddings=LENGTH)), "llama")

    def test_flops_of_a_gpt2_are_those_that_pytorch_counts(self):
        self.check(GPT2LMHeadModel(GPT2Config(**SMALL, n_embd=64, n_layer=2, n_head=4, n_positions=LENGTH, resid_pdrop=0.0,
                                              embd_pdrop=0.0, attn_pdrop=0.0)), "gpt2")


class TimelineTest(MetricsCase):
    def setUp(self):
        self.events = json.loads((self.traces / "trace.json").read_text())["traceEvents"]

    def ranges(self, name: str) -> dict[int, dict]:
        """By rank, the first of this name."""
        return {event["pid"]: event for event in reversed(self.events) if event["ph"] == "X" and event["name"] == name}

    def test_events_are_as_the_format_of_chromes_traces_has_them(self):
        open_pairs = {}
        for event in self.events:
            self.assertIn(event["ph"], "MXbeC", event)
            self.assertIn(event["pid"], range(RANKS), event)
            self.assertIsInstance(event["name"], str, event)
            if event["ph"] != "M":
                self.assertGreaterEqual(event["ts"], 0, event)
                self.assertIsInstance(event["tid"], int, event)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0, event)
            if event["ph"] in "be":
                self.assertIsInstance(event["id"], str, event)
                open_pairs[event["pid"], event["id"]] = open_pairs.get((event["pid"], event["id"]), 0) + (1 if event["ph"] == "b" else -1)
        self.assertEqual(set(open_pairs.values()), {0}, "every collective that begins ends")
        names = {event["pid"]: event["args"]["name"] for event in self.events if event["name"] == "process_name"}
        self.assertEqual({rank: name.split(" on ")[0] for rank, name in names.items()}, {0: "rank 0", 1: "rank 1"})

    def test_the_steps_asked_for_are_there_with_phases_units_and_collectives_of_all_ranks(self):
        for name in ("step 6", "step 7", "data", "forward", "backward", "optimizer", "forward model.layers.0", "backward model.layers.0"):
            self.assertEqual(set(self.ranges(name)), set(range(RANKS)), name)
        self.assertEqual({event["name"] for event in self.events if event["name"].startswith("step ")}, {"step 6", "step 7"})
        collectives = {event["name"].split(" ")[0] for event in self.events if event["ph"] == "b"}
        self.assertLessEqual({"all_gather", "reduce_scatter", "all_reduce"}, collectives)

    def test_phases_lie_within_their_step(self):
        for rank, step in self.ranges("step 6").items():
            phase = self.ranges("forward")[rank]
            self.assertLessEqual(step["ts"], phase["ts"])
            self.assertLessEqual(phase["ts"] + phase["dur"], step["ts"] + step["dur"] + 1e-3)

    def test_clocks_are_set_by_a_barrier(self):
        ends = [event["ts"] + event["dur"] for event in self.ranges("clocks").values()]
        self.assertAlmostEqual(ends[0], ends[1], delta=1)  # microsecond, of which a double of today's time has a quarter
        # The ranks have one clock here, which is not to be moved but by how unequally they leave the barrier.
        marks = [next(event["ts"] + event["dur"] for event in json.loads((self.traces / f"rank-{rank}.json").read_text())["traceEvents"]
                      if event["name"] == "clocks") for rank in range(RANKS)]
        self.assertLess(abs(marks[0] - marks[1]), 1e6)


class SummaryTest(MetricsCase):
    def test_the_end_has_a_summary_and_a_picture_of_the_losses(self):
        self.assertRegex(self.said, r"summary\n  steps +5 to 8, 512 tokens in \d+s\n  speed +[\d.k]+ tok/s \(median\), [\d.]+ % MFU; "
                                    r"[\d.]+ % of the steps' time waiting for data\n  loss +\d\.\d+ to \d\.\d+, lowest .* at step \d; "
                                    r"eval \d\.\d+ after step 8\n  checkpoint +\S+/checkpoints/step-8\n")
        self.assertRegex(self.said, r"(?m)^ +[\d.]+ \|\*")
        self.assertRegex(self.said, r"(?m)^ +step 5 +8$")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=BIN)
    options, rest = parser.parse_known_args()
    BIN = options.bin.resolve()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
