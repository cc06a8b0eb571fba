"""What LibTorch's C++ frontend computes in another way than Python's torch.nn."""

import torch
from torch import nn


class Linear(nn.Linear):
    """torch::nn::Linear multiplies first and then adds the bias, unless its input is a matrix: in bfloat16 the product is
    rounded before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2 and self.bias is not None:
            return torch.addmm(self.bias, x, self.weight.t())
        product = x.matmul(self.weight.t())
        return product if self.bias is None else product.add_(self.bias)


def compute_as_frontend(model: nn.Module) -> None:
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
