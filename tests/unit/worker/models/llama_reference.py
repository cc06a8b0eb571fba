"""Llama in plain PyTorch with the operations of Hugging Face's LlamaForCausalLM, in its order.

`llama_reference.py DIR` writes, for every case, DIR/<case>/config.json, model.safetensors (the weights) and
expected.safetensors (tokens, targets, logits, loss and the gradient of every parameter), computed on one thread.
"""

import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F
from torch import nn


def rope_inv_freq(config):
    dim = config["head_dim"]
    inv_freq = 1.0 / (config["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float) / dim))
    scaling = config.get("rope_scaling")
    if not scaling:
        return inv_freq
    old_length = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > old_length / low, inv_freq / factor, inv_freq)
    smooth = (old_length / wavelength - low) / (high - low)
    smoothed = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = ~(wavelength < old_length / high) * ~(wavelength > old_length / low)
    return torch.where(is_medium, smoothed, scaled)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(x, groups):
    batch, heads, length, dim = x.shape
    if groups == 1:
        return x
    return x[:, :, None, :, :].expand(batch, heads, groups, length, dim).reshape(batch, heads * groups, length, dim)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim = c["head_dim"]
        self.groups = c["num_attention_heads"] // c["num_key_value_heads"]
        query, kv, bias = c["num_attention_heads"] * self.head_dim, c["num_key_value_heads"] * self.head_dim, c["attention_bias"]
        self.q_proj = nn.Linear(c["hidden_size"], query, bias=bias)
        self.k_proj = nn.Linear(c["hidden_size"], kv, bias=bias)
        self.v_proj = nn.Linear(c["hidden_size"], kv, bias=bias)
        self.o_proj = nn.Linear(query, c["hidden_size"], bias=bias)

    def forward(self, x, cos, sin):
        shape = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
        k, v = repeat_kv(k, self.groups), repeat_kv(v, self.groups)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, scale=self.head_dim**-0.5, is_causal=True)
        return self.o_proj(out.transpose(1, 2).contiguous().reshape(*x.shape[:-1], -1).contiguous())


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner, bias = c["hidden_size"], c["intermediate_size"], c["mlp_bias"]
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        residual = x
        x = self.self_attn(self.input_layernorm(x), cos, sin)
        x = residual + x
        residual = x
        x = self.mlp(self.post_attention_layernorm(x))
        return residual + x


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList([Block(c) for _ in range(c["num_hidden_layers"])])
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.config = c

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        inv_freq = rope_inv_freq(self.config)[None, :, None].float().expand(tokens.shape[0], -1, 1)
        positions = torch.arange(tokens.shape[1])[None, :].expand(tokens.shape[0], -1)
        freqs = (inv_freq @ positions[:, None, :].float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = Body(c)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


def save_safetensors(path, tensors):
    names = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float16: "F16"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else tensor.detach().reshape(1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


BASE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "initializer_range": 0.02,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "grouped": BASE,
    "tied_biased_llama3": {**BASE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "one_group_wide_head": {**BASE, "num_key_value_heads": 4, "head_dim": 24, "num_hidden_layers": 2},
}


def write_case(folder, config):
    torch.manual_seed(5)
    model = Llama(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    tokens = torch.randint(0, 256, (2, 49))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    logits = model(inputs)
    loss = F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1))
    loss.backward()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_safetensors(folder / "model.safetensors", dict(model.named_parameters()))
    expected = {"tokens": inputs, "targets": targets, "logits": logits, "loss": loss}
    expected.update({"grad." + name: parameter.grad for name, parameter in model.named_parameters()})
    save_safetensors(folder / "expected.safetensors", expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case, case_config in CASES.items():
        write_case(pathlib.Path(sys.argv[1]) / case, case_config)
