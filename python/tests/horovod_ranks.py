# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_horovod.py do."""

import json
import signal

import frameworks
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


if __name__ == "__main__":
    processes.main(globals())
