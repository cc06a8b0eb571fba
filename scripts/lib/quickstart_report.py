#!/usr/bin/env python3
"""Shows how the loss fell, and the validation loss beside what a byte-bigram model can reach; exit 1 if not below.

usage: quickstart_report.py METRICS.jsonl TRAIN.txt VALID.txt
"""

import json
import subprocess
import sys
from pathlib import Path


def curve(losses: dict[int, float], rows: int = 8) -> str:
    """Mean training loss over equal stretches of steps, with bars."""
    steps = sorted(losses)
    size = max(1, -(-len(steps) // rows))
    lines = []
    for begin in range(0, len(steps), size):
        part = steps[begin : begin + size]
        mean = sum(losses[step] for step in part) / len(part)
        lines.append(f"  steps {part[0]:5d} to {part[-1]:5d}   loss {mean:.3f}  {'#' * round(mean * 10)}")
    return "\n".join(lines)


def main() -> int:
    metrics, train, valid = map(Path, sys.argv[1:4])
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = {record["step"]: record["loss"] for record in records if "loss" in record}  # the latest of a resumed step
    judged = [record["eval_loss"] for record in records if record.get("eval_loss") is not None]
    if not losses or not judged:
        sys.exit(f"{metrics} has no training or no validation losses")
    print(curve(losses))
    bigram = json.loads(subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "bigram_entropy.py"), str(train), str(valid), "--json"],
        check=True, capture_output=True, text=True).stdout)
    entropy = bigram["conditional_entropy"]
    print(f"\nvalidation loss                                      {judged[-1]:.4f} nats/byte"
          f"\nconditional entropy of the text's byte bigrams       {entropy:.4f} nats/byte"
          f"\nbigram model of the training part, judged by the rest {bigram['bigram_on_valid']:.4f} nats/byte")
    if judged[-1] >= entropy:
        print("the model is NOT better than a byte-bigram model")
        return 1
    print("the model is better than any byte-bigram model can be on this text")
    return 0


if __name__ == "__main__":
    sys.exit(main())
