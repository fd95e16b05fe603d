# SPDX-License-Identifier: Apache-2.0
# lightning_mnist_plain.py with Capstan: init(), the sampler, one device, and
# two lines in configure_optimizers.
# capstan local --ps 1 --workers 2 -- python lightning_mnist.py
import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import capstan.torch as capstan
from capstan.examples.images import read


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return capstan.DistributedOptimizer(optimizer, self)


parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
arguments = parser.parse_args()
run = capstan.init()
x, y = read("train", arguments.samples)
images = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
loader = DataLoader(
    images,
    batch_size=64,
    sampler=DistributedSampler(images, run.size, run.rank),
)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=1,
    gradient_clip_val=1.0,
    logger=run.rank == 0,
    enable_checkpointing=run.rank == 0,
    enable_progress_bar=run.rank == 0,
)
trainer.fit(model, loader)
if run.rank == 0:
    right = model.layers(images.tensors[0]).argmax(1) == images.tensors[1]
    print(f"accuracy {right.float().mean():.4f}")
