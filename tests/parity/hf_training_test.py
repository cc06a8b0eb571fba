#!/usr/bin/env python3
"""Models that transformers made, trained by fsdp-train and by transformers with FSDP2, and taken back to transformers.

The losses of 20 steps follow each other within 1e-5 relative. Of the trained model, written by fsdpctl ckpt export, transformers
generates the same greedy text as fsdp-train sample.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import forked_ranks
import make_case
import torch
import transformers_fsdp2
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ROOT = Path(__file__).resolve().parents[2]
RANKS, STEPS, LENGTH = 2, 20, 64
TOLERANCE = 1e-5
SENTENCE = "the quick brown fox jumps over a lazy dog. "
PROMPT, GENERATED = "the ", 40

# Of the families of decoders alike.
DECODER = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "bos_token_id": None, "eos_token_id": None}

FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**DECODER)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**DECODER)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**DECODER, sliding_window=LENGTH // 4)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=LENGTH, resid_pdrop=0.0,
                                               embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)),
}


def train_python(config: dict) -> dict[int, float]:
    return transformers_fsdp2.Training(config).train(STEPS)


def generate(folder: Path) -> bytes:
    """The greedy text of the model, byte by byte."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([list(PROMPT.encode())])
    # No token ends the text: all are bytes.
    ids = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=GENERATED, eos_token_id=None,
                         pad_token_id=0)
    return bytes(ids[0].tolist())


class Case:
    def __init__(self, family: str, folder: Path, bin_dir: Path):
        self.family, self.folder, self.bin = family, folder, bin_dir
        path = make_case.write_case(folder, steps=STEPS, ranks=RANKS, length=LENGTH,
                                    changes={"parallel": {"backend": "shm"}, "data": {"shuffle": True}, "optimizer": {"lr": 3e-3}})
        # What a small model learns in few steps, so that it says more than one letter again and again.
        (folder / "train.txt").write_text(SENTENCE * (STEPS * RANKS * 2 * LENGTH // len(SENTENCE) + 10))
        torch.manual_seed(9)
        FAMILIES[family]().save_pretrained(folder)
        self.path, self.config = path, json.loads(path.read_text())

    def run(self, *command) -> bytes:
        done = subprocess.run([*map(str, command)], capture_output=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            sys.exit(f"{self.family}: exit code {done.returncode} of {command}\n{done.stdout.decode()}\n{done.stderr.decode()}")
        return done.stdout

    def train_ours(self) -> dict[int, float]:
        self.run(self.bin / "fsdprun", "--standalone", f"--nproc-per-node={RANKS}", "--no-python", self.bin / "fsdp-train", "--config",
                 self.path)
        records = [json.loads(line) for line in Path(self.config["metrics"]["jsonl"]).read_text().splitlines()]
        return {record["step"]: record["loss"] for record in records if "loss" in record}

    def count_differences(self) -> int:
        theirs = forked_ranks.fork_ranks(RANKS, train_python, self.config)
        theirs = {int(step): loss for step, loss in theirs.items()}
        ours = self.train_ours()
        assert sorted(ours) == sorted(theirs) == list(range(1, STEPS + 1)), (ours, theirs)
        differences = [abs(ours[step] - theirs[step]) / theirs[step] for step in theirs]
        print(f"{self.family}: losses {ours[1]:.6f} ... {ours[STEPS]:.6f} differ by at most {max(differences):.1e}")
        wrong = sum(not difference <= TOLERANCE for difference in differences)

        checkpoint, exported = Path(self.config["checkpoint"]["dir"]) / f"step-{STEPS}", self.folder / "exported"
        self.run(self.bin / "fsdpctl", "ckpt", "export", checkpoint, exported)
        sampled = self.run(self.bin / "fsdp-train", "sample", "--checkpoint", checkpoint, "--prompt", PROMPT, "--bytes", GENERATED,
                           "--temperature", 0)
        generated = generate(exported)
        is_same = sampled.rstrip(b"\n") == generated.rstrip(b"\n") and len(generated) == len(PROMPT) + GENERATED
        print(f"{self.family}: {generated!r} is what transformers generates" + ("" if is_same else f", and fsdp-train {sampled!r}"))
        # Else the comparisons would say little.
        assert ours[STEPS] < 0.5 * ours[1] and len(set(generated)) > 5, (ours, generated)
        return wrong + (not is_same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for family in options.families:
        with tempfile.TemporaryDirectory() as folder:
            wrong += Case(family, Path(folder).resolve(), options.bin).count_differences()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
