#!/usr/bin/env bash
# Trains a small Llama from random weights on the bytes of a text, and lets it write. In the present folder it makes train.txt
# and valid.txt of the text, checkpoints, metrics.jsonl and files for TensorBoard; called again, it goes on.
#
#   pretrain.sh TEXT [--set section.key=value]...
#
# RANKS: worker processes, 2 if it is not set.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
text=${1:?"usage: pretrain.sh TEXT [--set section.key=value]..."}
shift

# The last tenth is kept back.
bytes=$(stat --format %s "$text")
head --bytes $((bytes - bytes / 10)) "$text" >train.txt
tail --bytes $((bytes / 10)) "$text" >valid.txt

fsdprun --standalone --nproc-per-node "${RANKS:-2}" --no-python fsdp-train --config "$here/train.json" \
  --set model.config="$here" "$@"
fsdp-train sample --checkpoint checkpoints --prompt "The " --bytes 200 --temperature 0.8
