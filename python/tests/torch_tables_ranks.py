# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_torch_tables.py do."""

import copy
import json
import time

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


class Words(nn.Module):
    """A mean of rows, and of other rows a sum of bags; of both the rows of
    words 3 are padding."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(DIM, DIM)
        self.words = nn.Embedding(ROWS, DIM, padding_idx=3, sparse=True)
        self.bags = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
        self.fixed = nn.Embedding.from_pretrained(
            torch.arange(ROWS * DIM).view(ROWS, DIM) / 100, sparse=True
        )

    def forward(self, ids):
        rows = self.words(ids) + self.fixed(ids)
        return self.last(rows.mean(1) + self.bags(ids))


WORD_OPTIMIZERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.4),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1),
    "groups": lambda net: torch.optim.Adagrad(
        [
            {"params": [net.last.weight, net.last.bias], "lr": 0.05},
            {"params": [net.words.weight, net.bags.weight], "lr": 0.2},
        ]
    ),
}


def words(steps):
    random = np.random.default_rng(8)
    ids = torch.from_numpy(random.integers(0, ROWS, (steps, BATCH, 4)))
    ids[:, ::2, 0] = 3
    targets = random.standard_normal((steps, BATCH, DIM))
    return ids, torch.from_numpy(targets).float()


def word_step(net, optimizer, ids, targets):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(ids), targets).backward()
    optimizer.step()


def train_words(
    steps, optimizer, rule="auto", load_at=None, schedule=False, reload=None,
    stop=None, pause=0.0, **keys,
):
    """Prints the first and the last state of a model whose sparse tensors are
    tables. Seeds are the ranks': rank 0's rows count. LOAD_AT: a step before
    which the first state is loaded again. SCHEDULE: the rate falls. RELOAD:
    "before" or "after" DistributedOptimizer the state of another model is
    loaded, which is printed as the first one. STOP: the script ends before
    that step. PAUSE: seconds of a step."""
    run = capstan.init(tables="sparse", **keys)
    torch.manual_seed(run.rank)
    net = Words()
    outside = net.words
    torch.manual_seed(77)
    other = {k: v + 1 for k, v in Words().state_dict().items()}
    if reload == "before":
        net.load_state_dict(other)
    wrapped = capstan.DistributedOptimizer(
        WORD_OPTIMIZERS[optimizer](net), net, rule=rule
    )
    if reload == "after":
        net.load_state_dict(other)
    first = {k: v.clone() for k, v in net.state_dict().items()}
    ids, targets = words(steps)
    share = BATCH // run.size
    part = slice(run.rank * share, (run.rank + 1) * share)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(wrapped, 0.9)
    for step in run.steps(steps):
        if step == stop:
            return
        if step == load_at:
            net.load_state_dict(first)
        word_step(net, wrapped, ids[step, part], targets[step, part])
        time.sleep(pause)
        if schedule:
            scheduler.step()
    plain = Words()
    plain.load_state_dict(net.state_dict())  # as torch's own
    assert (outside(ids[0]) == plain.words(ids[0])).all()
    states = [first, plain.state_dict()]
    print(json.dumps([{k: v.tolist() for k, v in s.items()} for s in states]))


def led_words(steps, optimizer, rule):
    """Its chief only coordinates."""
    train_words(steps, optimizer, rule, pause=0.002, **processes.led(50))


def sparse_adam(steps):
    """A table by SparseAdam, and beside it the whole batch in torch; prints
    both. Adam of the ps adds eps elsewhere."""
    run = capstan.init(tables="sparse")
    torch.manual_seed(run.rank)
    nets = [
        nn.Sequential(nn.Embedding(ROWS, DIM, sparse=True), nn.Linear(DIM, 1))
        for _ in range(2)
    ]
    optimizers = [
        torch.optim.SparseAdam([net[0].weight], lr=0.05, eps=1e-15)
        for net in nets
    ]
    capstan.DistributedOptimizer(optimizers[0], nets[0])
    nets[1].load_state_dict(nets[0].state_dict())
    ids, _ = words(steps)
    share = BATCH // run.size
    parts = slice(run.rank * share, (run.rank + 1) * share), slice(BATCH)
    for step in run.steps(steps):
        for net, optimizer, part in zip(nets, optimizers, parts):
            optimizer.zero_grad()
            net(ids[step, part]).square().mean().backward()
            optimizer.step()
    print(json.dumps([net.state_dict()["0.weight"].tolist() for net in nets]))


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
    states = [net.state_dict(), best.state_dict()]
    run.close()
    errors = [reading(file)]
    for bag in net.summed, best.summed:
        try:
            bag(IDS[:, None])
        except capstan.ConfigError as error:
            errors.append(str(error))
    try:
        net.state_dict()
    except capstan.ConfigError as error:
        errors.append(str(error))
    lists = [{k: v.tolist() for k, v in state.items()} for state in states]
    print(json.dumps({"states": lists, "errors": errors}), flush=True)


def pretrained(file, save=False, freeze=False, most=1000):
    """Rows of any ids, and those of bags, which begin with some; the state at
    the end is saved in FILE, or the run begins with that. FREEZE: rows of the
    first are not trained. MOST: of state_dict()."""
    run = capstan.init(state_rows=most)
    torch.manual_seed(run.rank)
    net = nn.ModuleDict(
        {
            "words": capstan.Embedding.from_pretrained(
                torch.randn(ROWS, DIM), freeze, ids=IDS, name="w"
            ),
            "bags": capstan.EmbeddingBag(DIM, "sum", init_range=0),
            "last": nn.Linear(DIM, DIM),
        }
    )
    if not save:
        net.load_state_dict(torch.load(file))
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.01), net
    )
    first = {k: v.tolist() for k, v in net.state_dict().items()}
    for _ in run.steps(3):
        rows = net["words"](IDS[:9]) + net["bags"](IDS[3:12, None])
        optimizer.zero_grad()
        net["last"](rows).square().sum().backward()
        optimizer.step()
    state = net.state_dict()
    if save and run.rank == 0:
        torch.save(state, file)
    last = {k: v.tolist() for k, v in state.items()}
    print(json.dumps([first, last]), flush=True)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory")


def failing(again):
    """A pass fails when rows have left; it is taken AGAIN, or step() follows,
    another step, and one in which nothing else trains; prints the rows and
    those of one pass in each step."""
    capstan.init()
    words = capstan.Embedding(DIM, name="w", init_range=0.0)
    net = nn.ModuleList([words, nn.Linear(DIM, 1)])
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5), net
    )
    for fails in Fails.apply, nn.Identity():
        optimizer.zero_grad()
        try:
            dense = fails(net[1](torch.ones(DIM)))
            (dense + net[0](IDS[:1])).sum().backward()
        except RuntimeError:
            if again:
                net[0](IDS[:1]).sum().backward()
        optimizer.step()
    net[1].requires_grad_(False)
    optimizer.zero_grad()
    net[0](IDS[:1]).sum().backward()
    optimizer.step()
    print(json.dumps([net[0](IDS[:1]).tolist(), [[-1.5] * DIM]]))


def loaded(file):
    """Without a run."""
    print(json.dumps([reading(file)]), flush=True)


def without_optimizer():
    """A bag is used before it has a table."""
    capstan.init()
    capstan.EmbeddingBag(DIM)(IDS[:, None])


if __name__ == "__main__":
    processes.main(globals())
