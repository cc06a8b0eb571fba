"""The models and keys of config.json that models_oracle.py writes cases for, by family."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Family:
    name: str
    base: dict
    """name: (changes of the base, arguments of save_pretrained, stored dtype, whether the body alone is saved)"""
    models: dict
    """name: (changes of the base, what ours must do)"""
    fields: dict
    """Keys whose cases another family has."""
    covered: tuple = ()


LLAMA_BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 96,
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
BIASES = {"attention_bias": True, "mlp_bias": True}

# name: (changes of the base, arguments of save_pretrained, stored dtype)
LLAMA_MODELS = {
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

# name: (changes of the base, what ours must do). The name is the key in question, with a suffix where it has several cases;
# other keys among the changes only set the scene.
LLAMA_FIELDS = {
    "vocab_size": ({"vocab_size": 100}, "honour"),
    "hidden_size": ({"hidden_size": 32}, "honour"),
    "intermediate_size": ({"intermediate_size": 40}, "honour"),
    "num_hidden_layers": ({"num_hidden_layers": 1}, "honour"),
    "num_attention_heads": ({"num_attention_heads": 2}, "honour"),
    "num_key_value_heads": ({"num_key_value_heads": 4}, "honour"),
    "num_key_value_heads-null": ({"num_key_value_heads": None}, "honour"),
    "head_dim": ({"head_dim": 8}, "honour"),
    "head_dim-null": ({"head_dim": None}, "ignore"),
    "head_dim-beside_another_width": ({"head_dim": 16, "hidden_size": 66}, "refuse"),
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

# Qwen and Mistral share Llama's decoder and its parser. Theirs are the keys that they read in another way.
OF_LLAMA = tuple({name.split("-")[0] for name in LLAMA_FIELDS})
PLAIN = ({}, torch.float32)


def decoder_base(model_type: str, **changes) -> dict:
    return {**LLAMA_BASE, "architectures": None, "model_type": model_type, **changes}


SLIDING = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
QWEN_FIELDS = {
    "attention_dropout": ({"attention_dropout": 0.5}, "refuse"),
    "hidden_act": ({"hidden_act": "gelu"}, "refuse"),
    "num_key_value_heads-null": ({"num_key_value_heads": None}, "honour"),
    "mlp_bias": ({"mlp_bias": True}, "ignore"),
    "pad_token_id": ({"pad_token_id": 5}, "honour"),
    "rope_theta": ({"rope_theta": 500.0}, "honour"),
    "rope_scaling": ({"rope_scaling": LLAMA3}, "honour"),
    "rope_parameters-llama3": ({"rope_parameters": {**LLAMA3, "rope_theta": 500.0}}, "honour"),
    "rope_scaling-yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "refuse"),
    "sliding_window": ({"sliding_window": 16}, "ignore"),
    "use_sliding_window": (SLIDING, "honour"),
    "use_sliding_window-alone": ({"use_sliding_window": True}, "ignore"),
    "max_window_layers": (SLIDING, "honour"),
    "max_window_layers-beyond": ({**SLIDING, "max_window_layers": 7}, "ignore"),
    "layer_types": ({**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}, "honour"),
    "layer_types-full": ({"layer_types": ["full_attention"] * 2}, "ignore"),
    "layer_types-without_window": ({"layer_types": ["sliding_attention"] * 2}, "refuse"),
    "layer_types-of_another_depth": ({"layer_types": ["full_attention"]}, "refuse"),
    "layer_types-unknown": ({"layer_types": ["full_attention", "chunked_attention"]}, "refuse"),
}
QWEN2 = Family(
    "qwen2", decoder_base("qwen2"),
    {"plain": ({}, *PLAIN),
     "tied_sharded_files": ({"tie_word_embeddings": True, "num_hidden_layers": 3}, {"max_shard_size": "50KB"}, torch.float32),
     "sliding_bfloat16": (SLIDING, {}, torch.bfloat16)},
    {**QWEN_FIELDS, "attention_bias": ({"attention_bias": True}, "ignore"), "head_dim": ({"head_dim": 8}, "honour")},
    OF_LLAMA)
QWEN3 = Family(
    "qwen3", decoder_base("qwen3", head_dim=24),
    {"plain": ({}, *PLAIN), "tied_biased": ({"tie_word_embeddings": True, "attention_bias": True}, *PLAIN),
     "sliding_sharded_files": ({**SLIDING, "num_hidden_layers": 3}, {"max_shard_size": "50KB"}, torch.float32)},
    {**QWEN_FIELDS, "attention_bias": ({"attention_bias": True}, "honour"), "head_dim": ({"head_dim": 8}, "honour")},
    OF_LLAMA)

MISTRAL = Family(
    "mistral", decoder_base("mistral"),
    {"beyond_window": ({"sliding_window": 16}, *PLAIN), "at_window": ({"sliding_window": 48}, *PLAIN),
     "within_window": ({"sliding_window": 49}, *PLAIN), "no_window_tied": (
         {"sliding_window": None, "tie_word_embeddings": True}, *PLAIN),
     "sharded_files": ({"sliding_window": 1, "num_hidden_layers": 3}, {"max_shard_size": "50KB"}, torch.float32)},
    {"sliding_window": ({"sliding_window": 16}, "honour"), "sliding_window-null": ({"sliding_window": None}, "ignore"),
     "sliding_window-zero": ({"sliding_window": 0}, "refuse"), "attention_bias": ({"attention_bias": True}, "ignore"),
     "mlp_bias": ({"mlp_bias": True}, "ignore"), "head_dim": ({"head_dim": 8}, "honour"),
     "attention_dropout": ({"attention_dropout": 0.5}, "refuse"), "rope_theta": ({"rope_theta": 500.0}, "honour"),
     "pad_token_id": ({"pad_token_id": 5}, "honour"), "rope_scaling": ({"rope_scaling": LLAMA3}, "honour")},
    OF_LLAMA)

GPT2 = Family(
    "gpt2",
    {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "vocab_size": 96,
     "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
     "bos_token_id": 1, "eos_token_id": 1},
    {"tied": ({}, *PLAIN), "untied": ({"tie_word_embeddings": False}, *PLAIN), "without_prefix": ({}, *PLAIN, True),
     "sharded_files": ({"n_layer": 3}, {"max_shard_size": "50KB"}, torch.float32),
     "stored_float16": ({}, {}, torch.float16)},
    {"vocab_size": ({"vocab_size": 100}, "honour"), "n_positions": ({"n_positions": 48}, "honour"),
     "n_ctx": ({"n_ctx": 16}, "ignore"), "n_embd": ({"n_embd": 32}, "honour"), "n_layer": ({"n_layer": 1}, "honour"),
     "n_head": ({"n_head": 2}, "honour"), "n_head-no_divisor": ({"n_head": 3}, "refuse"),
     "n_inner": ({"n_inner": 40}, "honour"), "n_inner-null": ({"n_inner": None}, "ignore"),
     "hidden_size": ({"hidden_size": 32}, "refuse"), "num_hidden_layers": ({"num_hidden_layers": 1}, "refuse"),
     "activation_function": ({"activation_function": "relu"}, "refuse"),
     "resid_pdrop": ({"resid_pdrop": 0.1}, "ignore"), "embd_pdrop": ({"embd_pdrop": 0.1}, "ignore"),
     "attn_pdrop": ({"attn_pdrop": 0.1}, "ignore"), "layer_norm_epsilon": ({"layer_norm_epsilon": 0.1}, "honour"),
     "initializer_range": ({"initializer_range": 0.5}, "ignore"),
     "summary_type": ({"summary_type": "mean"}, "ignore"), "summary_use_proj": ({"summary_use_proj": False}, "ignore"),
     "summary_activation": ({"summary_activation": "tanh"}, "ignore"),
     "summary_proj_to_labels": ({"summary_proj_to_labels": False}, "ignore"),
     "summary_first_dropout": ({"summary_first_dropout": 0.5}, "ignore"),
     "scale_attn_weights": ({"scale_attn_weights": False}, "honour"),
     "scale_attn_by_inverse_layer_idx": ({"scale_attn_by_inverse_layer_idx": True}, "honour"),
     # Only transformers' eager attention knows it; its default, as ours, is the fused kernel.
     "reorder_and_upcast_attn": ({"reorder_and_upcast_attn": True}, "ignore"),
     "add_cross_attention": ({"add_cross_attention": True}, "refuse"),
     "tie_word_embeddings": ({"tie_word_embeddings": False}, "honour"),
     "pad_token_id": ({"pad_token_id": 5}, "ignore"), "use_cache": ({"use_cache": False}, "ignore"),
     "quantization_config": ({"quantization_config": {"quant_method": "fp8"}}, "refuse")},
    # Of every configuration; Llama's cases have them.
    OF_LLAMA)

FAMILIES = (Family("llama", LLAMA_BASE, LLAMA_MODELS, LLAMA_FIELDS), QWEN2, QWEN3, MISTRAL, GPT2)
