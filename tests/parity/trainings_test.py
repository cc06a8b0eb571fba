#!/usr/bin/env python3
"""Runs the scripts of examples/training as their users would, but for a few steps only; slurm_training runs the batch file."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/training"
BIN = ROOT / "build/bin"
WORDS = "the quick brown fox jumps over a lazy dog".split()


class TrainingsTest(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.text = self.dir / "text"
        words = random.Random(3)
        self.text.write_text(" ".join(words.choices(WORDS, k=6000)))

    def run_script(self, script: str, *arguments, **variables) -> str:
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1",
                       **variables}
        # A model that has learnt little does not write UTF-8.
        done = subprocess.run([EXAMPLES / script, *map(str, arguments)], cwd=self.dir, env=environment, text=True, errors="replace",
                              capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def losses(self) -> dict[int, float]:
        records = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
        return {record["step"]: record["loss"] for record in records if "loss" in record}

    def test_every_example_is_run_here_or_by_slurm(self):
        scripts = {str(path.relative_to(EXAMPLES)) for kind in ("*.sh", "*.sbatch") for path in EXAMPLES.glob(f"*/{kind}")}
        self.assertEqual(scripts, {"pretrain/pretrain.sh", "resume_from_python/resume.sh", "finetune/finetune.sh", "slurm/train.sbatch"})

    def test_pretrain_learns_writes_and_goes_on(self):
        few = ("--set", "train.micro_batch_size=2", "--set", "metrics.every_steps=1", "--set", "train.eval_every=10", "--set",
               "schedule.warmup_steps=2")
        said = self.run_script("pretrain/pretrain.sh", self.text, "--set", "train.steps=10", *few)
        self.assertIn("eval after step 10: loss ", said)
        self.assertRegex(said, r"(?m)^The .")
        losses = self.losses()
        self.assertEqual(sorted(losses), list(range(1, 11)))
        self.assertLess(losses[10], 0.8 * losses[1])
        self.assertEqual(len(list((self.dir / "tensorboard").iterdir())), 1)
        said = self.run_script("pretrain/pretrain.sh", self.text, "--set", "train.steps=11", *few)
        self.assertIn("resuming after step 10", said)
        self.assertEqual(sorted(self.losses()), list(range(1, 12)))

    def test_resume_goes_on_where_python_ended(self):
        said = self.run_script("resume_from_python/resume.sh", self.text)
        python = [float(line.rsplit(" ", 1)[1]) for line in said.splitlines() if line.startswith("step ") and " grad " not in line]
        self.assertEqual(len(python), 10, said)
        losses = self.losses()
        self.assertEqual(sorted(losses), list(range(11, 21)))
        # Weights and moments: it neither begins anew nor stumbles.
        self.assertLess(abs(losses[11] - python[-1]), 0.3 * (python[0] - python[-1]))
        self.assertLess(losses[20], losses[11])

    def make_model(self, model: Path) -> Tokenizer:
        torch.manual_seed(1)
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer.train([str(self.text)], BpeTrainer(vocab_size=300, initial_alphabet=ByteLevel.alphabet(), show_progress=False))
        LlamaForCausalLM(LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                     max_position_embeddings=64, bos_token_id=None, eos_token_id=None)).save_pretrained(model)
        tokenizer.save(str(model / "tokenizer.json"))
        return tokenizer

    def loss_of(self, folder: Path, tokenizer: Tokenizer) -> float:
        tokens = torch.tensor([tokenizer.encode(self.text.read_text()[:200]).ids[:64]])
        with torch.no_grad():
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(input_ids=tokens, labels=tokens).loss.item()

    def test_finetune_gives_a_model_that_transformers_loads_and_that_has_learnt(self):
        model = self.dir / "model"
        tokenizer = self.make_model(model)
        self.run_script("finetune/finetune.sh", model, self.text, "--set", "train.steps=12", "--set", "optimizer.lr=3e-3", "--set",
                        "schedule.warmup_steps=1")
        self.assertLess(self.loss_of(self.dir / "finetuned", tokenizer), 0.8 * self.loss_of(model, tokenizer))
        self.assertEqual((self.dir / "finetuned/tokenizer.json").read_bytes(), (model / "tokenizer.json").read_bytes())
        self.assertFalse((self.dir / "adapter").exists())

    def test_finetune_trains_adapters(self):
        model = self.dir / "model"
        tokenizer = self.make_model(model)
        self.run_script("finetune/finetune.sh", model, self.text, "--set", "train.steps=12", "--set", "optimizer.lr=2e-2", "--set",
                        "schedule.warmup_steps=1", CONFIG="lora.json")
        self.assertLess(self.loss_of(self.dir / "finetuned", tokenizer), 0.97 * self.loss_of(model, tokenizer))
        self.assertEqual(json.loads((self.dir / "adapter/adapter_config.json").read_text())["base_model_name_or_path"], str(model))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=BIN)
    options, rest = parser.parse_known_args()
    BIN = options.bin.resolve()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
