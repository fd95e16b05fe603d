# SPDX-License-Identifier: Apache-2.0
# horovod_mnist_plain.py with Capstan: the import line is changed.
# capstan local --ps 1 --workers 2 -- python horovod_mnist.py
import argparse

import capstan.horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.01)
arguments = parser.parse_args()

hvd.init()
torch.manual_seed(42)


def dataset(part, count=None):
    x, y = read(part, count)
    return TensorDataset(torch.from_numpy(x)[:, None], torch.from_numpy(y))


train = dataset("train", arguments.samples)
test = dataset("t10k", arguments.samples)
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
test_sampler = DistributedSampler(
    test, num_replicas=hvd.size(), rank=hvd.rank()
)
model = nn.Sequential(
    nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
    nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
    nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(
    model.parameters(), lr=arguments.lr * hvd.size(), momentum=0.5
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), op=hvd.Average
)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


for epoch in range(arguments.epochs):
    model.train()
    sampler.set_epoch(epoch)
    for x, y in DataLoader(train, 64, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    right = loss = 0.0
    for x, y in DataLoader(test, 1000, sampler=test_sampler):
        with torch.no_grad():
            output = model(x)
        loss += nn.functional.cross_entropy(output, y, reduction="sum").item()
        right += (output.argmax(1) == y).sum().item()
    loss = metric_average(loss / len(test_sampler), "avg_loss")
    right = metric_average(right / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {right:.4f}")
