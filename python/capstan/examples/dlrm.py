# SPDX-License-Identifier: Apache-2.0
"""DLRM (Naumov et al. 2019) on click logs, with its tables on the ps.

capstan local --ps 2 --workers 2 -- python -m capstan.examples.dlrm [FILE ...]

The files are Criteo's: a label, 13 integers and 26 categories in each line,
separated by tabs. Without files, clicks are made up from a planted model.
"""

from __future__ import annotations

import argparse
import glob
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

import capstan.torch as capstan

INTEGERS, CATEGORIES, DIM = 13, 26, 16
Batch = tuple[Tensor, Tensor, Tensor]  # numbers, ids, labels


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rule = {"type": "Adagrad", "params": {"lr": 0.05}}
        self.tables = nn.ModuleList(
            capstan.EmbeddingBag(DIM, "sum", rule=rule)
            for _ in range(CATEGORIES)
        )
        self.bottom = nn.Sequential(
            nn.Linear(INTEGERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU()
        )
        pairs = (CATEGORIES + 1) * CATEGORIES // 2
        self.top = nn.Sequential(
            nn.Linear(DIM + pairs, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        above = torch.triu_indices(CATEGORIES + 1, CATEGORIES + 1, 1)
        self.register_buffer("pairs", above, persistent=False)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = capstan.bags(
            [(t, ids[:, i : i + 1], None, None) for i, t in enumerate(self.tables)]
        )
        vectors = torch.stack([dense, *rows], 1)  # [batch, 27, DIM]
        dots = vectors @ vectors.transpose(1, 2)
        first, second = self.pairs
        return self.top(torch.cat([dense, dots[:, first, second]], 1))[:, 0]


def read(paths: list[str], rank: int, size: int) -> Iterator[Batch]:
    """Batches of every SIZE-th line, again and again."""
    while True:
        for path in paths:
            with open(path) as lines:
                rows = [
                    line.rstrip("\n").split("\t")
                    for number, line in enumerate(lines)
                    if number % size == rank
                ]
            for first in range(0, len(rows) - 1023, 1024):
                cells = np.array(rows[first : first + 1024])
                numbers = np.where(cells[:, 1:14] == "", "0", cells[:, 1:14])
                numbers = np.log1p(np.maximum(numbers.astype(np.float32), 0))
                ids = [
                    [int(cell or "0", 16) for cell in row]
                    for row in cells[:, 14:40]
                ]
                yield (
                    torch.from_numpy(numbers),
                    torch.tensor(ids),
                    torch.from_numpy(cells[:, 0].astype(np.float32)),
                )


def make_up(seed: int) -> Iterator[Batch]:
    random = np.random.default_rng(seed)
    planted = np.random.default_rng(7).normal(
        0, 0.35, (CATEGORIES, 1000)
    )
    while True:
        numbers = random.normal(size=(1024, INTEGERS)).astype(np.float32)
        ids = random.zipf(1.3, (1024, CATEGORIES)) % 1000
        logit = planted[np.arange(CATEGORIES), ids].sum(1) + numbers[:, 0]
        clicks = random.random(1024) < 1 / (1 + np.exp(-logit))
        yield (
            torch.from_numpy(numbers),
            torch.from_numpy(ids),
            torch.from_numpy(clicks.astype(np.float32)),
        )


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve, of scores without ties."""
    rank = np.argsort(np.argsort(scores)) + 1
    ones = labels.sum()
    zeros = len(labels) - ones
    return (rank[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * zeros)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    run = capstan.init()
    torch.manual_seed(1)
    model = Net()
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model
    )
    paths = [path for name in given.files for path in sorted(glob.glob(name))]
    batches = read(paths, run.rank, run.size) if paths else make_up(run.rank)
    scores, labels = [], []
    for step in run.steps(given.steps):
        numbers, ids, clicks = next(batches)
        logits = model(numbers, ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        optimizer.zero_grad()
        loss.backward()
        run.report(loss.item(), len(clicks))
        optimizer.step()
        if step >= given.steps * 3 // 4:  # each before it is learnt
            scores.append(logits.detach().numpy())
            labels.append(clicks.numpy())
    run.close()
    found = auc(np.concatenate(scores), np.concatenate(labels))
    print(f"rank {run.rank}: AUC of the last quarter {found:.4f}")


if __name__ == "__main__":
    main()
