"""Models of transformers, trained by PyTorch's FSDP2 in forked ranks (forked_ranks.py).

The configuration is fsdp-train's, as in fsdp2_train.py, with the folder of a Hugging Face model in model.weights.
"""

from pathlib import Path

import fsdp2_train
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict,
                                                     set_optimizer_state_dict)
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()


class Logits:
    """The model as fsdp2_train.train_step calls it."""

    def __init__(self, model: torch.nn.Module):
        self.model, self.parameters = model, model.parameters
        self.set_requires_gradient_sync = model.set_requires_gradient_sync

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def blocks_of(model: torch.nn.Module) -> torch.nn.ModuleList:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


class Training:
    """One rank's. Each block is a unit, and the rest is the root's."""

    def __init__(self, config: dict):
        self.config, self.step = config, 0
        self.model = AutoModelForCausalLM.from_pretrained(config["model"]["weights"], dtype=torch.float32).train()
        for block in blocks_of(self.model):
            fsdp2_train.fully_shard(block)
        fsdp2_train.fully_shard(self.model)
        self.optimizer = fsdp2_train.make_optimizer(config, self.model, "default")
        self.windows = fsdp2_train.Windows(config["data"]["train"], config["data"]["seq_len"])
        self.order = fsdp2_train.window_order(self.windows, config["data"])

    def train(self, until: int) -> dict[int, float]:
        """Steps up to `until`; the mean loss of each."""
        losses, scaler = {}, torch.amp.GradScaler("cpu", enabled=False)
        while self.step < until:
            loss, _ = fsdp2_train.train_step(Logits(self.model), self.optimizer, scaler, self.windows, self.order, self.config,
                                             self.step, is_measured=False)
            dist.all_reduce(loss)
            self.step += 1
            losses[self.step] = loss.item() / dist.get_world_size()
        return losses

    def state(self, is_flat: bool = False) -> dict:
        """As programs save it: nested, or flat as torchtitan has it, with the weights at the top."""
        options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
        model, optimizer = get_model_state_dict(self.model), get_optimizer_state_dict(self.model, self.optimizer, options=options)
        return {**model, "optimizer": optimizer} if is_flat else {"model": model, "optim": optimizer}

    def save(self, path: Path, is_flat: bool = False) -> None:
        dcp.save(self.state(is_flat), checkpoint_id=path)

    def load(self, path: Path) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"])
        self.step = int(next(iter(self.optimizer.state.values()))["step"].item())
