#!/usr/bin/env bash
# Trains a Hugging Face model on, and writes it back as one: in the present folder it makes tokens.bin of the text, checkpoints,
# metrics.jsonl and finetuned, which transformers loads.
#
#   finetune.sh MODEL TEXT [--set section.key=value]...
#
# MODEL: a folder with config.json, model.safetensors and tokenizer.json. RANKS: worker processes, 2 if it is not set.
# CONFIG: train.json, which trains all weights, if it is not set; lora.json trains adapters beside them, which finetuned then
# has added to the weights, and adapter by themselves, as PEFT has them. One with a slash is a path, others are files beside
# this one.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
usage="usage: finetune.sh MODEL TEXT [--set section.key=value]..."
model=$(realpath "${1:?"$usage"}")
text=$(realpath "${2:?"$usage"}")
config=${CONFIG:-train.json}
[[ $config == */* ]] || config=$here/$config
shift 2

[[ -e tokens.bin ]] || fsdp-train tokenize --tokenizer "$model/tokenizer.json" --output tokens "$text"
fsdprun --standalone --nproc-per-node "${RANKS:-2}" --no-python fsdp-train --config "$config" \
  --set model.config="$model" --set model.weights="$model" "$@"

newest=$(find checkpoints -maxdepth 1 -name 'step-*' | sort --version-sort | tail --lines 1)
fsdpctl ckpt export "$newest" finetuned
if [[ $(fsdpctl ckpt inspect "$newest") == *.lora_A.* ]]; then
  fsdpctl ckpt export "$newest" adapter --format adapter
fi
