# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_horovod.py do."""

import json
import os
import signal

import frameworks
import numpy as np
import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import capstan.horovod as hvd

PASSES = 2  # backward passes in a step


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(frameworks.INPUTS, 16),
        nn.Tanh(),
        nn.Linear(16, frameworks.CLASSES),
    )


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)


def dataset():
    x, y = (torch.tensor(part) for part in frameworks.samples())
    return TensorDataset(x, y)


def steps_of(net, optimizer, loader, first, last, begin=lambda step: None):
    """Trains, with clipping by the script."""
    for step, (x, y) in enumerate(loader):
        if not first <= step < last:
            continue
        begin(step)
        optimizer.zero_grad()
        for a, b in zip(x.chunk(PASSES), y.chunk(PASSES)):
            loss = nn.functional.cross_entropy(net(a), b)
            (loss / PASSES).backward()
        if isinstance(optimizer, hvd.Deferred):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), frameworks.CLIP)
        optimizer.step()


def report(net):
    found = nn.utils.parameters_to_vector(net.parameters()).tolist()
    print(json.dumps(found), flush=True)


def plain():
    net = network()
    loader = DataLoader(dataset(), frameworks.BATCH)
    steps_of(net, sgd(net), loader, 0, frameworks.STEPS)
    report(net)


def train(steps, save=None, resume=None, pause=None, wrap_first=False, **keys):
    """WRAP_FIRST: rank 0 reads its weights after DistributedOptimizer."""
    hvd.init(**keys)
    net = network(hvd.rank())
    optimizer = plain_optimizer = sgd(net)
    first = 0

    def wrap():
        return hvd.DistributedOptimizer(
            plain_optimizer,
            net.named_parameters(),
            backward_passes_per_step=PASSES,
            gradient_predivide_factor=float(hvd.size()),
        )

    if wrap_first:
        optimizer = wrap()
    if resume:
        first = frameworks.STEPS // 2
        if hvd.rank() == 0:
            saved = torch.load(resume)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if not wrap_first:
        optimizer = wrap()

    def begin(step):
        if hvd.rank() == 1 and step == pause:
            print("pauses", flush=True)
            signal.pause()

    data = dataset()
    loader = DataLoader(
        data,
        frameworks.BATCH // hvd.size(),
        sampler=DistributedSampler(
            data, hvd.size(), hvd.rank(), shuffle=False
        ),
    )
    steps_of(net, optimizer, loader, first, steps, begin)
    if save and hvd.rank() == 0:
        states = {"net": net, "optimizer": optimizer}
        torch.save({k: v.state_dict() for k, v in states.items()}, save)
    report(net)


INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def numbers(dtype, rank):
    """Of RANK; the sum of three ranks is within DTYPE."""
    kind = getattr(torch, dtype)
    random = np.random.default_rng(10 * rank + len(dtype))
    if dtype in INTEGERS:
        limits = torch.iinfo(kind)
        low, high = limits.min // 4, limits.max // 4
        values = random.integers(low, high, 99, np.int64, endpoint=True)
        values[:4] = low, high, high - rank, 20_000_001 % (high + 1)
        return torch.tensor(values).to(kind)
    values = random.standard_normal(99) * 10.0 ** random.integers(-3, 4, 99)
    values[0] = 1 / 3 + rank
    return torch.tensor(values).to(kind)


def start(**keys):
    hvd.init(**keys)
    net = network()
    hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)


def left():
    """Prints sums and means without rank 1, which is killed."""
    start(timeouts={"peer": 2})
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    mine = torch.tensor([float(hvd.rank() + 1)])
    found = [hvd.allreduce(mine), hvd.allreduce(mine, op=hvd.Sum)]
    found.append(hvd.allreduce(mine.long(), op=hvd.Sum))
    found.append(hvd.allreduce(mine.long()))
    print(json.dumps([value.item() for value in found]), flush=True)


def dtypes():
    """Prints sums and means of every type, and what does not fit."""
    start()
    found = {}
    for dtype in INTEGERS + FLOATS:
        mine = numbers(dtype, hvd.rank())
        apart = torch.stack([mine, mine], 1)[:, 0]  # every second place
        total, mean = hvd.allreduce(apart, op=hvd.Sum), hvd.allreduce(mine)
        assert total.dtype == mean.dtype == mine.dtype
        found[dtype] = [total.tolist(), mean.tolist()]
    refused = []
    for wrong in (
        torch.tensor([200], dtype=torch.uint8),
        torch.tensor([2**62]),
        torch.tensor([True]),
        torch.tensor([1j]),
    ):
        try:
            hvd.allreduce(wrong, op=hvd.Sum)
        except hvd.ConfigError as error:
            refused.append(str(error))
    print(json.dumps({"found": found, "refused": refused}), flush=True)


def collectives():
    """Prints what is averaged, added and sent from rank 0."""
    hvd.init()
    net = nn.BatchNorm1d(3)
    net.running_mean += hvd.rank() + 1
    optimizer = hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    found = [net.running_mean.tolist()]
    ones = torch.full((2, 1 << 17), float(hvd.rank()))  # 1 MiB
    mean = hvd.allreduce(ones)
    total = hvd.allreduce(torch.tensor(hvd.rank() + 2), op=hvd.Sum)
    found += [list(mean.shape), mean.unique().tolist(), total.item()]
    found += [hvd.broadcast_object({"text": "x" * 99999 * (1 - hvd.rank())})]
    try:
        hvd.allreduce(torch.zeros((1 << 18) + 1))
    except hvd.ConfigError as error:
        found.append(str(error))
    optimizer.zero_grad()
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    print(json.dumps(found), flush=True)


def early():
    """Collectives before the optimizer is wrapped, and after it."""
    hvd.init()
    rank = hvd.rank()
    hvd.barrier()
    rows = torch.arange(2.0 * (rank + 1)).reshape(-1, 2).bfloat16()
    found = [hvd.allgather(rows).tolist(), hvd.allgather_object({"r": rank})]
    weight = nn.Parameter(torch.full((3,), float(rank)))
    found += [hvd.broadcast(weight, 1).tolist(), weight.tolist()]
    hvd.broadcast_(weight, 1)
    found.append(weight.tolist())
    try:
        hvd.allgather(torch.zeros(1, 2 + rank))
    except hvd.ConfigError as error:
        found.append(str(error))
    net = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(sgd(net), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    found.append(len(hvd.allgather(torch.zeros(1 << 19, 1))))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    processes.main(globals())
