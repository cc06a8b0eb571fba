"""The models of the rows in Python: names and operations are those of models.cc."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

HEADS, VOCABULARY, POSITIONS, WIDTH = 4, 8, 16, 16
DTYPE_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


# Whose results selective checkpoints keep.
KEPT = [torch.ops.aten.addmm.default, torch.ops.aten.relu.default]


def call(module: nn.Module, x: torch.Tensor, checkpointed: bool | str) -> torch.Tensor:
    """By no checkpoint, or one of a kind; True: of PyTorch's default kind."""
    if not checkpointed:
        return module(x)
    if checkpointed == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, KEPT)
        return checkpoint(module, x, use_reentrant=False, context_fn=contexts)
    return checkpoint(module, x, use_reentrant=checkpointed == "reentrant")


class Mlp(nn.Module):
    def __init__(self, spec: dict):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*shape) for shape in spec["shapes"])

    def draw_input(self, batch: int) -> torch.Tensor:
        return torch.randn(batch, self.layers[0].in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x if number == 0 else torch.relu(x))
        return x


class Activation(NamedTuple):
    x: torch.Tensor
    uses: int


class Block(nn.Module):
    def __init__(self, label: str, width: int, has_norm: bool, seen: list[str]):
        super().__init__()
        self.label, self.seen = label, seen
        self.norm = nn.LayerNorm(width) if has_norm else None
        self.in_proj = nn.Linear(width, 4 * width)
        self.out_proj = nn.Linear(4 * width, width)

    def forward(self, x, shift: torch.Tensor | None = None):
        if isinstance(x, dict):
            return {"x": self.compute(x["x"])}
        if isinstance(x, Activation):
            return Activation(self.compute(x.x), x.uses + 1)
        if isinstance(x, tuple):
            y = self.compute(x[0])
            return y, y * 2
        return self.compute(x if shift is None else x + shift)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(f"{self.label} {DTYPE_NAMES[x.dtype]} {DTYPE_NAMES[self.in_proj.weight.dtype]}")
        return x + self.out_proj(torch.relu(self.in_proj(x if self.norm is None else self.norm(x))))


class Stack(nn.Module):
    def __init__(self, spec: dict):
        super().__init__()
        self.spec, self.seen = spec, []
        width = spec["width"]
        self.blocks = nn.ModuleList(Block(f"blocks.{number}", width, spec.get("has_norm", False), self.seen)
                                    for number in range(spec["blocks"]))
        self.head = nn.Linear(width, spec.get("head", 4))

    def draw_input(self, batch: int) -> torch.Tensor:
        return torch.randn(batch, self.spec["width"])

    def forward(self, x: torch.Tensor | None = None) -> torch.Tensor:
        if self.spec.get("makes_input", False):
            x = torch.ones(3, self.spec["width"])
        x = self.encode(x)
        if (unused := self.spec.get("unused_block", -1)) >= 0:
            self.blocks[unused](x)
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        order = self.spec["order"]
        for position, number in enumerate(order):
            following = order[position + 1:position + 2] if self.spec.get("gathers_ahead", False) else []
            handles = [self.blocks[each].unshard(async_op=True) for each in following]
            x = self.run(self.blocks[number], x)
            for handle in handles:
                handle.wait()
        return x

    def run(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        carried = self.spec.get("carried", "tensor")
        if carried == "dict":
            return block({"x": x})["x"]
        if carried == "tuple":
            return block((x, x * 2))[0]
        if carried == "struct":
            return block(Activation(x, 1)).x
        if self.spec.get("external_input", False):
            return block(x, torch.full((self.spec["width"],), 0.25))
        return call(block, x, self.spec.get("checkpointed", False))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(x.size(0), x.size(1), HEADS, WIDTH // HEADS).transpose(1, 2)
                   for layer in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(x.size(0), x.size(1), -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.w2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.gelu(self.w1(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.ffn_norm = nn.LayerNorm(WIDTH)
        self.feed_forward = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    """The one with which PyTorch tests FSDP2 (common_dtensor.py), without dropout."""

    def __init__(self, spec: dict):
        super().__init__()
        self.checkpointed = spec.get("checkpointed", False)
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.pos_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(spec.get("layers", 2)))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if spec.get("is_tied", True):
            self.output.weight = self.tok_embeddings.weight

    def draw_input(self, batch: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (batch, POSITIONS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(tokens.size(1)))
        for layer in self.layers:
            h = call(layer, h, self.checkpointed)
        return self.output(self.norm(h)).float()


class Parameters(nn.Module):
    def __init__(self, spec: dict):
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(*shape) for shape in spec["shapes"])
        self.sizes = [torch.Size(shape).numel() for shape in spec["shapes"]]

    def draw_input(self, batch: int) -> torch.Tensor:
        return torch.randn(sum(self.sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = x.split(self.sizes)
        return torch.stack([(weight * piece.view(weight.shape)).sum() for weight, piece in zip(self.weights, pieces)])


KINDS = {"mlp": Mlp, "stack": Stack, "transformer": Transformer, "parameters": Parameters}


def make_model(spec: dict) -> nn.Module:
    model = KINDS[spec["kind"]](spec)
    for name, parameter in model.named_parameters():
        if any(name.startswith(prefix) for prefix in spec.get("frozen", [])):
            parameter.requires_grad_(False)
    return model


def seed_generator(seed: int) -> None:
    """torch.manual_seed() of the CPU: asking all other devices costs more than a small model's forward."""
    torch.default_generator.manual_seed(seed)


@torch.no_grad()
def draw_parameters(model: nn.Module, seed: int) -> None:
    seed_generator(seed)
    for _, parameter in sorted(model.named_parameters()):
        parameter.copy_(torch.randn(parameter.shape) * (1 / parameter.size(-1) ** 0.5))
