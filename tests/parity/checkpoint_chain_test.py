#!/usr/bin/env python3
"""A training that moves: from Python's FSDP2 at 4 ranks to fsdp-train at 2 and 3, and back to Python at 1.

From hop to hop, where nothing is trained, weights and AdamW's state are the same bit by bit. Wherever it is trained on, the next
losses are those of the program that began, within 1e-6: the same numbers, reduced over other ranks in another order.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dcp_read
import forked_ranks
import make_case
import torch
import transformers_fsdp2
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = 12  # of a step, over all ranks
SAVED, LAST = 3, 5  # steps
TOLERANCE = 1e-6


def write_model(folder: Path) -> None:
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2, max_position_embeddings=64)).save_pretrained(folder)


def config_for(config: dict, ranks: int) -> dict:
    """The same steps at another number of ranks."""
    config = copy.deepcopy(config)
    config["train"]["micro_batch_size"] = WINDOWS // ranks
    return config


def begin(config: dict, saves: list[str]) -> dict:
    """Trains, saves after some steps in two layouts, and goes on."""
    training = transformers_fsdp2.Training(config)
    training.train(SAVED)
    training.save(saves[0])
    training.save(saves[1], is_flat=True)
    return training.train(LAST)


def go_on(config: dict, checkpoint: str) -> dict:
    training = transformers_fsdp2.Training(config)
    training.load(checkpoint)
    assert training.step == SAVED, training.step
    return training.train(LAST)


class Chain:
    def __init__(self, folder: Path, bin_dir: Path):
        self.folder, self.bin, self.wrong = folder, bin_dir, 0
        path = make_case.write_case(folder, steps=LAST, micro_batch=WINDOWS, ranks=1, length=32)
        write_model(folder)
        self.config = json.loads(path.read_text())

    def python(self, ranks: int, work, *arguments) -> dict[int, float]:
        losses = forked_ranks.fork_ranks(ranks, work, config_for(self.config, ranks), *arguments)
        return {int(step): loss for step, loss in losses.items()}

    def ours(self, name: str, ranks: int, resume: Path, steps: int) -> tuple[Path, dict[int, float], str]:
        """Goes on to `steps`; where the last of them is saved, the losses, and what was said."""
        place = self.folder / name
        place.mkdir()
        config = config_for(self.config, ranks)
        config["train"]["steps"] = steps
        config["parallel"] = {"backend": "shm"}
        config["checkpoint"] = {"dir": str(place / "checkpoints"), "resume": str(resume)}
        config["metrics"] = {"jsonl": str(place / "metrics.jsonl")}
        (place / "train.json").write_text(json.dumps(config))
        done = subprocess.run([self.bin / "fsdprun", "--standalone", f"--nproc-per-node={ranks}", "--no-python", self.bin / "fsdp-train",
                               "--config", place / "train.json"], capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        records = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        losses = {record["step"]: record["loss"] for record in records if "loss" in record}
        return place / "checkpoints" / f"step-{steps}", losses, done.stdout + done.stderr

    def expect_same_state(self, what: str, checkpoint: Path, expected: dict[str, torch.Tensor]) -> None:
        complaints = dcp_read.compare(checkpoint, expected, ("model.", "optim.state."))
        print("\n".join(complaints) or f"{what}: {len(expected)} tensors, bit-equal")
        self.wrong += len(complaints)

    def expect_losses(self, what: str, losses: dict[int, float], expected: dict[int, float]) -> None:
        assert sorted(losses) == sorted(expected) == list(range(SAVED + 1, LAST + 1)), (what, losses, expected)
        differences = [abs(losses[step] - expected[step]) / expected[step] for step in expected]
        print(f"{what}: losses {[f'{loss:.9g}' for loss in losses.values()]} differ by at most {max(differences):.1e}")
        self.wrong += sum(not difference <= TOLERANCE for difference in differences)

    def expect_said(self, output: str, *texts: str) -> None:
        for text in texts:
            if text not in output:
                print(f"not said: {text}\n{output}")
                self.wrong += 1

    def run(self) -> int:
        nested, flat = self.folder / "python" / "nested", self.folder / "python" / "flat"
        expected = self.python(4, begin, [str(nested), str(flat)])
        state = dcp_read.load_tensors(nested)
        assert any(name.endswith(".exp_avg_sq") for name in state) and any(name.endswith(".step") for name in state), sorted(state)

        at_2, none, output = self.ours("ours_at_2", 2, nested, SAVED)
        assert not none, none
        self.expect_said(output, f"resuming after step {SAVED}", "written by 4 ranks, now 2", "the checkpoint has no train.state")
        self.expect_same_state("Python at 4 ranks -> fsdp-train at 2", at_2, state)
        at_3, none, output = self.ours("ours_at_3", 3, at_2, SAVED)
        assert not none, none
        self.expect_said(output, "written by 2 ranks, now 3")
        self.expect_same_state("fsdp-train at 2 ranks -> at 3", at_3, state)

        _, losses, output = self.ours("ours_at_2_on", 2, flat, LAST)
        self.expect_said(output, f"resuming after step {SAVED}", f"tokens ({SAVED * WINDOWS * 32})", f"window {SAVED * WINDOWS} of epoch 0")
        self.expect_losses("fsdp-train at 2 ranks, from a flat layout", losses, expected)
        self.expect_losses("fsdp-train at 3 ranks", self.ours("ours_at_3_on", 3, at_3, LAST)[1], expected)
        self.expect_losses("Python at 1 rank", self.python(1, go_on, str(at_3)), expected)
        return self.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if Chain(Path(folder).resolve(), options.bin).run() else 0


if __name__ == "__main__":
    sys.exit(main())
