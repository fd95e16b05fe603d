# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_torch_tables.py do."""

import copy
import json

import device
import late_gpu
import numpy as np
import processes
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import capstan.torch as capstan

BATCH = 12  # bags of all ranks together, in each step
ROWS, DIM, LONGEST = 40, 3, 5
# The row of index i: far apart, and negative as torch's integers from 32 on.
IDS = torch.from_numpy((np.arange(ROWS, dtype=np.uint64) << 58 | 7).view("i8"))
IDS = IDS + torch.arange(ROWS) * 1_000_003


def data(steps):
    """Of each step and bag: indices of rows, some alike, of which there may be
    none, their weights, and a target [DIM]."""
    random = np.random.default_rng(5)
    lengths = random.integers(0, LONGEST + 1, (steps, BATCH))
    lengths[1, : BATCH // 2] = 0  # rank 0 reads no row
    bags = [
        [torch.from_numpy(random.integers(0, ROWS, n) ** 2 % ROWS) for n in row]
        for row in lengths
    ]
    weights = [
        [torch.from_numpy(random.uniform(-1, 2, n)) for n in row]
        for row in lengths
    ]
    targets = torch.from_numpy(random.standard_normal((steps, BATCH, DIM)))
    return bags, weights, targets


def batch(bags, weights, dtype):
    """Input, offsets and per-sample weights of EmbeddingBag."""
    lengths = torch.tensor([0, *(len(bag) for bag in bags[:-1])])
    return torch.cat(bags), lengths.cumsum(0), torch.cat(weights).to(dtype)


class Net(nn.Module):
    """A weighted sum of rows, whose gradient is doubled, and, of another
    table, a mean, added in place. SCALED: a factor of the weights is
    trained."""

    def __init__(self, summed, averaged, scaled=False):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1)) if scaled else 1
        self.summed, self.averaged = summed, averaged
        self.last = nn.Linear(DIM, DIM)

    def forward(self, ids, offsets, weights, uses=True):
        if not uses:
            return self.last(torch.ones(len(offsets), DIM).to(weights))
        weights = weights * self.scale
        rows = self.summed(ids, offsets, weights)
        if rows.requires_grad:
            rows.register_hook(lambda gradient: 2 * gradient)
        means = self.averaged(ids, offsets)
        means += rows
        return self.last(means)


def train(
    steps,
    rule,
    passes=1,
    staged=False,
    scaled=False,
    rare=False,
    stop=None,
    frozen=False,
    gpus=0,
    **keys,
):
    """Prints the rows before the first step and after the last, and the other
    weights. RULE None: that of the optimiser, SGD. PASSES: backward passes of
    a step. STAGED: in an evaluation nothing is pushed. RARE: every third step
    uses the tables. STOP: the script ends before that step. FROZEN: the tensor
    that is pushed last is, in all steps. GPUS: 1, a late one has all tensors
    of a step."""
    if gpus:
        device.name = "cpu"
    run = capstan.init(seed=4, **keys)
    torch.manual_seed(0)
    net = Net(
        capstan.EmbeddingBag(DIM, "sum", rule=rule, init_range=0.5),
        capstan.EmbeddingBag(DIM, rule=rule, name="means"),
        scaled,
    ).to(device.name)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net
    )
    net.last.bias.requires_grad_(not frozen)
    tables = [net.summed, net.averaged]

    def rows():
        ids = IDS[:, None].to(device.name)
        return [bag(ids).tolist() for bag in tables]

    with torch.no_grad():
        first = rows()
    late = late_gpu.enter(net, gpus) if gpus else None
    bags, weights, targets = data(steps)
    share = BATCH // run.size // passes
    for step in run.steps(steps):
        if step == stop:
            return
        optimizer.zero_grad()
        for number in range(passes):
            begin = (run.rank * passes + number) * share
            part = slice(begin, begin + share)
            ids, offsets, factors = batch(
                bags[step][part], weights[step][part], torch.float32
            )
            uses = not rare or step % 3 == 2
            ids = IDS[ids].to(device.name)
            offsets, factors = offsets.to(device.name), factors.to(device.name)
            target = targets[step, part].float().to(device.name)
            for tensor in (ids, offsets, factors) if late else ():
                late_gpu.put(tensor, 0)
            found = net(ids, offsets, factors, uses)
            loss = nn.functional.mse_loss(found, target)
            if number < passes - 1:
                with run.no_sync():
                    (loss / passes).backward()
            else:
                (loss / passes).backward()
        if staged:
            net.eval()
            net(ids, offsets, factors).sum()
            net.train()
        optimizer.step()
    last = {k: v.tolist() for k, v in net.state_dict().items()}
    net.eval()
    found = {"first": first, "rows": rows(), "last": last}
    if late:
        found["waits"] = late.waits / steps
    print(json.dumps(found))


def reading(file):
    """Rows of a saved model; the error of those who have none."""
    net = torch.load(file, weights_only=False)
    try:
        return net.summed(IDS[:, None]).tolist()
    except capstan.ConfigError as error:
        return str(error)


def copied():
    """Copies of a model are read between steps, in which they change nothing;
    prints their rows beside the run's, and what is said elsewhere."""
    run = capstan.init()
    torch.manual_seed(0)
    bags = [capstan.EmbeddingBag(DIM, "sum", init_range=0.5) for _ in range(2)]
    net = Net(*bags)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net
    )
    best, average = copy.deepcopy(net), AveragedModel(net)
    file = f"net{run.rank}.pt"
    torch.save(net, file)
    ids, offsets = IDS.repeat(2), torch.arange(0, 2 * ROWS, 2)
    weights, found = torch.ones(2 * ROWS), []
    for step in range(4):
        trained = net if step % 2 else best
        with torch.enable_grad():
            trained(ids, offsets, weights).square().sum().backward()
        average.update_parameters(net)
        optimizer.step()
        for other in net, best, average.module, copy.deepcopy(best):
            found.append(other.summed(IDS[:, None]).tolist())
        found.append(reading(file))
    print(json.dumps(found))
    said = [net.state_dict()._metadata["summed"]["rows"], best.state_dict()]
    run.close()
    errors = [reading(file)]
    for bag in net.summed, best.summed:
        try:
            bag(IDS[:, None])
        except capstan.ConfigError as error:
            errors.append(str(error))
    keys = [said[0], list(said[1])]
    print(json.dumps({"said": keys, "errors": errors}), flush=True)


def loaded(file):
    """Without a run."""
    print(json.dumps([reading(file)]), flush=True)


def without_optimizer():
    """A bag is used before it has a table."""
    capstan.init()
    capstan.EmbeddingBag(DIM)(IDS[:, None])


if __name__ == "__main__":
    processes.main(globals())
