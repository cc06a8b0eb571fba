#!/usr/bin/env python3
"""What steps wait for their data, by the format of the files: the share of the steps' time, on 2 ranks. Exit code 1 if one is
above its limit (limits.py).

The model is as small as one can be, so that a step takes a few milliseconds and reading shows: a reader that needs 1 % of that for a
window fails. A run whose steps take longer, as on a busy machine, says so and fails: it has measured nothing. The data are 20 million
tokens, which the page cache has.
"""

import argparse
import array
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import limits
import measure

RANKS = 2
STEPS = 300
WARM_UP_STEPS = 20
MOST_STEP_MS = 50
SEQUENCE = 32
VOCABULARY = 256
MODEL = {"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": SEQUENCE, "rms_norm_eps": 1e-5}
# What each is read with, besides its files.
CASES = {
    "text": {"data.train": ["t.txt"]},
    "llmc, `torch` order": {"data.train": ["l.bin"]},
    "raw, int64": {"data.train": ["r.tokens"], "data.dtype": "int64"},
    "megatron, int32, `separate`, `global` order": {"data.train": ["m.idx"], "data.documents": "separate",
                                                    "data.sampler": "global"},
    "mixture of megatron and llmc, `mask`": {"data.train": None, "data.documents": "mask", "data.sampler": "global",
                                             "data.mixture": [{"files": ["m.idx"], "weight": 0.7},
                                                              {"files": ["l.bin"], "weight": 0.3}]},
}


def write_files(folder: Path) -> None:
    draw = random.Random(1)
    lengths = [draw.randrange(1, 1500) for _ in range(26_000)]
    count = sum(lengths)
    some = [draw.randrange(VOCABULARY) for _ in range(100_000)]
    ids = [some[i % len(some)] for i in range(count)]
    pointers = array.array("q", [0])
    for length in lengths[:-1]:
        pointers.append(pointers[-1] + 4 * length)
    (folder / "m.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1)
                                   + array.array("i", lengths).tobytes() + pointers.tobytes()
                                   + array.array("q", range(len(lengths) + 1)).tobytes())
    (folder / "m.bin").write_bytes(array.array("i", ids).tobytes())
    (folder / "l.bin").write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + array.array("H", ids).tobytes())
    (folder / "r.tokens").write_bytes(array.array("q", ids).tobytes())
    (folder / "t.txt").write_bytes(bytes(token % 256 for token in ids))
    (folder / "config.json").write_text(json.dumps(MODEL))


def share_of_waiting(folder: Path, settings: dict) -> tuple[float, float]:
    """Milliseconds of a step, and the share of them that it has waited."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    settings = {"model.config": "config.json", "data.seq_len": SEQUENCE, "train.micro_batch_size": 1, "train.steps": STEPS,
                "parallel.backend": "shm", "metrics.jsonl": "metrics.jsonl", **settings}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    subprocess.run([measure.FSDPRUN, "--standalone", f"--nproc-per-node={RANKS}", "--no-python",
                    str(measure.BIN / "fsdp-train"), *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [record for record in records if "data_wait_seconds" in record][WARM_UP_STEPS:]
    seconds = sum(step["step_seconds"] for step in steps)
    return 1000 * seconds / len(steps), sum(step["data_wait_seconds"] for step in steps) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for what, settings in CASES.items():
            step_ms, share = share_of_waiting(folder, settings)
            failed |= share > limits.DATA_WAIT.fails_above or step_ms > MOST_STEP_MS
            note = " (too busy to tell)" if step_ms > MOST_STEP_MS else ""
            rows.append([what, f"{step_ms:.1f}{note}", f"{100 * share:.3f}", f"{100 * limits.DATA_WAIT.aim:g}",
                         f"{100 * limits.DATA_WAIT.fails_above:g}"])
    print(measure.table(["data", "ms of a step", "% of it waiting for data", "aim", "fails above"], rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
