#!/usr/bin/env bash
# Python begins: 10 steps with FSDP2, saved by torch.distributed.checkpoint. fsdp-train goes on to step 20, with weights and
# AdamW's state of Python, at the same place of the text. Needs PyTorch and transformers; works in the present folder.
#
#   resume.sh TEXT
#
# RANKS: worker processes, 2 if it is not set.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
text=$(realpath "${1:?"usage: resume.sh TEXT"}")

fsdprun --standalone --nproc-per-node "${RANKS:-2}" "$here/begin.py" "$text" 10
fsdprun --standalone --nproc-per-node "${RANKS:-2}" --no-python fsdp-train --config "$here/train.json" \
  --set data.train="[\"$text\"]" --set train.steps=20
