# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on Fashion-MNIST.

capstan local --ps 1 --workers 2 -- python -m capstan.examples.fashion_mnist
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import capstan.torch as capstan
from capstan.examples.images import FOLDER, read


def dataset(part: str, count: int | None, folder: str) -> TensorDataset:
    """Images of shape (count, 1, 28, 28) and classes."""
    x, y = read(part, count, Path(folder))
    return TensorDataset(torch.from_numpy(x)[:, None], torch.from_numpy(y))


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
    parser.add_argument("--data", default=str(FOLDER))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, help="default: all")
    parser.add_argument("--batch", type=int, default=64, help="per rank")
    arguments = parser.parse_args()
    run = capstan.init()
    torch.manual_seed(0)
    model = network()
    optimizer = capstan.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=2e-3), model
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, arguments.epochs
    )
    count, folder = arguments.samples, arguments.data
    loader = DataLoader(
        dataset("train", count, folder), arguments.batch, shuffle=True
    )
    test = dataset("t10k", count, folder)
    for epoch in run.epochs(arguments.epochs):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            loss.backward()
            correct = (output.argmax(1) == y).sum().item()
            run.report(loss.item(), len(y), correct)
            optimizer.step()
        schedule.step()
        if run.rank == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy(model, test):.4f}")


if __name__ == "__main__":
    main()
