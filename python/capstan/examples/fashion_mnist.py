# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on Fashion-MNIST.

capstan local --ps 1 --workers 2 -- python -m capstan.examples.fashion_mnist
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import capstan.torch as capstan


def read(folder: Path, part: str) -> TensorDataset:
    """Images, float32 of shape (n, 1, 28, 28) in 0..1, and classes."""
    images = gzip.open(folder / f"{part}-images-idx3-ubyte.gz").read()
    labels = gzip.open(folder / f"{part}-labels-idx1-ubyte.gz").read()
    x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    y = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return TensorDataset(torch.tensor(x) / 255, torch.tensor(y))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2),  # (n, 16, 14, 14)
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2),  # (n, 32, 7, 7)
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    x, y = data.tensors
    right = sum(
        (model(a).argmax(1) == b).sum().item()
        for a, b in zip(x.split(1000), y.split(1000))
    )
    model.train()
    return right / len(y)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="per rank")
    arguments = parser.parse_args()
    run = capstan.init()
    torch.manual_seed(0)
    model = network()
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model
    )
    loader = DataLoader(
        read(Path(arguments.data), "train"), arguments.batch, shuffle=True
    )
    test = read(Path(arguments.data), "t10k")
    for epoch in run.epochs(arguments.epochs):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            loss.backward()
            correct = (output.argmax(1) == y).sum().item()
            run.report(loss.item(), len(y), correct)
            optimizer.step()
        if run.rank == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy(model, test):.4f}")


if __name__ == "__main__":
    main()
