"""What Hugging Face's LlamaForCausalLM (transformers, from PyPI) makes of a set of models: the oracle of llama_test.cc.

`llama_oracle.py DIR` writes DIR/models/<case> and DIR/fields/<case>, each with config.json, the weights in safetensors
and, where transformers accepts the configuration, expected.safetensors: tokens, targets, logits, loss and the gradient
of every parameter, in float32 on one thread. Nothing is downloaded: the weights are random.

models  Whole models as save_pretrained writes them; ours must agree.
fields  One key of config.json each, changed from BASE. expectation.json says what ours must do: "honour" (the key
        changes transformers' results, ours must be the same), "ignore" (it does not, ours must be the same) or "refuse".
"""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.integrations import sdpa_attention  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "parity"))
import llama_reference  # noqa: E402

BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 96,
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
BIASES = {"attention_bias": True, "mlp_bias": True}

# name: (changes of BASE, arguments of save_pretrained, stored dtype)
MODELS = {
    "grouped": ({}, {}, torch.float32),
    "multi_query": ({"num_key_value_heads": 1}, {}, torch.float32),
    "one_group_wide_head": ({"num_key_value_heads": 4, "head_dim": 24}, {}, torch.float32),
    "tied": ({"tie_word_embeddings": True}, {}, torch.float32),
    "tied_biased_llama3": ({"tie_word_embeddings": True, **BIASES, "rope_theta": 500000.0, "rope_scaling": LLAMA3}, {},
                           torch.float32),
    "sharded_files": ({"num_hidden_layers": 3}, {"max_shard_size": "50KB"}, torch.float32),
    "stored_bfloat16": ({}, {}, torch.bfloat16),
    "stored_float16": ({}, {}, torch.float16),
    "large_eps": ({"rms_norm_eps": 0.1}, {}, torch.float32),
}

# name: (changes of BASE, what ours must do). The name is the key in question, with a suffix where it has several cases;
# other keys among the changes only set the scene.
FIELDS = {
    "vocab_size": ({"vocab_size": 100}, "honour"),
    "hidden_size": ({"hidden_size": 32}, "honour"),
    "intermediate_size": ({"intermediate_size": 40}, "honour"),
    "num_hidden_layers": ({"num_hidden_layers": 1}, "honour"),
    "num_attention_heads": ({"num_attention_heads": 2}, "honour"),
    "num_key_value_heads": ({"num_key_value_heads": 4}, "honour"),
    "num_key_value_heads-null": ({"num_key_value_heads": None}, "honour"),
    "head_dim": ({"head_dim": 8}, "honour"),
    "head_dim-null": ({"head_dim": None}, "ignore"),
    "hidden_act": ({"hidden_act": "gelu"}, "refuse"),
    "max_position_embeddings": ({"max_position_embeddings": 16}, "ignore"),
    "initializer_range": ({"initializer_range": 0.5}, "ignore"),
    "rms_norm_eps": ({"rms_norm_eps": 1e-2}, "honour"),
    "tie_word_embeddings": ({"tie_word_embeddings": True}, "honour"),
    "attention_bias": ({"attention_bias": True}, "honour"),
    "mlp_bias": ({"mlp_bias": True}, "honour"),
    "attention_dropout": ({"attention_dropout": 0.5}, "refuse"),
    "is_causal": ({"is_causal": False}, "refuse"),
    # The row of the padding token gets no gradient through the embedding.
    "pad_token_id": ({"pad_token_id": 5}, "honour"),
    "pad_token_id-tied": ({"pad_token_id": 5, "tie_word_embeddings": True}, "honour"),
    "pad_token_id-last": ({"pad_token_id": -1}, "honour"),
    "pad_token_id-beyond": ({"pad_token_id": 96}, "refuse"),
    "rope_theta": ({"rope_theta": 500.0}, "honour"),
    "rope_scaling": ({"rope_scaling": LLAMA3}, "honour"),
    "rope_scaling-type": ({"rope_scaling": {"type": "llama3", **{k: LLAMA3[k] for k in LLAMA3 if k != "rope_type"}}},
                          "honour"),
    "rope_scaling-default": ({"rope_scaling": {"rope_type": "default"}}, "ignore"),
    "rope_scaling-linear": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "refuse"),
    "rope_scaling-dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "refuse"),
    "rope_scaling-yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0,
                                            "original_max_position_embeddings": 64}}, "refuse"),
    "rope_parameters-over_theta": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "honour"),
    "rope_parameters-theta_beside": ({"rope_theta": 500.0, "rope_parameters": {"rope_type": "default"}}, "ignore"),
    "rope_parameters-llama3": ({"rope_parameters": {**LLAMA3, "rope_theta": 500.0}}, "honour"),
    "rope_parameters-under_scaling": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                                       "rope_scaling": LLAMA3}, "ignore"),
    "rope_parameters-empty_scaling": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                                       "rope_scaling": {}}, "honour"),
    "rope_parameters-by_layer_type": ({"layer_types": ["full_attention"] * 2, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0}}}, "refuse"),
    "original_max_position_embeddings": ({"original_max_position_embeddings": 32, "rope_scaling": LLAMA3}, "honour"),
    "partial_rotary_factor": ({"partial_rotary_factor": 0.5, "rope_scaling": LLAMA3}, "refuse"),
    "per_layer_config": ({"per_layer_config": {"1": {"intermediate_size": 40}}}, "refuse"),
    "quantization_config": ({"quantization_config": {"quant_method": "fp8"}}, "refuse"),
    # Keys that the computation of a causal language model does not depend on.
    "pretraining_tp": ({"pretraining_tp": 2}, "ignore"),
    "use_cache": ({"use_cache": False}, "ignore"),
    "bos_token_id": ({"bos_token_id": 3}, "ignore"),
    "eos_token_id": ({"eos_token_id": [3, 4]}, "ignore"),
    "architectures": ({"architectures": None}, "ignore"),
    "output_hidden_states": ({"output_hidden_states": True}, "ignore"),
    "output_attentions": ({"output_attentions": False}, "ignore"),
    "return_dict": ({"return_dict": True}, "ignore"),
    "chunk_size_feed_forward": ({"chunk_size_feed_forward": 8}, "ignore"),
    "is_encoder_decoder": ({"is_encoder_decoder": False}, "ignore"),
    "id2label": ({"id2label": {"0": "A", "1": "B", "2": "C"}}, "ignore"),
    "label2id": ({"label2id": {"A": 0, "B": 1}}, "ignore"),
    "problem_type": ({"problem_type": "regression"}, "ignore"),
    "transformers_version": ({"transformers_version": "4.30.0"}, "ignore"),
    # The dtype of computation is fsdp-train's precision.param, that of storage the files'.
    "dtype": ({"dtype": "bfloat16"}, "ignore"),
    "sliding_window": ({"sliding_window": 8}, "ignore"),
    "layer_types": ({"layer_types": ["full_attention"] * 2}, "ignore"),
    "loss_type": ({"loss_type": "ForMaskedLM"}, "ignore"),
}


def make_model(config: LlamaConfig) -> LlamaForCausalLM:
    """Random weights that follow from the seed and the shapes alone; norms and biases too, so that each of them shows."""
    model = LlamaForCausalLM(config)
    torch.manual_seed(5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return model.train()


def evaluate(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """One forward and backward pass on tokens below the smallest vocabulary, among them the padding tokens of FIELDS."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, BASE["vocab_size"], (2, 49), generator=generator)
    tokens[:, 3], tokens[:, 11] = 5, BASE["vocab_size"] - 1
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    output = model(input_ids=inputs, labels=inputs, shift_labels=targets)
    output.loss.backward()
    results = {"tokens": inputs, "targets": targets, "logits": output.logits.detach().clone(), "loss": output.loss.detach()}
    return results | {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}


def write_model(folder: Path, changes: dict, save_options: dict, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True)
    make_model(LlamaConfig(**{**BASE, **changes})).to(dtype).save_pretrained(folder, **save_options)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    save_file(evaluate(model.train()), folder / "expected.safetensors")


def results_of_file(folder: Path, config: dict) -> tuple[LlamaForCausalLM, dict[str, torch.Tensor]]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    model = make_model(LlamaConfig.from_pretrained(folder))
    return model, evaluate(model)


def write_field(folder: Path, changes: dict, expectation: str) -> None:
    """The file is written as given, for save_pretrained would write what transformers understood of it."""
    config, key = {**BASE, **changes}, folder.name.split("-")[0]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "expectation.json").write_text(json.dumps(expectation))
    if expectation == "refuse":
        return
    model, results = results_of_file(folder, config)
    save_file(dict(model.named_parameters()), folder / "model.safetensors")
    save_file(results, folder / "expected.safetensors")
    without = {k: v for k, v in changes.items() if k != key}
    with tempfile.TemporaryDirectory() as scratch:
        other = results_of_file(Path(scratch), {**BASE, **without})[1]
    is_same = results.keys() == other.keys() and all(torch.equal(results[name], other[name]) for name in other)
    assert is_same == (expectation == "ignore"), f"{folder.name}: transformers' results do {'not ' * is_same}change"


def check_parity_reference(folder: Path) -> None:
    """The plain Llama that tests/parity shards with FSDP2 computes what transformers does, too."""
    model = llama_reference.LlamaForCausalLM(llama_reference.LlamaConfig.from_file(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict="tied" not in folder.name)
    expected = load_file(folder / "expected.safetensors")
    logits = model(expected["tokens"])
    loss = llama_reference.next_token_loss(logits, expected["targets"])
    loss.backward()
    results = {"logits": logits, "loss": loss} | {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    wrong = [name for name, value in results.items() if not torch.equal(value, expected[name])]
    assert not wrong and len(results) + 2 == len(expected), f"{folder.name}: tests/parity/llama_reference.py differs: {wrong}"


def main() -> None:
    torch.set_num_threads(1)
    # transformers has two ways to share key and value heads, which round differently in the last bit: within the kernel
    # and by repeat_kv before it. Ours is repeat_kv.
    sdpa_attention.use_gqa_in_sdpa = lambda *_: False
    known = {name.split("-")[0] for name in FIELDS}
    unknown = {field.name for field in dataclasses.fields(LlamaConfig)} - known
    assert not unknown, f"this transformers' LlamaConfig has fields without a case: {sorted(unknown)}"
    root = Path(sys.argv[1])
    for name, (changes, save_options, dtype) in MODELS.items():
        write_model(root / "models" / name, changes, save_options, dtype)
    for name in ("grouped", "multi_query", "one_group_wide_head", "tied", "large_eps"):
        check_parity_reference(root / "models" / name)
    for name, (changes, expectation) in FIELDS.items():
        write_field(root / "fields" / name, changes, expectation)


if __name__ == "__main__":
    main()
