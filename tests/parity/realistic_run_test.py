#!/usr/bin/env python3
"""A small run as it is done for earnest: a byte-level BPE tokenizer trained by the Python package tokenizers on more than 4 MB of
text, `fsdp-train tokenize`, 1,000 steps on two ranks with an interruption, a validation curve, samples, the export, and transformers,
which goes on training from it. The text is Python's own standard library, which every machine has.

usage: realistic_run_test.py --bin DIR [--folder DIR] [--steps 1000]

--folder: where files go and stay (default: a temporary folder).
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

TRAIN_BYTES, VALID_BYTES = 4 << 20, 256 << 10
VOCABULARY, LENGTH, BATCH = 2048, 128, 8
SPECIAL = "<|endoftext|>"
# An even guess is ln(2048) = 7.6; 1,000 steps end at 4.2.
LOSS_AT_MOST = 4.4


class Failure(Exception):
    """What was expected, and what was there."""


def expect(is_true: bool, what: str) -> None:
    if not is_true:
        raise Failure(what)


def write_text(folder: Path) -> tuple[Path, Path]:
    """JSON lines of source files, for training and for validation; no file is in both."""
    sources = sorted(path for path in Path(sysconfig.get_path("stdlib")).rglob("*.py") if "site-packages" not in path.parts)
    texts = []
    for path in sources:
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # written to test encodings
    files, begin = [], 0
    # Every so many-th, so that both have of all kinds.
    texts = [text for offset in range(7) for text in texts[offset::7]]
    for name, size in (("valid", VALID_BYTES), ("train", TRAIN_BYTES)):
        end, total = begin, 0
        while total < size and end < len(texts):
            total += len(texts[end].encode())
            end += 1
        expect(total >= size, f"the standard library has only {total} bytes more")
        files.append(folder / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[begin:end]), encoding="utf-8")
        begin = end
    return files[1], files[0]


def train_tokenizer(folder: Path, train: Path) -> Path:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    documents = (json.loads(line)["text"] for line in train.read_text(encoding="utf-8").splitlines())
    tokenizer.train_from_iterator(documents, BpeTrainer(vocab_size=VOCABULARY, special_tokens=[SPECIAL], show_progress=False,
                                                        initial_alphabet=ByteLevel.alphabet()))
    model = folder / "model"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL).save_pretrained(model)
    LlamaConfig(vocab_size=VOCABULARY, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
                num_key_value_heads=2, max_position_embeddings=2 * LENGTH, tie_word_embeddings=True, bos_token_id=None,
                eos_token_id=tokenizer.token_to_id(SPECIAL), architectures=["LlamaForCausalLM"]).save_pretrained(model)
    return model


class Run:
    def __init__(self, folder: Path, programs: Path, steps: int):
        self.folder, self.programs, self.steps = folder, programs, steps

    def call(self, *command) -> str:
        done = subprocess.run([self.programs / command[0], *map(str, command[1:])], cwd=self.folder, text=True, errors="replace",
                              capture_output=True, timeout=3000)
        expect(done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def tokenize(self, model: Path, *texts: Path) -> None:
        for text in texts:
            print(self.call("fsdp-train", "tokenize", "--tokenizer", model / "tokenizer.json", "--output", self.folder / text.stem, text)
                  .splitlines()[-1])

    def write_configuration(self, model: Path) -> None:
        (self.folder / "train.json").write_text(json.dumps({
            "model": {"config": str(model / "config.json"), "weights": "none", "seed": 1, "kernels": "fused"},
            "data": {"train": ["train.bin"], "valid": ["valid.bin"], "seq_len": LENGTH, "sampler": "global", "documents": "mask"},
            "train": {"steps": self.steps, "global_batch_size": BATCH, "micro_batch_size": 4, "max_grad_norm": 1.0,
                      "eval_every": self.steps // 5, "eval_batches": 20},
            "optimizer": {"lr": 3e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]},
            "schedule": {"kind": "wsd", "warmup_steps": self.steps // 20, "decay_fraction": 0.2},
            "checkpoint": {"dir": "checkpoints", "every_steps": self.steps // 4},
            "metrics": {"jsonl": "metrics.jsonl", "tensorboard": "tensorboard", "every_steps": 10}}))

    def launch(self, ranks: int) -> list:
        return ["fsdprun", "--standalone", f"--nproc-per-node={ranks}", "--no-python", self.programs / "fsdp-train", "--config", "train.json"]

    def train(self, ranks: int) -> str:
        return self.call(*self.launch(ranks))

    def train_until(self, event: str, ranks: int) -> None:
        """Until that is said; then Ctrl-C."""
        program, *arguments = self.launch(ranks)
        with subprocess.Popen([self.programs / program, *arguments], cwd=self.folder, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as job:
            said = []
            for line in job.stdout:
                said.append(line)
                if event in line:
                    job.send_signal(signal.SIGINT)
        text = "".join(said)
        expect(event in text, f"the job never said '{event}': {text[-3000:]}")
        print(f"interrupted behind '{event}', ended with {job.returncode}")

    def records(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def check_curve(run: Run) -> float:
    """Validation falls; the last one is below what bigrams would give. Returns it."""
    curve = [(record["step"], record["eval_loss"]) for record in run.records() if "eval_loss" in record]
    print("validation:", ", ".join(f"{loss:.3f} after {step}" for step, loss in curve))
    losses = [loss for _, loss in curve]
    expect(len(curve) == 5 and losses == sorted(losses, reverse=True), f"validation does not fall: {curve}")
    expect(losses[-1] < LOSS_AT_MOST, f"the last validation loss is not below {LOSS_AT_MOST}")
    waits = [record["data_wait_seconds"] / record["step_seconds"] for record in run.records() if "data_wait_seconds" in record]
    waits.sort()
    print(f"data wait: median {100 * waits[len(waits) // 2]:.3f} % of a step")
    expect(waits[len(waits) // 2] < 0.01, "half of the steps wait for data for more than 1 % of their time")
    return losses[-1]


def go_on_in_transformers(exported: Path, valid: Path, ours: float) -> None:
    """transformers has our loss on text that neither has trained on, and trains on from there."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    text = "".join(json.loads(line)["text"] + SPECIAL for line in valid.read_text(encoding="utf-8").splitlines())
    ids = torch.tensor(tokenizer(text)["input_ids"])
    windows = ids[:len(ids) // LENGTH * LENGTH].view(-1, LENGTH)

    def loss_of(batch):
        return model(input_ids=batch, labels=batch).loss

    with torch.no_grad():
        theirs = torch.stack([loss_of(windows[i:i + 8]) for i in range(0, 160, 8)]).mean().item()
    print(f"transformers: {theirs:.3f} where fsdp-train has {ours:.3f}")
    # Over other windows, which also look at the document before.
    expect(abs(theirs - ours) < 0.2, f"transformers has {theirs}, fsdp-train {ours}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(30):
        batch = 160 + 4 * (step % 5)
        loss = loss_of(windows[batch:batch + 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"transformers goes on: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    expect(sum(losses[-5:]) < sum(losses[:5]), f"transformers does not learn: {losses}")


def check(folder: Path, programs: Path, steps: int) -> None:
    run = Run(folder, programs, steps)
    train, valid = write_text(folder)
    model = train_tokenizer(folder, train)
    run.tokenize(model, train, valid)
    run.write_configuration(model)
    run.train_until(f"eval after step {2 * (steps // 5)}", ranks=1)
    said = run.train(ranks=2)
    expect("resuming after step" in said, f"the second start began anew: {said[:3000]}")
    print("\n".join(said.splitlines()[-30:]))
    loss = check_curve(run)
    checkpoint = folder / f"checkpoints/step-{steps}"
    sample = run.call("fsdp-train", "sample", "--checkpoint", checkpoint, "--prompt", "def main(", "--tokens", "64")
    print(sample)
    expect(sample.startswith("def main("), f"the sample does not begin with what was asked: {sample!r}")
    exported = folder / "exported"
    run.call("fsdpctl", "ckpt", "export", checkpoint, exported)
    expect((exported / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes(), "the export has another tokenizer")
    go_on_in_transformers(exported, valid, loss)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            check(folder, options.bin.resolve(), options.steps)
        except Failure as failure:
            print(re.sub(r"\s+$", "", str(failure)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
