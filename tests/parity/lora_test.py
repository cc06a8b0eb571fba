#!/usr/bin/env python3
"""Adapters (LoRA) on models that transformers made, or part of their weights, trained by fsdp-train at two ranks and by plain
torch in one process.

The losses of 10 steps follow each other within 1e-5 relative, over a resume in their middle. The adapters, written by
fsdpctl ckpt export as PEFT writes them, are those of the reference; PEFT loads them onto their base, which then has the
reference's logits. So has the merged model in transformers, which also gives fsdp-train's text.
"""

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import fsdp2_train
import make_case
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.pytorch_utils import Conv1D

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
RANKS, STEPS, LENGTH, RANK, ALPHA = 2, 10, 64, 4, 16
TOLERANCE = 1e-5
EXIT_CONFIG = 78
SENTENCE = "the quick brown fox jumps over a lazy dog. "
PROMPT, GENERATED = "the ", 40
DECODER = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}


class Adapter(torch.nn.Module):
    """A linear layer with lora_A and lora_B beside it, as the paper and PEFT have them."""

    def __init__(self, layer: torch.nn.Module, generator: torch.Generator):
        super().__init__()
        self.layer = layer
        inputs, outputs = layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.shape[::-1]
        self.lora_A = torch.nn.Linear(inputs, RANK, bias=False)
        self.lora_B = torch.nn.Linear(RANK, outputs, bias=False)
        torch.nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5), generator=generator)
        torch.nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.lora_B(self.lora_A(x)) * (ALPHA / RANK)


def adapt(model: torch.nn.Module, targets: list[str] | str, seed: int) -> dict[str, Adapter]:
    """Freezes the model and gives its linear layers of these names an adapter; returns them by the layers' names."""
    model.requires_grad_(False)
    generator, adapters = torch.Generator().manual_seed(seed), {}
    layers = [(name, module) for name, module in model.named_modules()
              if isinstance(module, (torch.nn.Linear, Conv1D)) and name != "lm_head"
              and (targets == "all-linear" or name.rsplit(".", 1)[-1] in targets)]
    for name, module in layers:
        parent, _, last = name.rpartition(".")
        adapters[name] = Adapter(module, generator)
        setattr(model.get_submodule(parent), last, adapters[name])
    return adapters


class Reference:
    """All ranks' windows in one process."""

    def __init__(self, config: dict):
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(config["model"]["weights"], dtype=torch.float32).train()
        self.adapters = adapt(self.model, config["lora"]["targets"], config["model"]["seed"]) if "lora" in config else {}
        for name, parameter in self.model.named_parameters():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in config["train"].get("freeze", [])):
                parameter.requires_grad_(False)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        options = config["optimizer"]
        self.optimizer = torch.optim.AdamW(parameters, lr=options["lr"], betas=tuple(options["betas"]), eps=options["eps"],
                                           weight_decay=options["weight_decay"])
        self.windows = fsdp2_train.Windows(config["data"]["train"], config["data"]["seq_len"])
        self.orders = [list(DistributedSampler(range(self.windows.count), RANKS, rank, shuffle=False)) for rank in range(RANKS)]

    def step(self, number: int) -> float:
        micro = self.config["train"]["micro_batch_size"]
        indices = [index for order in self.orders for index in order[number * micro : (number + 1) * micro]]
        inputs, targets = (torch.stack(side) for side in zip(*(self.windows[index] for index in indices)))
        loss = fsdp2_train.next_token_loss(self.model(input_ids=inputs, use_cache=False).logits, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return logits_of(self.model, tokens)


def logits_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False).logits


def generate(folder: Path) -> bytes:
    """The greedy text of the model, byte by byte."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([list(PROMPT.encode())])
    ids = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=GENERATED, eos_token_id=None,
                         pad_token_id=0)
    return bytes(ids[0].tolist())


class FineTuningCase(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()

    def run_program(self, *command, code: int = 0) -> subprocess.CompletedProcess:
        done = subprocess.run([*map(str, command)], capture_output=True, timeout=300, check=False, text=True, errors="replace",
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def write(self, model: torch.nn.Module, changes: dict[str, dict]) -> None:
        self.path = make_case.write_case(self.dir, steps=STEPS, ranks=RANKS, length=LENGTH,
                                         changes={"parallel": {"backend": "shm"}, "optimizer": {"lr": 1e-2},
                                                  "checkpoint": {"resume": "auto"}, **changes})
        (self.dir / "train.txt").write_text(SENTENCE * (STEPS * RANKS * 2 * LENGTH // len(SENTENCE) + 10))
        model.save_pretrained(self.dir)
        self.base = (self.dir / "model.safetensors").read_bytes()
        self.config = json.loads(self.path.read_text())
        self.checkpoint = self.dir / f"checkpoints/step-{STEPS}"

    def train(self, *settings, ranks: int = RANKS, code: int = 0) -> subprocess.CompletedProcess:
        words = [word for setting in settings for word in ("--set", setting)]
        launcher = [BIN / "fsdprun", "--standalone", f"--nproc-per-node={ranks}", "--no-python"] if ranks > 0 else []
        return self.run_program(*launcher, BIN / "fsdp-train", "--config", self.path, *words, code=code)

    def losses(self, metrics: Path | None = None) -> dict[int, float]:
        records = [json.loads(line) for line in (metrics or Path(self.config["metrics"]["jsonl"])).read_text().splitlines()]
        return {record["step"]: record["loss"] for record in records if "loss" in record}

    def keys_of(self, checkpoint: Path) -> list[str]:
        inspected = self.run_program(BIN / "fsdpctl", "ckpt", "inspect", checkpoint, "--json")
        return [tensor["key"] for tensor in json.loads(inspected.stdout)["tensors"]]

    def compare_losses(self) -> Reference:
        reference = Reference(self.config)
        theirs = {step + 1: reference.step(step) for step in range(STEPS)}
        ours = self.losses()
        self.assertEqual(sorted(ours), sorted(theirs))
        for step, loss in theirs.items():
            self.assertLessEqual(abs(ours[step] - loss) / loss, TOLERANCE, f"step {step}: {ours[step]} and {loss}")
        self.assertLess(ours[STEPS], 0.97 * ours[1])  # else the comparison would say little
        return reference


class LoraTest(FineTuningCase):
    def make(self, model: torch.nn.Module, targets: list[str] | str) -> None:
        self.write(model, {"lora": {"rank": RANK, "alpha": ALPHA, "targets": targets}})

    def compare_adapter(self, reference: Reference, targets: list[str]) -> None:
        folder = self.dir / "adapter"
        self.run_program(BIN / "fsdpctl", "ckpt", "export", self.checkpoint, folder, "--format", "adapter")
        weights = load_file(folder / "adapter_model.safetensors")
        expected = {f"base_model.model.{name}.lora_{letter}.weight": getattr(adapter, f"lora_{letter}").weight.detach()
                    for name, adapter in reference.adapters.items() for letter in "AB"}
        self.assertEqual(sorted(weights), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual(weights[name].dtype, torch.float32)
            torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=5e-4, msg=name)
        config = json.loads((folder / "adapter_config.json").read_text())
        is_gpt2 = reference.model.config.model_type == "gpt2"
        self.assertLessEqual({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
                              "bias": "none", "target_modules": targets, "fan_in_fan_out": is_gpt2,
                              "base_model_name_or_path": str(self.dir)}.items(), config.items())

    def compare_peft(self, reference: Reference) -> None:
        """PEFT reads the folder and finds a place for each tensor in it, and one in it for each of its own."""
        base = AutoModelForCausalLM.from_pretrained(self.dir, dtype=torch.float32)
        loaded = PeftModel.from_pretrained(base, self.dir / "adapter")
        theirs = {name.replace(".default.", "."): tensor for name, tensor in loaded.state_dict().items() if ".lora_" in name}
        written = load_file(self.dir / "adapter/adapter_model.safetensors")
        self.assertEqual(sorted(theirs), sorted(written))
        for name, tensor in written.items():
            self.assertTrue(torch.equal(theirs[name], tensor), name)
        tokens = torch.tensor([list(SENTENCE.encode())])
        expected = reference.logits(tokens)
        torch.testing.assert_close(logits_of(loaded, tokens), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(logits_of(loaded.merge_and_unload(), tokens), expected, rtol=1e-3, atol=1e-3)

    def compare_merged(self, reference: Reference) -> None:
        merged = self.dir / "merged"
        self.run_program(BIN / "fsdpctl", "ckpt", "export", self.checkpoint, merged)
        tokens = torch.tensor([list(SENTENCE.encode())])
        theirs = logits_of(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32), tokens)
        torch.testing.assert_close(theirs, reference.logits(tokens), rtol=1e-3, atol=1e-3)
        base = logits_of(AutoModelForCausalLM.from_pretrained(self.dir, dtype=torch.float32), tokens)
        self.assertGreater((theirs - base).abs().max().item(), 0.1)
        # One rank has the digest of the base that two ranks had.
        sampled = self.run_program(BIN / "fsdp-train", "sample", "--checkpoint", self.checkpoint, "--prompt", PROMPT, "--bytes", GENERATED,
                                   "--temperature", 0)
        # What is no UTF-8 counts as replaced in both.
        self.assertEqual(sampled.stdout.rstrip("\n"), generate(merged).decode(errors="replace").rstrip("\n"))
        self.assertNotIn("warning", sampled.stderr)

    def has_adapters_alone(self) -> None:
        keys = self.keys_of(self.checkpoint)
        self.assertTrue(keys)
        self.assertEqual([key for key in keys if ".lora_" not in key], [])
        self.assertEqual((self.dir / "model.safetensors").read_bytes(), self.base)

    def test_llama_with_two_targets_resumed_with_other_kernels(self):
        torch.manual_seed(9)
        self.make(LlamaForCausalLM(LlamaConfig(**DECODER)), ["q_proj", "v_proj"])
        said = self.train("train.steps=5").stdout
        self.assertIn("of adapters, which alone are trained", said)
        said = self.train("model.kernels=fused", "train.activation_checkpointing=true").stdout
        self.assertIn("resuming after step 5", said)
        self.has_adapters_alone()
        reference = self.compare_losses()
        self.compare_adapter(reference, ["q_proj", "v_proj"])
        self.compare_peft(reference)
        self.compare_merged(reference)

    def test_tied_qwen_with_all_layers(self):
        torch.manual_seed(9)
        self.make(Qwen2ForCausalLM(Qwen2Config(**DECODER, tie_word_embeddings=True)), "all-linear")
        self.train()
        reference = self.compare_losses()
        self.compare_adapter(reference, ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"])
        self.compare_peft(reference)
        self.compare_merged(reference)

    def test_gpt2_whose_layers_are_transposed(self):
        torch.manual_seed(9)
        self.make(GPT2LMHeadModel(GPT2Config(**GPT2)), "all-linear")
        self.train()
        reference = self.compare_losses()
        self.compare_adapter(reference, ["c_attn", "c_fc", "c_proj"])
        self.compare_peft(reference)
        self.compare_merged(reference)

    def test_a_base_in_bfloat16_is_that_of_its_values(self):
        """Which it keeps where it computes in bfloat16: losses as with files of float32, to the last bit, and the same digest."""
        torch.manual_seed(9)
        model = LlamaForCausalLM(LlamaConfig(**DECODER)).to(torch.bfloat16)
        self.make(model, "all-linear")
        wide, metrics = self.dir / "wide", self.dir / "wide.jsonl"
        model.float().save_pretrained(wide)
        self.train("train.steps=3", "precision.param=bfloat16")
        self.train("train.steps=3", "precision.param=bfloat16", f"model.weights={wide}", f"metrics.jsonl={metrics}",
                   f"checkpoint.dir={self.dir}/of_wide")
        narrow = self.losses()
        self.assertEqual(sorted(narrow), [1, 2, 3])
        self.assertEqual(narrow, self.losses(metrics))
        # In float32 by four ranks, two of which have all of it: weights of copies are counted once.
        said = self.train("train.steps=4", f"model.weights={wide}", "parallel.dp_replicate=2", ranks=4).stdout
        self.assertIn("resuming after step 3", said)

    def test_what_does_not_belong_to_the_adapters_is_refused(self):
        torch.manual_seed(9)
        self.make(LlamaForCausalLM(LlamaConfig(**DECODER)), ["q_proj"])
        self.train("train.steps=1", ranks=0)

        def refusal(*settings) -> str:
            return self.train("train.steps=2", *settings, ranks=0, code=EXIT_CONFIG).stderr

        for setting, words in (("lora.rank=8", "lora.rank was 4 at the checkpoint and is 8 now"),
                               ("lora.alpha=8", "lora.alpha was 16.0 at the checkpoint and is 8.0 now"),
                               ('lora.targets=["k_proj"]', 'lora.targets was ["q_proj"] at the checkpoint and is ["k_proj"] now'),
                               ('lora.targets=["c_attn"]', "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"),
                               ("model.weights=none", "the digest of the base was ")):
            self.assertIn(words, refusal(setting))
        self.assertIn("the checkpoint has adapters alone", refusal("lora.rank=0", "lora.alpha=16.0", "lora.targets=all-linear"))
        # Its base has become another one.
        LlamaForCausalLM(LlamaConfig(**DECODER)).save_pretrained(self.dir)
        checkpoint = self.dir / "checkpoints/step-1"
        for command in ((BIN / "fsdp-train", "sample", "--checkpoint", checkpoint, "--prompt", PROMPT),
                        (BIN / "fsdpctl", "ckpt", "export", checkpoint, self.dir / "merged")):
            done = subprocess.run([*map(str, command)], capture_output=True, timeout=100, text=True, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("adapters were trained on", done.stderr)
        self.assertFalse((self.dir / "merged").exists())


class FreezeTest(FineTuningCase):
    def test_part_of_a_llama_over_resumes_at_other_ranks(self):
        torch.manual_seed(9)
        patterns = ["model.embed_tokens.weight", "model.layers.0.*", "*norm*"]
        self.write(LlamaForCausalLM(LlamaConfig(**DECODER)), {"train": {"freeze": patterns}})
        said = self.train("train.steps=3").stdout
        self.assertIn("of which", said)
        self.train("train.steps=6", "parallel.backend=gloo", "train.activation_checkpointing=true")
        said = self.train("train.micro_batch_size=4", ranks=0).stdout  # the same batches
        self.assertIn("resuming after step 6", said)
        reference = self.compare_losses()

        exported, base = self.dir / "exported", load_file(self.dir / "model.safetensors")
        self.run_program(BIN / "fsdpctl", "ckpt", "export", self.checkpoint, exported)
        weights = load_file(exported / "model.safetensors")
        self.assertEqual(sorted(weights), sorted(base))
        keys = self.keys_of(self.checkpoint)
        for name, parameter in reference.model.named_parameters():
            is_trained = parameter.requires_grad
            self.assertEqual(torch.equal(weights[name], base[name]), not is_trained, name)
            torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-3, atol=5e-4, msg=name)
            self.assertIn(f"model.{name}", keys)
            self.assertEqual(f"optim.state.{name}.exp_avg" in keys, is_trained, name)
        self.goes_on_with_others_trained(patterns)

    def goes_on_with_others_trained(self, patterns: list[str]) -> None:
        """With more of them frozen as it is, with fewer from the weights alone."""
        more = json.dumps([*patterns, "lm_head.weight"])
        self.assertIn(f"resuming after step {STEPS}", self.train(f"train.steps={STEPS + 1}", f"train.freeze={more}", ranks=0).stdout)
        fewer = (f"train.steps={STEPS + 2}", 'train.freeze=["*norm*"]')
        refusal = self.train(*fewer, f"checkpoint.resume={self.checkpoint}", f"checkpoint.dir={self.dir}/other", ranks=0,
                             code=EXIT_CONFIG).stderr
        self.assertIn(f"train.freeze was {json.dumps(patterns, separators=(',', ':'))} at the checkpoint", refusal)
        self.assertIn("model.weights", refusal)
        self.assertNotIn("optimizer.name", refusal)
        self.train("train.steps=1", fewer[1], f"model.weights={self.checkpoint}", f"checkpoint.dir={self.dir}/other",
                   f"metrics.jsonl={self.dir}/other.jsonl", ranks=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=BIN)
    arguments, rest = parser.parse_known_args()
    BIN = arguments.bin.resolve()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *rest])
