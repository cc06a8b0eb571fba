#!/usr/bin/env python3
"""Writes a parity case: a tiny Llama with GQA (config.json, model.safetensors), a text and fsdp-train's configuration."""

import argparse
import json
import random
from pathlib import Path

import safetensors_io
import torch
from llama_reference import LlamaConfig, LlamaForCausalLM


def hf_config(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int, length: int,
              tied: bool) -> dict:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "hidden_act": "silu", "max_position_embeddings": length,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": tied, "attention_bias": False,
            "mlp_bias": False, "torch_dtype": "float32"}


def train_config(folder: Path, steps: int, micro_batch: int, accumulation: int, length: int, clip: float,
                 shuffle: bool) -> dict:
    """fsdp-train's configuration with nothing left to a default that matters for the losses."""
    return {
        "model": {"config": str(folder / "config.json"), "weights": str(folder), "seed": 0},
        "data": {"train": [str(folder / "train.txt")], "valid": [], "format": "text", "tokenizer": "byte",
                 "seq_len": length, "shuffle": shuffle, "seed": 3},
        "train": {"steps": steps, "micro_batch_size": micro_batch, "grad_accumulation": accumulation,
                  "max_grad_norm": clip, "eval_every": 0},
        "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "parallel": {"backend": "gloo"},
        "checkpoint": {"dir": str(folder / "checkpoints"), "every_steps": 0, "resume": "none"},
        "metrics": {"jsonl": str(folder / "metrics.jsonl"), "every_steps": 1},
    }


def write_case(folder: Path, *, steps: int = 20, micro_batch: int = 2, accumulation: int = 1, length: int = 64,
               clip: float = 0.0, tied: bool = False, shuffle: bool = False, ranks: int = 4, seed: int = 1,
               changes: dict[str, dict] | None = None) -> Path:
    """Writes the case into `folder`; returns the path of the configuration. `changes`: section -> keys that replace its own."""
    folder.mkdir(parents=True, exist_ok=True)
    config = hf_config(64, 4, 4, 2, 176, 256, length, tied)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig.from_file(folder))
    for name, parameter in model.named_parameters():
        if "norm" in name:  # not all ones, so that a forgotten weight shows
            torch.nn.init.normal_(parameter, 1.0, 0.1)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.05)
    weights = {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    safetensors_io.save(folder / "model.safetensors", weights)
    words = random.Random(seed)
    vocabulary = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=words.randint(1, 9))) for _ in range(200)]
    need = steps * micro_batch * accumulation * ranks * length + length + 1
    text = ""
    while len(text) < need:
        text += words.choice(vocabulary) + words.choice([" ", " ", " ", ", ", ".\n"])
    (folder / "train.txt").write_text(text)
    path = folder / "train.json"
    settings = train_config(folder, steps, micro_batch, accumulation, length, clip, shuffle)
    for section, keys in (changes or {}).items():
        settings.setdefault(section, {}).update(keys)
    path.write_text(json.dumps(settings, indent=2))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--shuffle", action="store_true")
    options = parser.parse_args()
    print(write_case(options.folder.resolve(), steps=options.steps, accumulation=options.accumulation, clip=options.clip,
                     tied=options.tied, shuffle=options.shuffle))


if __name__ == "__main__":
    main()
