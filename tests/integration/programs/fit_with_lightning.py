"""A fit of one batch with PyTorch Lightning, which finds out by itself that a launcher has started it. Argument: where
the first rank writes what it has found."""

import json
import os
import sys

import torch
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from pytorch_lightning import LightningModule, Trainer, seed_everything


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(output):
    seed_everything(0)
    trainer = Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                      num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), fast_dev_run=True, enable_progress_bar=False,
                      enable_model_summary=False)
    environment = trainer.strategy.cluster_environment
    assert isinstance(environment, TorchElasticEnvironment), environment
    model = Line()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))
    for name, value in (("RANK", trainer.global_rank), ("WORLD_SIZE", trainer.world_size),
                        ("LOCAL_RANK", trainer.local_rank), ("GROUP_RANK", trainer.node_rank)):
        assert int(os.environ[name]) == value, (name, value)
    if trainer.is_global_zero:
        with open(output, "w") as file:
            json.dump([trainer.world_size, trainer.num_nodes, trainer.global_step], file)


if __name__ == "__main__":
    main(sys.argv[1])
