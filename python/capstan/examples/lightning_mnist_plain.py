# SPDX-License-Identifier: Apache-2.0
# A script for Lightning's DDP; lightning_mnist.py is the same with Capstan.
# torchrun --nproc_per_node 2 lightning_mnist_plain.py
import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
arguments = parser.parse_args()
x, y = read("train", arguments.samples)
images = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
loader = DataLoader(images, batch_size=64, shuffle=True)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    gradient_clip_val=1.0,
)
trainer.fit(model, loader)
if trainer.is_global_zero:
    right = model.layers(images.tensors[0]).argmax(1) == images.tensors[1]
    print(f"accuracy {right.float().mean():.4f}")
