# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_torch.py do."""

import contextlib
import copy
import functools
import hashlib
import io
import json
import math
import os
import random
import signal
import time
import warnings
from datetime import timedelta
from pathlib import Path

import device
import late_gpu
import numpy as np
import processes
import torch
import torch.distributed as dist
from numpy_ranks import sockets
from torch import nn
from torch.distributed import init_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

import capstan.torch as capstan
from capstan import init as numpy_init
from capstan import torch_exchange
from capstan.torch_rules import Rule

BATCH = 16  # of all ranks together
INPUTS, CLASSES = 8, 4


class Tied(nn.Module):
    """One matrix is used twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(INPUTS, INPUTS)
        self.outer = nn.Linear(INPUTS, INPUTS)
        self.outer.weight = self.inner.weight
        self.last = nn.Linear(INPUTS, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.outer(torch.tanh(self.inner(x)))))


class Detached(nn.Module):
    """A matrix of a whole message, read again after it has its gradient."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x):
        weight = self.second.weight.detach()
        inner = nn.functional.linear(torch.tanh(self.first(x)), weight)
        return self.second(torch.tanh(inner))


class Branches(nn.Module):
    """Each batch uses one of two layers, a third is never used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(INPUTS, CLASSES) for _ in range(3)
        )
        self.branch = 0

    def forward(self, x):
        return self.layers[self.branch](x)


class Formats(nn.Module):
    """A convolution and buffers, CHANNELS_LAST and transposed or not, and a
    matrix in two PARTS, whose rows take turns in memory or not."""

    def __init__(self, channels_last, parts):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.register_buffer("scale", torch.rand(2, 6, 3, 3) + 0.5)
        self.register_buffer("order", torch.randperm(54).view(6, 9))
        self.inner = nn.Linear(54, 6)
        weight = torch.randn(CLASSES, 6) / 4
        both = [weight[:, :2], weight[:, 2:]]
        both = both if parts else [part.contiguous() for part in both]
        self.left, self.right = (nn.Parameter(part) for part in both)
        if channels_last:
            self.to(memory_format=torch.channels_last)
            self.order = self.order.t().contiguous().t()
            transposed = self.inner.weight.detach().t().contiguous().t()
            self.inner.weight = nn.Parameter(transposed)

    def forward(self, x):
        x = self.norm(self.conv(x.view(-1, 2, 2, 2))) * self.scale.sum(0)
        x = torch.tanh(self.inner(x.flatten(1)[:, self.order.flatten()]))
        return x[:, :2] @ self.left.t() + x[:, 2:] @ self.right.t()


class Rare(nn.Module):
    """One layer is used in each step, two take turns, one is used from step 10
    on, in that step by rank 0 alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(INPUTS, CLASSES) for _ in range(4)
        )

    def forward(self, x, step, rank):
        used = [0, 1 + step % 2]
        if step > 9 or (step == 9 and rank == 0):
            used.append(3)
        return sum(self.layers[i](x) for i in used)


class Taught(nn.Module):
    """With a running mean of its weights, which autograd knows nothing of."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(INPUTS, CLASSES)
        self.mean = nn.Linear(INPUTS, CLASSES).requires_grad_(False)

    def forward(self, x):
        return self.own(x) + self.mean(x)

    def teach(self):
        pairs = zip(self.mean.parameters(), self.own.parameters())
        for mean, own in pairs:
            mean.data.lerp_(own.data, 0.1)


class Running(nn.Module):
    """Its statistics are other tensors after each forward pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.count = self.count + 1
        return x - self.mean


class Still(nn.Identity):
    """Has a buffer that no step changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("still", torch.ones(1))


class Typed(nn.Module):
    """Its buffers are of types that the run has as others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(INPUTS, CLASSES)
        order = torch.randperm(INPUTS, dtype=torch.int32)
        self.register_buffer("mask", torch.rand(INPUTS) > 0.4)
        self.register_buffer("order", order)
        self.register_buffer("scale", torch.rand(INPUTS).half())
        self.register_buffer("count", torch.zeros((), dtype=torch.int16))
        self.register_buffer("nothing", torch.zeros(0))  # each rank's own

    def forward(self, x):
        self.count += 1
        x = x * self.mask * self.scale.float()
        return self.layer(x[:, self.order.long()])


class Checkpointed(nn.Module):
    """Reentrant checkpoints: a backward pass of its own for each layer of
    NESTED, which are used one after the other."""

    def __init__(self, nested):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(INPUTS, INPUTS if i < 2 else CLASSES) for i in range(3)
        )
        self.nested = nested

    def forward(self, x):
        x = x.requires_grad_()
        for i in self.nested:
            x = torch.tanh(
                checkpoint(self.layers[i], x, use_reentrant=True)
            )
        return x if 2 in self.nested else self.layers[2](x)


def model_of(name, seed):
    """The first weights of all processes."""
    return built(name, seed).to(device.name)


def built(name, seed):
    torch.manual_seed(seed)
    if name == "tied":
        return Tied()
    if name == "detached":
        return Detached()
    if name == "branches":
        return Branches()
    if name == "rare":
        return Rare()
    if name in ("formats", "channels_last", "row_major", "either"):
        odd = name == "either" and seed % 2 == 1
        parts = name == "formats" or odd
        return Formats(parts or name == "channels_last", parts)
    if name.startswith("nested"):
        return Checkpointed([int(i) for i in name.removeprefix("nested")])
    if name == "scripted":
        return torch.jit.script(built("norm", seed))
    if name == "taught":
        return Taught()
    if name == "typed":
        return Typed()
    if name == "running":
        return nn.Sequential(Running(), nn.Linear(INPUTS, CLASSES))
    norm = [nn.BatchNorm1d(16)] if name == "norm" else []
    model = nn.Sequential(
        nn.Linear(INPUTS, 16), *norm, nn.Tanh(), nn.Linear(16, CLASSES)
    )
    if name == "frozen":
        model[0].weight.requires_grad_(False)
    return model


def data(steps):
    """Inputs (steps, BATCH, INPUTS) and classes (steps, BATCH)."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(steps, BATCH, INPUTS, generator=generator)
    y = torch.randint(CLASSES, (steps, BATCH), generator=generator)
    return x.to(device.name), y.to(device.name)


def optimizer_of(name, net, settings, split=False):
    """SPLIT: biases are a group with another rate and no decay."""
    parameters = list(net.parameters())
    if split:
        parameters = [
            {"params": [p for p in parameters if p.dim() > 1]},
            {
                "params": [p for p in parameters if p.dim() == 1],
                "lr": settings["lr"] / 2,
                "weight_decay": 0,
            },
        ]
    return getattr(torch.optim, name)(parameters, **settings)


def alone(steps, plain=False, wraps=()):
    """Trains STEPS without the others, and prints how many; ranks of WRAPS wrap
    the optimiser before. PLAIN: the run is not that of capstan.torch."""
    run = numpy_init() if plain else capstan.init()
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if run.rank in wraps:
        capstan.DistributedOptimizer(optimizer, net)
    x, y = data(1)
    for step in range(steps):
        print(json.dumps([step]), flush=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[0]), y[0]).backward()
        optimizer.step()
    optimizer = capstan.DistributedOptimizer(optimizer, net, rule="worker")
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x[0]), y[0]).backward()
    optimizer.step()


def beside(steps, same=False, local=False, **keys):
    """STEPS of an optimiser that is not the run's: with SAME its parameters
    are; else it takes turns with the run's, LOCAL as each rank's own."""
    run = capstan.init(**keys)
    net, other = model_of("mlp", 0), model_of("mlp", 1)
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = capstan.DistributedOptimizer(made, net)
    kind = torch.optim.Adagrad  # of which a text tells
    beside = kind((net if same else other).parameters(), lr=0.1)
    x, y = data(1)
    for step in range(steps):
        print(json.dumps([step]), flush=True)
        with run.no_sync() if local else contextlib.nullcontext():
            beside.zero_grad()
            output = (net if same else other)(x[0])
            nn.functional.cross_entropy(output, y[0]).backward()
            beside.step()
        if not same:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[0]), y[0]).backward()
            optimizer.step()


def last(rule, steps):
    """Prints a number of the weights at the end, and after all that was sent."""
    run = capstan.init(strategy={"staleness": "inf"})
    net = model_of("mlp", 0)
    made = torch.optim.SGD(net.parameters(), lr=0.05)
    optimizer = capstan.DistributedOptimizer(made, net, rule)
    x, y = data(2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[run.rank]), y[run.rank]).backward()
        optimizer.step()
    found = [state(net)]
    run.barrier()
    optimizer.zero_grad()
    optimizer.step()
    print(json.dumps([*found, state(net)]))


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam's step in proportion to the norm of the weights."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, group["lr"])

    def change(self, p, rate):
        state = self.state[p]
        if not state:
            state.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
        state["m"].lerp_(p.grad, 0.1)
        state["v"].lerp_(p.grad**2, 0.001)
        step = state["m"] / (state["v"].sqrt() + 1e-6) + 0.01 * p
        p.data.add_(step, alpha=-rate * float(p.norm() / step.norm()))


class Lookahead(torch.optim.SGD):
    pass


class Slow(torch.optim.SGD):
    """It goes on from weights of its own."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("slow", p.detach().clone())
        super().step(closure)


class Count(torch.optim.Optimizer):
    """Adds 1 to all weights."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.add_(1)
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1


OWN = {kind.__name__: kind for kind in (Lamb, Lookahead, Slow)}


def changes(
    steps,
    strategy,
    optimizer,
    settings,
    rule="worker",
    bad=None,
    habit="",
    model="",
    gpus=0,
):
    """Trains with staleness as HABIT says, beside plain torch; prints how far
    away from it this ends, relative to its norm. A NaN is in a gradient in
    step BAD. GPUS: the model is spread over so many late ones."""
    if gpus:
        device.name = "cpu"
    skips = habit == "skips"
    run = capstan.init(strategy=strategy, on_nan="skip" if skips else None)
    first = Still if skips else functools.partial(nn.BatchNorm1d, INPUTS)
    nets = [
        model_of(model, 0)
        if model
        else nn.Sequential(first(), model_of("mlp", 0))
        for _ in range(2)
    ]
    if gpus:
        late_gpu.enter(nets[0], gpus)
    for net in nets if optimizer == "Muon" else ():  # it takes matrices only
        for p in net.parameters():
            p.requires_grad_(p.dim() == 2)
    plain = [own_optimizer(optimizer, net, settings) for net in nets]
    plain[0] = capstan.DistributedOptimizer(plain[0], nets[0], rule=rule)
    rates = [torch.optim.lr_scheduler.StepLR(rule, 50) for rule in plain]
    scales = habit == "scales"
    scalers = [torch.amp.GradScaler("cpu") if scales else None for _ in plain]
    x, y = data(steps)
    skipped = [bad] if scales else []
    for step in range(steps):
        for net, own, rate, scaler in zip(nets, plain, rates, scalers):
            changes_step(net, own, scaler, x[step], y[step], step == bad, habit)
            rate.step()
        if step == 20 and habit == "loads":
            nets[0].load_state_dict(nets[0].state_dict())  # harmless
        if step == 30 and habit == "loads":
            nets[0][1].load_state_dict(model_of("mlp", 1).state_dict())
    found, expected = (
        torch.cat([v.flatten().float() for v in net.state_dict().values()])
        for net in nets
    )
    assert run.position.step == steps - len(skipped), run.position
    away = float((found - expected).norm() / expected.norm())
    found = {"distance": away, "updates": run.position.updates}
    print(json.dumps(found), flush=True)


def count(steps, staleness, checkpoint, seconds=0.0):
    """Each step of each rank adds 1; prints the weights at the start, the step
    of the run and the steps in the optimiser's state, and takes SECONDS for a
    step."""
    run = capstan.init(
        strategy={"staleness": staleness}, steps=steps, checkpoint=checkpoint
    )
    net = nn.Linear(INPUTS, 300)
    for p in net.parameters():
        p.data.zero_()
    optimizer = capstan.DistributedOptimizer(Count(net.parameters()), net)
    weights = {v for p in net.parameters() for v in p.flatten().tolist()}
    own = {state["steps"] for state in optimizer.state.values()}
    found = [sorted(weights), run.position.step, sorted(own)]
    print(json.dumps(found), flush=True)
    for step in range(1 << 20):
        time.sleep(seconds)
        optimizer.step()
        print("step", step, flush=True)


def own_optimizer(name, net, settings):
    kind = OWN.get(name) or getattr(torch.optim, name)
    return kind([p for p in net.parameters() if p.requires_grad], **settings)


def changes_step(net, optimizer, scaler, x, y, bad, habit):
    """Accumulates, clips or scales, and takes a step; BAD: with a NaN."""
    half = BATCH // 2
    optimizer.zero_grad()
    for rows in (slice(half), slice(half, None)):
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows]) / 2
        (scaler.scale(loss) if habit == "scales" else loss).backward()
    if bad:
        net[1][0].weight.grad[0, 0] = torch.nan
    if habit == "scales":
        scaler.unscale_(optimizer)
    if not bad:
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    if habit == "skips" and bad and not isinstance(optimizer, Rule):
        return
    if habit == "scales":
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def complete(checkpoint, rule):
    """A loop that does not ask where the run is."""
    capstan.init(steps=6, checkpoint=checkpoint)
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net, rule=rule
    )
    x, y = data(1)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[0]), y[0]).backward()
        optimizer.step()
        print("a step", flush=True)
    print("after the loop", flush=True)


def state(model):
    return {k: v.tolist() for k, v in model.state_dict().items()}


def train(
    steps,
    model="mlp",
    optimizer="SGD",
    settings=None,
    set_to_none=True,
    passes=1,
    do=None,
    lazy=False,
    rule="server",
    decay=False,
    split=False,
    own_clip=None,
    toggles=(),
    until=None,
    gradients=None,
    counts=False,
    short=(),
    gpus=0,
    hooks=False,
    **keys,
):
    """Trains and prints the first state and the last; DO names what to do in
    step 3. HOOKS: autograd's are taken, as for a larger model. UNTIL: the step at which it leaves. GRADIENTS "swapped": they are
    in memory of the other order than their parameters. TOGGLES freeze
    parameters and let them train. OWN_CLIP: the script clips the gradients.
    DECAY "before": the scheduler is made before DistributedOptimizer. COUNTS:
    the optimiser counts backward passes, in place of no_sync(). Steps in SHORT
    have one. GPUS: the model is spread over so many late ones."""
    settings = settings or {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    if gpus:
        device.name = "cpu"
    if hooks:
        torch_exchange.ONE_MESSAGE = 0
    run = capstan.init(**keys)
    net = model_of(model, run.rank)
    late = late_gpu.enter(net, gpus) if gpus else None
    plain = optimizer_of(optimizer, net, settings, split)
    scheduler_of = torch.optim.lr_scheduler.StepLR
    scheduler = scheduler_of(plain, 5) if decay == "before" else None
    counted = []
    plain.register_step_post_hook(lambda *_: counted.append(1))
    counted_passes = passes if counts else 1
    wrapped = capstan.DistributedOptimizer(
        plain,
        net,
        rule=rule,
        lazy=lazy,
        backward_passes_per_step=counted_passes,
    )
    first = state(net)
    if decay and not scheduler:
        scheduler = scheduler_of(wrapped, 5)
    x, y = data(steps)
    share = BATCH // run.size
    last_step, begun = until or steps, run.position.step
    for p in net.parameters() if gradients == "swapped" else ():
        swapped = torch.zeros(p.shape[::-1], device=p.device)
        p.grad = swapped.permute(*range(p.dim())[::-1])
    for step in run.steps(last_step):
        if model == "branches":
            net.branch = (step + run.rank) % 2
        toggle(net, step, toggles)
        wrapped.zero_grad(set_to_none)
        used = 1 if step in short else passes
        begin, part = run.rank * share, share // used
        for i in range(used):
            rows = slice(begin + i * part, begin + (i + 1) * part)
            sends = counts or i + 1 == used
            with contextlib.nullcontext() if sends else run.no_sync():
                with run.no_sync():  # within another
                    found = net(x[step, rows])
                loss = nn.functional.cross_entropy(found, y[step, rows])
                (loss / used).backward()
        if own_clip and step in short:
            wrapped.synchronize()
        if own_clip:
            nn.utils.clip_grad_norm_(net.parameters(), own_clip)
        if step == 3 and do and run.rank == 1:
            globals()[do](run, net, wrapped, loss)
        run.report(loss.item(), share)
        wrapped.step()
        if model == "taught":
            net.teach()
            wrapped.state_dict()  # by rule server it waits
        if scheduler:
            scheduler.step()
    assert len(counted) == last_step - begun, counted
    assert run.position.step == last_step, run.position
    found = {"first": first, "last": state(net)}
    if late:
        found["waits"] = late.waits / last_step
    print(json.dumps(found), flush=True)


def keeps(steps, checkpoint):
    """Changes what is kept between backward() and step(); prints the run's step
    and what was kept each time."""
    run = capstan.init(checkpoint={"dir": checkpoint, "every_steps": 1})
    net = model_of("mlp", 0)
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = capstan.DistributedOptimizer(made, net, rule="server")
    found, done = [], [0]

    class Counted:
        def state_dict(self):
            found.append([run.position.step, done[0]])
            return {"done": done[0]}

        def load_state_dict(self, state):
            done[0] = state["done"]

    run.keep(Counted())
    x, y = data(steps)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[step]), y[step]).backward()
        done[0] += 1
        optimizer.step()
    print(json.dumps(found), flush=True)


def adversarial(steps, syncs=True, **keys):
    """In each backward pass weights are others, of a rank's own, as FGM's;
    prints the weights at first and after each step, and the warnings. SYNCS:
    backward() sends."""
    run = capstan.init(**keys)
    net = model_of("mlp", 0)
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = capstan.DistributedOptimizer(made, net, rule="worker")
    x, y = data(6)
    print(json.dumps(state(net)), flush=True)
    with warnings.catch_warnings(record=True) as found:
        for step in range(steps):
            own = [p.detach().clone() for p in net.parameters()]
            for p in net.parameters():
                p.data.add_(run.rank + 1)
            optimizer.zero_grad()
            with contextlib.nullcontext() if syncs else run.no_sync():
                nn.functional.cross_entropy(net(x[step]), y[step]).backward()
            for p, weights in zip(net.parameters(), own):
                p.data.copy_(weights)
            optimizer.step()
            print(json.dumps(state(net)), flush=True)
    run.close()
    print(json.dumps([str(w.message) for w in found]))


class Anew(nn.Module):
    """Buffers that are assigned anew: one that the script has elsewhere, one
    that is not saved, and one that grows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), -1.0))
        self.register_buffer("own", torch.zeros(4), persistent=False)
        self.register_buffer("memory", torch.zeros(1))
        self.first = self.scale
        self.layer = nn.Linear(INPUTS, CLASSES)


def anew(steps, rule):
    """Assigns in each step; prints what each step makes of it."""
    run = capstan.init()
    net = Anew()
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = capstan.DistributedOptimizer(made, net, rule=rule)
    x, y = data(steps)
    for step in range(1, steps):
        held = net.scale = torch.full((4,), float(run.rank + step))
        net.own = torch.full((4,), float(run.rank))
        net.memory = torch.full((step + 1,), float(run.rank))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net.layer(x[step]), y[step])
        loss.backward()
        optimizer.step()
        optimizer.state_dict()  # by rule server it waits
        tensors = net.scale, held, net.first, net.own, net.memory
        print(json.dumps([t.tolist() for t in tensors]), flush=True)


def own_writes(steps, rule, gpus=0):
    """Writes into frozen weights past autograd; prints after each step whether
    they are as written, and at last what rank 0 and the others have."""
    run = capstan.init()
    net = nn.Sequential(nn.Linear(INPUTS, 999), nn.Linear(999, CLASSES))
    frozen = net[0].requires_grad_(False)
    made = torch.optim.SGD(net[1].parameters(), lr=0.1)
    if gpus:
        late_gpu.enter(net, gpus)
    optimizer = capstan.DistributedOptimizer(made, net, rule=rule)
    x, y = data(steps)
    expected = frozen.weight.detach().cpu().clone()
    found = []
    for step in range(steps):
        write_frozen(frozen, step)
        write_expected(expected, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[step]), y[step]).backward()
        optimizer.step()
        optimizer.state_dict()  # by rule server it waits
        found.append(torch.equal(frozen.weight.detach().cpu(), expected))
    if run.rank == 0:  # of the others' only what has been found is other
        frozen.weight.data.add_(1)
    nn.functional.cross_entropy(net(x[0]), y[0]).backward()
    optimizer.step()
    found.append(torch.equal(frozen.weight.detach().cpu(), expected + 1))
    print(json.dumps(found), flush=True)


def write_frozen(frozen, step):
    """As a teacher's moving average, of one element, of rows, and anew."""
    data = frozen.weight.data
    if step % 4 == 0:
        frozen.weight.data = data * 0.5 + 0.5
    elif step % 4 == 1:
        data[-1, -1] += 1
    elif step % 4 == 2:
        data[step::9] += 1
    else:
        made = nn.Parameter(data * 2, requires_grad=False)
        gpu = late_gpu.gpu_of(data)
        frozen.weight = made if gpu is None else late_gpu.put(made, gpu)


def write_expected(weight, step):
    if step % 4 == 0:
        weight.mul_(0.5).add_(0.5)
    elif step % 4 == 1:
        weight[-1, -1] += 1
    elif step % 4 == 2:
        weight[step::9] += 1
    else:
        weight.mul_(2)


def lazy_copies(steps):
    """Copies that are made while a step's weights are under way; prints whether
    each has the model's."""
    run = capstan.init()
    net = nn.Sequential(nn.Linear(INPUTS, 200000), nn.Linear(200000, CLASSES))
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    wrapped = capstan.DistributedOptimizer(plain, net, lazy=True)
    x, y = data(steps)
    ways, found = [copy.deepcopy, saved_and_loaded], []
    for step in range(steps):
        wrapped.zero_grad()
        nn.functional.cross_entropy(net(x[step]), y[step]).backward()
        wrapped.step()
        part = ways[step % 2](net[0])
        other = ways[step % 2](net)
        with torch.no_grad():
            found.append(torch.equal(other(x[0]), net(x[0])))
            found.append(torch.equal(part.weight, net[0].weight))
    run.close()
    with torch.no_grad():
        found.append(torch.equal(other(x[0]), net(x[0])))
    print(json.dumps(found), flush=True)


def saved_and_loaded(made):
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def toggle(net, step, toggles):
    """Of (step, parameter, does it train) of TOGGLES those of STEP."""
    for when, name, trains in toggles:
        if when == step:
            net.get_parameter(name).requires_grad_(trains)


def wrapped_as(how, steps, checkpoint, rule="server"):
    """Trains in a model that is wrapped as HOW says; prints the weights that
    it begins with, and the last."""
    run = capstan.init(steps=steps, checkpoint=checkpoint)
    net = nn.Sequential(
        nn.Linear(INPUTS, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
    )
    net.module = nn.Linear(CLASSES, CLASSES)
    model = {
        "plain": lambda: net,
        "compiled": lambda: torch.compile(net, backend="eager"),
        "parallel": lambda: torch.compile(
            nn.DataParallel(net), backend="eager"
        ),
        "part": lambda: net,
    }[how]()
    if how == "part":
        net[0] = torch.compile(net[0], backend="eager")
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), model, rule=rule
    )
    weights = [p.flatten().tolist() for p in net.parameters()]
    print(json.dumps(weights), flush=True)
    x, y = data(steps)
    for step in run.steps(steps):
        step_of(model, optimizer, x[step], y[step])
    weights = [p.flatten().tolist() for p in net.parameters()]
    print(json.dumps(weights), flush=True)


def compiled(steps, rule, backend, **keys):
    """Steps of which the model, the backward pass or all is compiled, beside
    plain torch; prints the weights of both."""
    capstan.init(**keys)
    nets = net, plain = model_of("mlp", 0), model_of("mlp", 0)
    own, other = (torch.optim.SGD(n.parameters(), 0.1, 0.9) for n in nets)
    own = capstan.DistributedOptimizer(own, net, rule)
    compiles = functools.partial(torch.compile, backend=backend)
    model, whole = compiles(net), compiles(step_of)

    @compiles
    def backward(x, y):
        nn.functional.cross_entropy(net(x), y).backward()

    x, y = data(steps)
    for step in range(steps):
        batch = x[step], y[step]
        step_of(plain, other, *batch)
        if step % 3 == 0:
            step_of(model, own, *batch)
        elif step % 3 == 1:
            own.zero_grad()
            backward(*batch)
            own.step()
        else:
            whole(net, own, *batch)
    print(json.dumps([state(net), state(plain)]))


def thaws(rule):
    """Rank 1 lets a parameter train that was frozen; prints what was sent of
    the step that ends the run."""
    run = capstan.init()
    net = model_of("frozen", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net, rule=rule
    )
    x, y = data(9)
    for step in range(9):
        if step == 3 and run.rank == 1:
            net.requires_grad_(True)
        try:
            step_of(net, optimizer, x[step], y[step])
        except capstan.ConfigError:
            print(json.dumps([step, len(run._pushed)]))
            raise


def gan_steps(net, optimizer, steps):
    """A generator, net[0], and a discriminator take turns; what was generated
    before the discriminator's step is used after it."""
    x, y = data(steps)
    loss = nn.functional.cross_entropy
    for step in range(steps):
        made = net[0](x[step])
        optimizer.zero_grad()
        loss(net[1](made.detach()), y[step]).backward()
        optimizer.step()
        optimizer.zero_grad()
        net[1].requires_grad_(False)
        (-loss(net[1](made), y[step])).backward()
        optimizer.step()
        net[1].requires_grad_(True)


def gan_of(settings):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 16))
    net = nn.Sequential(made, nn.Linear(16, CLASSES))
    return net, optimizer_of("SGD", net, settings)


def gan(steps, settings):
    """All ranks have the same batches; prints the last state."""
    capstan.init()
    net, plain = gan_of(settings)
    optimizer = capstan.DistributedOptimizer(plain, net)
    gan_steps(net, optimizer, steps)
    print(json.dumps(state(net)))


def spawns(ps, size, name, **arguments):
    """Starts SIZE ranks of the function NAME itself, of which PS are ps."""
    port = processes.free_port()
    arguments = ps, size, port, name, arguments
    torch.multiprocessing.spawn(spawned, arguments, size)


def spawned(rank, ps, size, port, name, arguments):
    os.environ.update(
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(size),
        CAPSTAN_NUM_PS=str(ps),
    )
    globals()[name](**arguments)


def persistent(epochs):
    """With workers of a DataLoader that stay; prints what each epoch has seen,
    and how many workers there were."""
    run = capstan.init()
    net = model_of("mlp", 0)
    made = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(made, net, rule="worker")
    x, seen = torch.arange(20.0)[:, None].expand(-1, INPUTS), []
    samples = TensorDataset(x, torch.zeros(20, dtype=torch.int64))
    loader = DataLoader(
        samples,
        2,
        sampler=DistributedSampler(samples),
        num_workers=2,
        persistent_workers=True,
    )
    workers = set()
    for epoch in run.epochs(epochs):
        loader.sampler.set_epoch(epoch)
        seen.append([])
        for x, y in loader:
            seen[-1] += x[:, 0].tolist()
            workers |= {w.pid for w in loader._iterator._workers}
            step_of(net, optimizer, x.to(device.name), y.to(device.name))
    print(json.dumps([seen, len(workers)]))


def several(cases):
    """Trains each of CASES in a run of its own."""
    for case in cases:
        train(keep_env=True, **case)
        capstan.current().close()


def arguments(cases):
    """Trains each of CASES in a run of its own, unless it is refused."""
    for case in cases:
        try:
            train(keep_env=True, **case)
        except capstan.ConfigError as error:
            print(json.dumps({"refused": str(error)}), flush=True)
            capstan.current().fail("refused")
        else:
            capstan.current().close()


def writes(where, what, of, how="data", **keys):
    """Rank 1 writes an element or all of the parameter OF, or of gradients, in
    each step, before backward() or before step(); prints the steps until it was
    found."""
    run = capstan.init(**keys)
    net = nn.Sequential(
        nn.Linear(INPUTS, 512), nn.Linear(512, 256), nn.Linear(256, 512)
    )
    if how == "columns":
        for layer in net:
            columns = layer.weight.detach().t().contiguous().t()
            layer.weight = nn.Parameter(columns)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 1e-6), net
    )
    x = torch.randn(2, INPUTS)

    def write():
        if what == "clamp":
            for weight in net.parameters():
                weight.data.clamp_(-0.01, 0.01)
            return
        if what == "gradients":
            for layer in net:
                layer.weight.grad.data.clamp_(-1e-9, 1e-9)
            return
        weight = net.get_parameter(of)
        weight = weight.data if how == "data" else weight.detach().numpy()
        weight[(200, 5) if what == "element" else ...] += 1

    for step in range(1, 1000):
        optimizer.zero_grad()
        if where == "backward" and run.rank == 1:
            write()
        net(x).sum().backward()
        if where == "step" and run.rank == 1:
            write()
        try:
            optimizer.step()
        except capstan.ConfigError:
            print(json.dumps(step))
            raise


def clip(run, net, optimizer, loss):
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)


def rate(run, net, optimizer, loss):
    optimizer.param_groups[0]["lr"] /= 10


def other_rule():
    run = capstan.init()
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    rule = "worker" if run.rank else "server"
    capstan.DistributedOptimizer(optimizer, net, rule=rule)


def write(run, net, optimizer, loss):
    net[0].weight.data.mul_(2)


def take_out(run, net, optimizer, loss):
    del optimizer.param_groups[0]["params"][0]


def put_in(run, net, optimizer, loss):
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))


def clear_state(run, net, optimizer, loss):
    optimizer.state.clear()


def set_state(run, net, optimizer, loss):
    optimizer.state = {}


def read_state(run, net, optimizer, loss):
    optimizer.state[net[0].weight]["momentum_buffer"].zero_()


def use_state(run, net, optimizer, loss):
    """Each use is refused, but those of torch and of frameworks."""
    weight = net[0].weight
    for use in (
        lambda state: state.get(weight),
        lambda state: weight in state,
        lambda state: state.__setitem__(weight, {}),
        lambda state: state.setdefault(weight, {}),
        lambda state: state.update({weight: {}}),
        lambda state: state.pop(weight, None),
        lambda state: list(state.items()),
        list,
        len,
    ):
        try:
            use(optimizer.state)
        except capstan.ConfigError as error:
            refused = error
        else:
            raise AssertionError(use)
    raise refused


def copy_optimizer(run, net, optimizer, loss):
    copy.deepcopy(optimizer)


def zero_state(run, net, optimizer, loss):
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


def closures(steps, checkpoint=None, **settings):
    """LBFGS, which looks at the loss; prints the first state and the last."""
    run = capstan.init(checkpoint=checkpoint)
    net = model_of("mlp", run.rank)
    made = torch.optim.LBFGS(net.parameters(), **settings)
    optimizer = capstan.DistributedOptimizer(made, net)
    first = state(net)
    share = BATCH // run.size
    rows = slice(run.rank * share, (run.rank + 1) * share)
    closures_steps(net, optimizer, steps, rows)
    print(json.dumps({"first": first, "last": state(net)}))


def closures_steps(net, optimizer, steps, rows):
    x, y = data(steps)
    for step in range(steps):

        def closure(step=step):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[step, rows]), y[step, rows])
            loss.backward()
            return loss.double() if step % 2 else loss.item()

        found = optimizer.step(closure)
        assert getattr(found, "dtype", float) is (float, torch.float64)[step % 2]


class Sharp(torch.optim.SGD):
    """SAM: the script calls both parts of a step."""

    @torch.no_grad()
    def first_step(self):
        self.moved = {}
        for p in self.param_groups[0]["params"]:
            self.moved[p] = 0.05 * p.grad / p.grad.norm()
            p.add_(self.moved[p])

    @torch.no_grad()
    def second_step(self):
        for p, moved in self.moved.items():
            p.sub_(moved).sub_(p.grad, alpha=0.1)


def sharp(steps, **keys):
    """Each step has two passes, the second with other weights; prints how far
    from plain torch's with both ranks' samples it ends."""
    run = capstan.init(**keys)
    nets = [model_of("mlp", 0) for _ in range(2)]
    made = [Sharp(net.parameters(), lr=0.1) for net in nets]
    made[0] = capstan.DistributedOptimizer(made[0], nets[0], rule="worker")
    share = BATCH // run.size
    rows = slice(run.rank * share, (run.rank + 1) * share)
    x, y = data(steps)
    for step in range(steps):
        for net, own, part in zip(nets, made, (rows, slice(None))):
            for ends in own.first_step, own.second_step:
                own.zero_grad()
                found = net(x[step, part])
                nn.functional.cross_entropy(found, y[step, part]).backward()
                ends()
    found, expected = (
        torch.cat([p.detach().flatten() for p in net.parameters()])
        for net in nets
    )
    print(json.dumps(float((found - expected).norm() / expected.norm())))


def again(run, net, optimizer, loss):
    net(torch.ones(2, INPUTS, device=device.name)).sum().backward()


def zero_later(run, net, optimizer, loss):
    optimizer.register_step_post_hook(
        lambda *_: net.zero_grad(set_to_none=False)
    )


def drop(run, net, optimizer, loss):
    net.zero_grad()


def replace(run, net, optimizer, loss):
    net[0].weight.data = net[0].weight.data.clone()


def share(run, net, optimizer, loss):
    net.share_memory()


def send(run, net, optimizer, loss):
    torch.multiprocessing.SimpleQueue().put(net.state_dict())


def resize(run, net, optimizer, loss):
    net[0].weight.untyped_storage().resize_(0)


def assign(run, net, optimizer, loss):
    found = {k: v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(found, assign=True)


def sent(rule):
    """Memory that is shared before the run is written by it, and other memory
    may be shared after it; prints whether another process has the weights."""
    run = capstan.init()
    nets = net, other = model_of("norm", 0), model_of("mlp", 0)
    net.share_memory()
    model = nn.ModuleDict({"net": net, "other": other})
    made = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(made, model, rule)
    for x, y in zip(*data(3)):
        optimizer.zero_grad()
        sum(nn.functional.cross_entropy(n(x), y) for n in nets).backward()
        optimizer.step()
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(net.state_dict())
    found, copied = queue.get(), state(other)
    assert all(torch.equal(v, found[k]) for k, v in net.state_dict().items())
    run.close()
    print(json.dumps(state(other.share_memory()) == copied))


def without_group(call):
    """Calls torch.distributed's CALL where init() has made no group."""
    capstan.init(process_group=False)
    calls = {
        "barrier": dist.barrier,
        "all_reduce": lambda: dist.all_reduce(torch.ones(2)),
        "init": lambda: dist.init_process_group("gloo"),
        "ddp": lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1)),
        "own": own_group,
    }
    calls[call]()


def own_group():
    """A group that the script makes itself has its own errors."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.broadcast(torch.ones(2), 5)


def wrong_group(call):
    """What a script's own calls do once init() has made the group."""
    if call == "before":
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    run = capstan.init()
    if call == "before":
        print(json.dumps(dist.get_backend()), flush=True)
        run.init_process_group()
    if call == "size":
        dist.init_process_group("gloo", rank=run.rank, world_size=3)
    if call == "rank":
        dist.init_process_group(backend="gloo", rank=1 - run.rank)
    if call == "ddp":
        nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    if call == "barrier":
        dist.distributed_c10d._get_default_store().set("a", "b")
    raise KeyError("a script's own error")


def group_ports():
    """Prints the sockets of this process in training, and after a collective."""
    run = capstan.init(steps=3)
    found = [dist.is_initialized() and dist.get_backend()]
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(optimizer, net)
    for _ in run.steps(3):
        net(torch.ones(2, INPUTS)).sum().backward()
        optimizer.step()
        found.append(sockets())
    dist.barrier()
    found.append(sockets())
    run.close()
    dist.destroy_process_group()
    found.append(dist.is_initialized())
    print(json.dumps(found))


CARRIED = """all_gather all_gather_into_tensor all_gather_object
all_gather_single all_reduce all_reduce_coalesced all_to_all all_to_all_single
barrier broadcast broadcast_object_list gather gather_into_tensor gather_object
gather_single new_group reduce reduce_scatter reduce_scatter_single
reduce_scatter_tensor scatter scatter_object_list"""
WITHOUT_OTHERS = """default_pg_timeout destroy_process_group get_backend
get_backend_config get_backend_impl get_debug_level
get_default_backend_for_device get_global_rank get_group_rank
get_node_local_rank get_pg_count get_process_group_ranks get_rank
get_world_size group init_process_group is_backend_available
is_gloo_available is_initialized is_mpi_available is_nccl_available
is_torchelastic_launched is_ucc_available is_xccl_available record_comm
reduce_op supports_complex"""


MULTI = [
    f"{name}_multigpu"
    for name in "all_gather all_reduce broadcast reduce reduce_scatter".split()
]  # of older releases


def refused_calls():
    """Prints the text of each call of torch.distributed that is not carried,
    and those of which none of the tables knows."""
    run = capstan.init()
    dist.barrier()  # so that the run may end without a step
    t, other, c10d = torch.ones(2), 1 - run.rank, dist.distributed_c10d
    parts, text = [torch.ones(2), torch.ones(2)], {}
    calls = {
        "send": lambda: dist.send(t, other),
        "recv": lambda: dist.recv(t, other),
        "recv of any": lambda: dist.recv(t),
        "isend": lambda: dist.isend(t, other),
        "irecv": lambda: dist.irecv(t, other),
        "send_object_list": lambda: dist.send_object_list([1], other),
        "recv_object_list": lambda: dist.recv_object_list([None], other),
        "batch_isend_irecv": lambda: dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, t, other)]
        ),
        "all_gather_coalesced": lambda: c10d.all_gather_coalesced([parts], [t]),
        "monitored_barrier": dist.monitored_barrier,
        "new_group": lambda: dist.new_group([0]),
        "new_subgroups": lambda: dist.new_subgroups(1),
        "new_subgroups_by_enumeration": lambda: (
            dist.new_subgroups_by_enumeration([[0], [1]])
        ),
        "split_group": lambda: c10d.split_group(split_ranks=[[0], [1]]),
        "shrink_group": lambda: c10d.shrink_group([1]),
        "set_timeout": lambda: c10d.set_timeout(timedelta(seconds=9)),
        **{
            f"op {op}": lambda op=op: run_all_reduce(t.long(), op)
            for op in ("BAND", "BOR", "BXOR")
        },
        **{
            name: lambda name=name: getattr(c10d, name)([t], 0)
            for name in MULTI
        },
        "op PREMUL_SUM": lambda: dist.all_reduce(
            t, torch._C._distributed_c10d._make_nccl_premul_sum(2.0)
        ),
        "init_device_mesh": lambda: dist.init_device_mesh("cpu", (2, 1)),
    }
    for name, call in calls.items():
        is_there = hasattr(c10d, name) or hasattr(dist, name)
        if name.isidentifier() and not is_there:
            continue  # in this release
        try:
            call()
            text[name] = "none"
        except Exception as error:
            text[name] = f"{type(error).__name__}: {error}"
    known = {*CARRIED.split(), *WITHOUT_OTHERS.split(), *calls}
    public = {n for n in c10d.__all__ if n[0].islower()}
    run.close()
    print(json.dumps([text, sorted(public - known)]))


def run_all_reduce(tensor, op):
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op))


def meets(how):
    """Gives DistributedOptimizer a model that meets other ranks itself."""
    keys = {"strategy": {"staleness": 1}} if how == "stale" else {}
    run = capstan.init(**keys)
    if how == "ddp":
        net = nn.parallel.DistributedDataParallel(model_of("mlp", 0))
    else:
        norm = nn.BatchNorm1d(CLASSES)
        net = nn.Sequential(model_of("mlp", 0), norm)
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    capstan.DistributedOptimizer(optimizer, net)
    print("[]", flush=True)
    run.close()


def local():
    """A model with tensors that the run does not carry."""
    capstan.init()
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.base = nn.Parameter(torch.ones(2).half(), requires_grad=False)
    net.register_buffer("wide", torch.ones(2).double())
    mask = torch.ones(2, dtype=torch.bool)
    net.register_buffer("mask", mask, persistent=False)
    optimizer = capstan.DistributedOptimizer(optimizer, net)
    step_of(net, optimizer, *[part[0] for part in data(1)])


def constant(**keys):
    """No step changes a buffer; prints whether it has the same bits."""
    run = capstan.init(**keys)
    net = model_of("mlp", 0)
    lowest = torch.full((1,), torch.finfo(torch.float32).min)
    values = torch.cat([torch.rand(500), lowest])
    net.register_buffer("constant", values.clone())
    made = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(made, net)
    for x, y in zip(*data(9)):
        step_of(net, optimizer, x, y)
    print(json.dumps([torch.equal(net.constant, values)]))


def chance():
    """Rank 1 computes the statistics that it has; prints those of the step."""
    run = capstan.init()
    net = nn.BatchNorm1d(3)
    net.running_mean += 1
    made = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(made, net)
    step_of(net, optimizer, torch.full((4, 3), float(run.rank)), torch.zeros(4).long())
    print(json.dumps(net.running_mean.tolist()))


def copies(rule):
    """Model and optimiser are copied within the run and go on by themselves;
    prints the weights of each copy, and those of plain torch's."""
    capstan.init()
    nets = net, plain = model_of("mlp", 0), model_of("mlp", 0)
    own, other = (torch.optim.AdamW(n.parameters(), 0.01) for n in nets)
    own = capstan.DistributedOptimizer(own, net, rule)
    x, y = data(8)
    found = []
    for step in range(4):
        step_of(net, own, x[step], y[step])
        step_of(plain, other, x[step], y[step])
    for made in copy.deepcopy, saved_and_loaded:
        pairs = made((net, own)), made((plain, other))
        assert {type(optimizer) for _, optimizer in pairs} == {type(other)}
        for step in range(4, 8):
            for pair in pairs:
                step_of(*pair, x[step], y[step])
        found.append([state(model) for model, _ in pairs])
    step_of(net, own, x[4], y[4])
    print(json.dumps(found))


def shared(how, rule="server"):
    """Trains a model with memory that is in HOW places at once, or in none."""
    capstan.init()
    net, weight = model_of("mlp", 0), torch.randn(CLASSES, CLASSES)
    if how == "expanded":
        net[2].bias = nn.Parameter(torch.ones(1).expand(CLASSES))
    elif how == "windows":
        net.more = nn.Parameter(weight.flatten().unfold(0, 4, 2).detach())
    elif how == "buffer":
        net.register_buffer("more", torch.ones(1).expand(CLASSES))
    elif how == "lazy":
        net.more = nn.LazyLinear(CLASSES)
    elif how == "gradient":
        net[2].bias.grad = torch.ones(1).expand(CLASSES)
    else:
        net.a, net.b = nn.Parameter(weight), nn.Parameter(weight.t())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(optimizer, net, rule=rule)
    optimizer.step()


def double():
    """Of rank 1."""
    run = capstan.init()
    net = model_of("mlp", 0)
    if run.rank == 1:
        net.double()
    capstan.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net)


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keys=None):
        self.names.append(str(function))
        return function(*arguments, **(keys or {}))


class Fails(torch.autograd.Function):
    """As where memory is short, in the first pass of step 3."""

    left = 1

    @staticmethod
    def forward(ctx, x, may_fail):
        ctx.may_fail = may_fail
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.may_fail and Fails.left:
            Fails.left = 0
            raise RuntimeError("out of memory")
        return gradient, None


def retries(steps, hooks):
    """A pass that fails is taken again, and the mean is clipped; prints how far
    from plain torch's with both ranks' samples it ends."""
    if hooks:
        torch_exchange.ONE_MESSAGE = 0
    run = capstan.init()
    nets = [model_of("mlp", 0) for _ in range(2)]
    made = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    made[0] = capstan.DistributedOptimizer(
        made[0], nets[0], rule="worker", backward_passes_per_step=2
    )
    share = BATCH // run.size
    own = slice(run.rank * share, (run.rank + 1) * share)
    x, y = data(2 * steps)
    for step in range(steps):
        for net, optimizer, rows in zip(nets, made, (own, slice(None))):
            optimizer.zero_grad()
            taken = 0
            while taken < 2:
                may_fail = net is nets[0] and step == 3 and not taken
                inner = net[:2](x[2 * step + taken, rows])
                inner = Fails.apply(inner, may_fail)
                loss = nn.functional.cross_entropy(
                    net[2](inner), y[2 * step + taken, rows]
                )
                try:
                    loss.backward()
                    taken += 1
                except RuntimeError:
                    optimizer.zero_grad()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
    assert not Fails.left
    found, expected = (
        torch.cat([p.detach().flatten() for p in net.parameters()])
        for net in nets
    )
    print(json.dumps(float((found - expected).norm() / expected.norm())))


def failing(then, rule="server", lazy=False, **keys):
    """A pass fails when a part of its gradients has left, and the script does
    what THEN says; prints how far from plain torch's weights it ends."""
    torch_exchange.ONE_MESSAGE = torch_exchange._TOGETHER = 0
    run = capstan.init(**keys)
    nets = net, plain = model_of("mlp", 0), model_of("mlp", 0)
    made = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]
    made[0] = capstan.DistributedOptimizer(made[0], net, rule, lazy)
    x, y = data(6)
    syncs = run.no_sync if then == "again" else contextlib.nullcontext

    def take(n, step):
        output = n[2](Fails.apply(n[:2](x[step]), True))
        with syncs():
            nn.functional.cross_entropy(output, y[step]).backward()

    for step in run.epochs(6):
        for n, optimizer in zip(nets, made):
            optimizer.zero_grad()
            Fails.left = step == 3
            try:
                take(n, step)
            except RuntimeError:
                if then == "again":
                    optimizer.zero_grad()
                    take(n, step)
                elif n is plain or then == "steps":
                    pass
                elif then == "reads":
                    with torch.no_grad():
                        copy.deepcopy(net)(x[step])
                elif then == "waits":
                    run.exchange.wait()
                elif then == "ends":
                    run.close()
                elif then == "goes on":
                    break
            optimizer.step()
    found, expected = (
        torch.cat([p.detach().flatten() for p in n.parameters()]) for n in nets
    )
    print(json.dumps(float((found - expected).norm())))


def passes():
    """The operations that the exchange adds to backward() and step()."""
    run = capstan.init()
    x, y = data(3)
    found = []
    plain, shared = model_of("mlp", 0), model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(shared.parameters(), 0.1), shared
    )
    for net in plain, shared:
        loss = nn.functional.cross_entropy(net(x[0]), y[0])
        with Operations() as operations:
            loss.backward()
            if net is shared:
                pointers = [p.data_ptr() for p in net.parameters()]
                optimizer.step()
        found.append(
            [
                n
                for n in operations.names
                if n.startswith("aten.") and "detach" not in n
            ]
        )
    moved = pointers != [p.data_ptr() for p in shared.parameters()]
    print(json.dumps({"operations": found, "moved": moved, "rank": run.rank}))


def unknown_rule():
    """Of rank 1."""
    run = capstan.init()
    net = model_of("mlp", 0)
    kind = torch.optim.Rprop if run.rank == 1 else torch.optim.SGD
    made = kind(net.parameters(), lr=0.1)
    capstan.DistributedOptimizer(made, net, rule="server")


class Broken(TensorDataset):
    """Some samples of which cannot be read."""

    def __init__(self, samples, numbers):
        super().__init__(samples)
        self._numbers = numbers

    def __getitem__(self, index):
        if index in self._numbers:
            raise ValueError(index)
        return super().__getitem__(index)


def read(batches):
    """BATCHES without those that the loader fails to make."""
    left = iter(batches)
    while True:
        try:
            yield next(left)
        except StopIteration:
            return
        except ValueError:
            pass


def shard(num_workers=0, broken=(), **keys):
    """Two epochs over 21 samples; prints the samples of each. Those BROKEN
    cannot be read, and are in the order of their numbers."""
    run = capstan.init(**keys)
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net
    )
    samples = Broken(torch.arange(21.0)[:, None].expand(-1, INPUTS), broken)
    loader = DataLoader(
        samples, batch_size=3, shuffle=not broken, num_workers=num_workers
    )
    seen = []
    for epoch in run.epochs(2):
        seen.append([])
        for (x,) in read(run.shard(loader, epoch)):
            seen[-1] += x[:, 0].tolist()
            optimizer.zero_grad()
            net(x.to(device.name)).sum().backward()
            optimizer.step()
    print(
        json.dumps(
            {
                "seen": seen,
                "isinstance": isinstance(optimizer, torch.optim.SGD),
            }
        )
    )


def evaluates(apart, **keys):
    """Two loops of epochs, whose steps have two loaders. After each third step
    and each epoch it evaluates, APART from gradients or not; prints of each
    epoch the samples that it trained with, and how many it evaluated."""
    run = capstan.init(seed=3, **keys)
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net
    )
    run.keep()
    numbers = torch.arange(24.0)[:, None].expand(-1, INPUTS)
    train, more, test = (
        DataLoader(TensorDataset(numbers[:count]), 2, shuffle=True)
        for count in (24, 24, 8)
    )

    def evaluated(epoch):
        with torch.no_grad() if apart else contextlib.nullcontext():
            return sum(len(x) for (x,) in run.shard(test, epoch))

    seen = []
    for count in 1, 3:
        for epoch in run.epochs(count):
            seen.append([epoch, [], []])
            pairs = zip(run.shard(train, epoch), run.shard(more, epoch))
            for step, ((x,), (z,)) in enumerate(pairs):
                seen[-1][1] += x[:, 0].tolist() + z[:, 0].tolist()
                optimizer.zero_grad()
                net(torch.cat((x, z)) / SAMPLES).sum().backward()
                optimizer.step()
                if step % 3 == 2:
                    seen[-1][2].append(evaluated(epoch))
            seen[-1][2].append(evaluated(epoch))
    print(json.dumps(seen))


def resumable(steps, rule="server", **keys):
    """Keeps its state; prints the parameters at step STEPS."""
    run = capstan.init(steps=steps, **keys)
    torch.manual_seed(run.rank)
    net = model_of("mlp", 0)
    net.insert(1, nn.Dropout(0.5))
    plain = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    if rule == "worker":
        plain = torch.optim.NAdam(net.parameters(), 0.01)
    optimizer = capstan.DistributedOptimizer(plain, net, rule=rule)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.manual_seed(run.rank)
    run.keep(scheduler)
    x, y = data(3)
    samples = TensorDataset(x.flatten(0, 1), y.flatten())
    loader = DataLoader(samples, batch_size=4, shuffle=True)
    for epoch in run.epochs(4):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            scheduler.step()
    print(json.dumps(state(net)))


def idle(steps, **keys):
    """Keeps its optimiser; one step has no gradient. Prints its momentum."""
    run = capstan.init(steps=steps, **keys)
    net = nn.Linear(3, 2)
    plain = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    optimizer = capstan.DistributedOptimizer(plain, net)
    run.keep(optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        if step != 1:
            net(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    kept = optimizer.state_dict()["state"]
    print(json.dumps([s["momentum_buffer"].tolist() for s in kept.values()]))


def rewound(
    epochs, rule="server", keeps=True, own=False, pause=0.0, **keys
):
    """Prints rank, the sha256 of its weights and its generators' next numbers.
    OWN: its loop does not go back."""
    run = capstan.init(**keys)
    torch.manual_seed(run.rank)
    net = nn.Sequential(
        nn.Linear(INPUTS, 24), nn.BatchNorm1d(24), nn.Dropout(0.5),
        nn.Linear(24, 4),
    )
    net = net.to(device.name)
    plain = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    if rule == "worker":
        plain = torch.optim.NAdam(net.parameters(), 0.01)
    optimizer = capstan.DistributedOptimizer(plain, net, rule=rule)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    torch.manual_seed(run.rank)
    random.seed(run.rank)
    np.random.seed(run.rank)
    if keeps:
        run.keep(scheduler)
    x, y = data(10)
    samples = TensorDataset(x.flatten(0, 1), y.flatten())
    loader = DataLoader(samples, batch_size=4, shuffle=True)
    for epoch in range(epochs) if own else run.epochs(epochs):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            x = x.to(device.name) + random.random() + np.random.rand()
            nn.functional.cross_entropy(net(x), y.to(device.name)).backward()
            optimizer.step()
            scheduler.step()
            time.sleep(pause)
    digest = hashlib.sha256(json.dumps(state(net)).encode()).hexdigest()
    numbers = random.random(), np.random.rand(), torch.rand(()).item()
    line = json.dumps([run.rank, digest, numbers]) + "\n"
    os.write(1, line.encode())  # whole, beside the other rank's


def led_rewound(epochs, rule="server", keeps=True, own=False, pause=0.0):
    """Its chief only coordinates."""
    rewound(epochs, rule, keeps, own, pause, **processes.led(50))


def joining(rule="server"):
    """Rank 1 is killed in epoch 3 of 12; its second life joins, by RULE. Prints
    the epochs of this process's steps."""
    run = capstan.init(chief="coordinate", timeouts={"peer": 2})
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net, rule=rule
    )
    samples = TensorDataset(torch.zeros(64, INPUTS))
    loader = DataLoader(samples, batch_size=4)
    lived = os.path.exists("lived")
    joined = run.position.resumed
    seen = []
    for epoch in run.epochs(12):
        for (x,) in run.shard(loader, epoch):
            if run.rank == 1 and epoch == 3 and not lived:
                open("lived", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(epoch)
            optimizer.zero_grad()
            net(x.to(device.name)).sum().backward()
            optimizer.step()
            time.sleep(0.05)
    print(json.dumps({"seen": seen, "joined": joined}))


SAMPLES = 22  # that loader_of() has


class Stream(torch.utils.data.IterableDataset):
    """All samples, or those of one rank, in an order of torch's generator."""

    def __init__(self, rank=0, size=1):
        self.rows = range(rank, SAMPLES, size)

    def __iter__(self):
        moved = int(torch.randint(SAMPLES, ()))
        for row in self.rows:
            yield torch.full((INPUTS,), float((row + moved) % SAMPLES))


class Doubled(DataLoader):
    """Does more than a DataLoader."""

    def __iter__(self):
        for batch in super().__iter__():
            yield [2 * part for part in batch]


class Moved(torch.utils.data.Sampler):
    """Another order each time, of its own."""

    def __init__(self):
        self.times = 0

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        self.times += 1
        return iter([(i + self.times) % SAMPLES for i in range(SAMPLES)])


def loader_of(kind, run):
    """A DataLoader of samples that are their numbers, and what shard() takes."""
    rows = torch.arange(float(SAMPLES))[:, None].expand(-1, INPUTS)
    samples = list(rows.clone())
    utils = torch.utils.data
    torch.manual_seed(1 + run.rank)  # that ranks differ in this is no matter
    if kind == "subset":
        return DataLoader(
            samples, 3, sampler=utils.SubsetRandomSampler(range(0, 22, 2))
        ), {}
    if kind == "weighted":
        sampler = utils.WeightedRandomSampler(
            torch.arange(22.0),
            30,
            generator=torch.Generator().manual_seed(run.rank),
        )
        return DataLoader(samples, 3, sampler=sampler, drop_last=True), {}
    if kind == "replacement":
        sampler = utils.RandomSampler(samples, replacement=True)
        return DataLoader(samples, 3, sampler=sampler), {}
    if kind == "distributed":
        sampler = utils.DistributedSampler(samples)  # of the default group
        return DataLoader(samples, 3, sampler=sampler), {}
    if kind == "batches":
        order = utils.RandomSampler(samples)
        return DataLoader(
            samples, batch_sampler=utils.BatchSampler(order, 3, True)
        ), {}
    if kind == "lists":
        batches = [[i, i + 1, i + 2] for i in range(0, 20, 3)]
        return DataLoader(samples, batch_sampler=batches), {}
    if kind == "whole":
        return DataLoader(Stream(), 3, num_workers=0), {"stream": kind}
    if kind == "workers":
        return DataLoader(Stream(), 3, num_workers=2), {"stream": "whole"}
    if kind in ("part", "pipe"):
        stream = Stream(run.rank, run.size)
        if kind == "pipe":
            stream = utils.datapipes.iter.IterableWrapper(stream)
        return DataLoader(stream, 3, drop_last=True), {"stream": "part"}
    raise AssertionError(kind)


def sharded(kind, **keys):
    """Two epochs; prints each one's batches and the weights."""
    run = capstan.init(**keys)
    net = model_of("mlp", 0)
    plain = torch.optim.SGD(net.parameters(), 0.01)
    optimizer = capstan.DistributedOptimizer(plain, net)
    loader, arguments = loader_of(kind, run)
    run.keep()
    seen, first = [], state(net)
    for epoch in run.epochs(2):
        seen.append([])
        for x in run.shard(loader, epoch, **arguments):
            seen[-1].append(x[:, 0].tolist())
            optimizer.zero_grad()
            net(x.to(device.name) / SAMPLES).square().mean().backward()
            optimizer.step()
    assert not run._collected  # a rank that joins late would wait for others
    print(json.dumps({"seen": seen, "first": first, "last": state(net)}))


def refused():
    """What run.shard does not take."""
    run = capstan.init()
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net
    )
    data, utils = TensorDataset(torch.zeros(SAMPLES, 1)), torch.utils.data
    pipe = utils.datapipes.iter.IterableWrapper([1, 2])
    found = []
    for loader, stream in (
        (DataLoader(Stream()), None),
        (DataLoader(Stream()), "half"),
        (DataLoader(data), "whole"),
        (DataLoader(pipe), "whole"),
        (DataLoader(data, batch_sampler=iter([[0, 1]])), None),
        (DataLoader(data, sampler=Moved()), None),
        (DataLoader(data, sampler=utils.DistributedSampler(data, 3, 2)), None),
        (Doubled(data), None),
        (DataLoader(data), None),
    ):
        try:
            given = run.shard(loader, 0, stream)
            for _ in range(2):  # loops
                for _ in given:
                    optimizer.step()
        except capstan.ConfigError as error:
            found.append(str(error))
        else:
            found.append("")
    print(json.dumps(found))


def overflow(rule="server", skips=False):
    """With a GradScaler, or on_nan "skip" if SKIPS, rank 1's gradients overflow
    in step 2."""
    run = capstan.init(on_nan="skip" if skips else None)
    net = model_of("mlp", 0)
    scaler = torch.amp.GradScaler(
        device.name, init_scale=2.0**10, enabled=not skips
    )
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1),
        net,
        rule,
        scaler=None if skips else scaler,
    )
    x, y = data(4)
    states = []
    for step in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[step]), y[step])
        if step == 2 and run.rank == 1:
            loss = loss * float("inf")
        if skips:
            run.report(loss.item(), len(x[step]))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        states.append(state(net))
    print(json.dumps(states))


def step_of(net, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def states(
    optimizer,
    settings,
    split=False,
    runs=1,
    model="mlp",
    dtype="float32",
    betas=None,
    **keys,
):
    """All ranks train on the same batches, and plain torch beside them: prints
    how far states are apart, then weights after a run that has loaded one.
    DTYPE is torch's default meanwhile. BETAS are written over those of a list
    after 4 steps."""
    x, y = data(14)
    plain_net, apart = model_of(model, 0), []
    plain = optimizer_of(optimizer, plain_net, settings, split)
    saved = net = None
    for steps in (range(0, 7), range(7, 14))[:runs]:
        run = capstan.init(keep_env=True, **keys)
        net = net or copy.deepcopy(plain_net)  # the same in both runs
        begun = optimizer_of(optimizer, net, settings, split)
        if saved:
            begun.load_state_dict(saved)
        wrapped = capstan.DistributedOptimizer(begun, net)
        if not saved:
            begun_with = wrapped.state_dict()["state"].keys()
            assert begun_with == plain.state_dict()["state"].keys()
        torch.set_default_dtype(getattr(torch, dtype))
        for step in steps:
            step_of(net, wrapped, x[step], y[step])
            step_of(plain_net, plain, x[step], y[step])
            for made in (wrapped, plain) if betas else ():
                group = made.param_groups[0]
                if step == 1:
                    group["betas"] = list(group["betas"])
                if step == 3:
                    group["betas"][:] = betas
        saved, expected = wrapped.state_dict(), plain.state_dict()
        torch.set_default_dtype(torch.float32)
        run.close()
        assert saved["param_groups"] == expected["param_groups"]
        for number, state in expected["state"].items():
            found = saved["state"].pop(number, {})
            # Older SGD has a buffer without momentum, which is None.
            found, state = (
                {k: torch.as_tensor(v) for k, v in s.items() if v is not None}
                for s in (found, state)
            )
            assert found.keys() == state.keys(), (found.keys(), state.keys())
            for key, value in state.items():
                off = (found[key] - value).float().norm()
                off /= value.float().norm()
                apart.append(float(off))
                assert found[key].stride() == value.stride(), key
        assert not saved["state"]
        saved = copy.deepcopy(expected)
    for a, b in zip(net.parameters(), plain_net.parameters()):
        apart.append(float(((a - b).norm() / b.norm()).detach()))
    print(json.dumps(apart))


def several_states(cases):
    for case in cases:
        states(**case)


def rare(optimizer, settings, steps, **keys):
    """Plain torch takes all steps of all ranks, also those before the start of
    a resumed run: prints how far weights and states are apart then, and the
    states' steps."""
    run = capstan.init(keep_env=True, steps=steps, **keys)
    net, plain_net = model_of("rare", 0), model_of("rare", 0)
    begun, plain = (
        optimizer_of(optimizer, of, settings) for of in (net, plain_net)
    )
    wrapped = capstan.DistributedOptimizer(begun, net)
    x, y = data(20)
    share = BATCH // run.size

    def loss_of(of, step, rank):
        rows = slice(rank * share, (rank + 1) * share)
        found = of(x[step, rows], step, rank)
        return nn.functional.cross_entropy(found, y[step, rows])

    for step in range(steps):
        plain.zero_grad()
        for rank in range(run.size):
            (loss_of(plain_net, step, rank) / run.size).backward()
        plain.step()
    for step in run.steps(steps):
        wrapped.zero_grad()
        loss_of(net, step, run.rank).backward()
        wrapped.step()
    found, expected = (o.state_dict()["state"] for o in (wrapped, plain))
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    apart, counted = [], []
    for number, state in expected.items():
        assert found[number].keys() == state.keys()
        counted.append(float(found[number].get("step", 0)))
        assert counted[-1] == float(state.get("step", 0)), (number, counted)
        for key, value in state.items():
            value = torch.as_tensor(value, dtype=torch.float32)
            off = (found[number][key] - value).norm()
            apart.append(float(off / value.norm().clamp(min=1e-30)))
    for a, b in zip(net.parameters(), plain_net.parameters(), strict=True):
        apart.append(float(((a - b).norm() / b.norm()).detach()))
    run.close()
    print(json.dumps({"apart": apart, "steps": counted}))


def several_rare(cases):
    for case in cases:
        rare(**case)


def loads_state(**keys):
    """Rank 1 does, where the ps have begun without it; with staleness one of the
    step before, after what is harmless."""
    run = capstan.init(**keys)
    batch = [part[0] for part in data(1)]
    net = model_of("mlp", 0)
    other = torch.optim.Adam(net.parameters())
    step_of(net, other, *batch)
    plain = torch.optim.Adam(net.parameters())
    optimizer = capstan.DistributedOptimizer(plain, net)
    if run.rank == 1:
        told = other.state_dict()
        if run.is_stale:
            step_of(net, optimizer, *batch)
            told = optimizer.state_dict()
            optimizer.load_state_dict(told)
            step_of(net, optimizer, *batch)
        optimizer.load_state_dict(told)
    step_of(net, optimizer, *batch)


def loads_late():
    """Rank 1 does."""
    run = capstan.init()
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = capstan.DistributedOptimizer(optimizer, net)
    if run.rank == 1:
        net.load_state_dict(model_of("mlp", 1).state_dict())
    net(torch.ones(2, INPUTS, device=device.name)).sum().backward()
    optimizer.step()


def forgets():
    """Rank 1 does."""
    run = capstan.init()
    net = model_of("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    if run.rank == 0:
        optimizer = capstan.DistributedOptimizer(optimizer, net)
    net(torch.ones(2, INPUTS, device=device.name)).sum().backward()
    optimizer.step()


def two_optimizers():
    """Rank 1 has a second one."""
    run = capstan.init()
    for _ in range(1 + run.rank):
        net = model_of("mlp", 0)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        optimizer = capstan.DistributedOptimizer(optimizer, net)
    net(torch.ones(2, INPUTS, device=device.name)).sum().backward()
    optimizer.step()


def unknown_scaler():
    """Of rank 1."""
    run = capstan.init()
    net = model_of("mlp", 0)
    scaler = torch.amp.GradScaler(device.name)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net
    )
    loss = net(torch.ones(2, INPUTS, device=device.name)).sum()
    if run.rank == 0:
        loss.backward()
        optimizer.step()
        return
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def sleeping(seconds, rule="server", samples=6400, **keys):
    """Trains with four DataLoader workers until it is killed. A chief, if
    there is one, only coordinates."""
    keys = {"chief": "coordinate", "timeouts": {"grace": 10}, **keys}
    run = capstan.init(checkpoint="checkpoint", **keys)
    net = model_of("mlp", 0)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), net, rule=rule
    )
    run.keep()
    loader = DataLoader(
        TensorDataset(torch.zeros(samples, INPUTS)), 2, num_workers=4
    )
    for epoch in run.epochs(1):
        for (x,) in run.shard(loader, epoch):
            optimizer.zero_grad()
            net(x.to(device.name)).sum().backward()
            optimizer.step()
            print("step", flush=True)
            time.sleep(seconds)
    print(json.dumps({"pid": os.getpid()}))


def by_hand():
    """Averages gradients itself, without a model of the run's."""
    run = capstan.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(120):
        for p in model.parameters():
            p.grad = torch.from_numpy(
                run.all_reduce(torch.full(p.shape, float(run.rank)).numpy(), "mean")
            )
        optimizer.step()
    print(json.dumps([p.grad.unique().tolist() for p in model.parameters()]))


def distributed(with_ps):
    """The calls of torch.distributed, beside what one process computes."""
    run = capstan.init(strategy="ps" if with_ps else "allreduce")
    init_process_group("nccl", timeout=timedelta(seconds=9))
    run.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    of = [torch.arange(6.0).reshape(2, 3) * (r + 1) for r in range(size)]
    mine, found, expected = of[rank], {}, {}
    dist.barrier()
    for name, op in {"SUM": sum, "MAX": max, "MIN": min}.items():
        for dtype in torch.float32, torch.int64, torch.bfloat16, torch.float64:
            tensor = mine.to(dtype, copy=True)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            by = [op(float(t.flatten()[i]) for t in of) for i in range(6)]
            key = f"{name} {dtype}"
            found[key], expected[key] = tensor.flatten().tolist(), by
    mean = mine.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    parts = [torch.empty_like(mine) for _ in of]
    dist.all_gather(parts, mine)
    joined = torch.empty(2 * size, 3)
    dist.all_gather_into_tensor(joined, mine)
    empty = torch.ones(0, 3)
    dist.broadcast(empty, 1)
    dist.all_reduce(empty)
    sent = mine.clone()
    dist.broadcast(sent, 1)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    one = ["text" if rank == 1 else None]
    dist.broadcast_object_list(one, 1)
    scattered = torch.empty(2, 3)
    dist.scatter(scattered, of if rank == 0 else None, 0)
    piece = torch.empty(1)
    dist.reduce_scatter(piece, [torch.tensor([float(r)]) for r in range(size)])
    turned = torch.empty(size)
    dist.all_to_all_single(turned, torch.full((size,), float(rank)))
    gathered = [torch.empty_like(mine) for _ in of] if rank == 1 else None
    dist.gather(mine, gathered, 1)
    total = mine.clone()
    dist.reduce(total, 1)
    found["to 1"] = [total.tolist(), gathered and torch.stack(gathered).tolist()]
    expected["to 1"] = [mine.tolist(), None]
    if rank == 1:
        expected["to 1"] = [sum(of).tolist(), torch.stack(of).tolist()]
    found["others"] = [
        *(torch.equal(mean, sum(of) / size), torch.equal(sent, of[1])),
        all(torch.equal(a, b) for a, b in zip(parts, of)),
        torch.equal(joined, torch.cat(of)),
        objects == [{"rank": r} for r in range(size)],
        *(one == ["text"], torch.equal(scattered, of[rank])),
        piece.item() == rank * size,
        turned.tolist() == [float(r) for r in range(size)],
    ]
    group = dist.new_group(backend="gloo")
    dist.all_reduce(total.zero_().add_(1), group=group)
    sampler = DistributedSampler(range(5 * size), shuffle=False)
    found["others"] += [
        total.unique().tolist() == [size],
        list(sampler) == list(range(rank, 5 * size, size)),
    ]
    expected["others"] = [True] * 11
    refused = []
    for call in (
        lambda: dist.send(mine, 1 - rank),
        lambda: dist.all_reduce(mine.long(), dist.ReduceOp.BAND),
    ):
        try:
            call()
        except capstan.ConfigError as error:
            refused.append(str(error))
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()
    model = torch.nn.Linear(3, 1)
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model
    )
    model(mine).sum().backward()
    optimizer.step()
    run.close()
    print(json.dumps([found, expected, refused]))


def late_collectives():
    """Those of tensors on a late GPU, by the methods that torch calls."""
    run = capstan.init()
    group, rank, size = dist.group.WORLD, run.rank, run.size
    of = [torch.arange(6.0) * (r + 1) for r in range(size)]
    gpu, nan = torch.device("cuda", 0), torch.full((6,), torch.nan)
    from_1 = dist.BroadcastOptions()
    from_1.rootRank = 1
    sums = dist.distributed_c10d.ReduceScatterOptions()
    with late_gpu.Gpus().are_cuda():
        mine = of[rank].to(gpu, non_blocking=True)
        total, sent = mine.clone(), mine.clone()
        parts = [late_gpu.put(nan.clone(), 0) for _ in of]
        joined = late_gpu.put(nan.repeat(size), 0)
        piece = late_gpu.put(nan.clone(), 0)
        group.allreduce([total])
        group.broadcast([sent], from_1)
        group.allgather([parts], [mine])
        group.all_gather_single(joined, mine)
        group.reduce_scatter([piece], [[mine * r for r in range(size)]], sums)
        found = [t.cpu() for t in (total, sent, *parts, joined, piece)]
    expected = [sum(of), of[1], *of, torch.cat(of), sum(of) * rank]
    run.close()
    print(json.dumps([torch.equal(a, b) for a, b in zip(found, expected)]))


def uneven_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 2))


def uneven_loss(net, step, rank):
    made = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, INPUTS, generator=made)
    return net(x).pow(2).mean()


RESTS = 5  # the step of an epoch without a rate, if there is one


def uneven_rate(optimizer, step, rests):
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if rests and step == RESTS else 0.01


def uneven(
    counts,
    epochs,
    rule="worker",
    kind="Adam",
    decays=False,
    rests=False,
    skips=False,
    clips=False,
    lazy=False,
    **keys,
):
    """Rank r has COUNTS[r] batches in each of EPOCHS; prints the weights and
    the step of the run after each."""
    run = capstan.init(**keys)
    net = uneven_net()
    optimizer = capstan.DistributedOptimizer(
        getattr(torch.optim, kind)(net.parameters(), lr=0.01),
        net,
        rule=rule,
        lazy=lazy,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    found = []
    for epoch in run.epochs(epochs):
        with run.join():
            for step in range(counts[run.rank]):
                optimizer.zero_grad()
                if not decays:
                    uneven_rate(optimizer, step, rests)
                if not skips:
                    uneven_loss(net, 100 * epoch + step, run.rank).backward()
                if clips:
                    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
                optimizer.step()
                if decays:
                    scheduler.step()
                print("step", flush=True)
        found.append([state(net), run.position.step])
    print(json.dumps(found))


BACKED = [2.0, 512.0, 131072.0]  # gradients by rank: digits of base 256


class Numbers(IterableDataset):
    """As the samples of backed(), a stream of all ranks."""

    def __init__(self, samples):
        self._samples = samples

    def __iter__(self):
        return iter(self._samples)


def await_path(name):
    while not Path(name).exists():
        time.sleep(0.001)


def backed_sample(i):
    return torch.tensor([BACKED[i % 3], float(i // 3)])


def backed(
    batches,
    epochs,
    late=2,
    loop="shard",
    num_workers=0,
    lazy=False,
    dies=False,
    **keys,
):
    """With a backup worker, and BATCHES an epoch for each of three ranks. Rank
    LATE stands still in the first epoch until the others are in the third, which
    wait in the fourth until it is back; and in the last until they are at the
    end. DIES: in the first epoch it is killed. Prints the steps that it took, those of the wrong batch, its place at
    the end, and half the sum of what all have brought."""
    os.environ["CAPSTAN_SUMMARY"] = "summary.json"
    run = capstan.init(strategy={"type": "ps", "backup_workers": 1}, **keys)
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    rule = torch.optim.SGD(net.parameters(), 1.0)
    optimizer = capstan.DistributedOptimizer(rule, net, lazy=lazy)
    samples = [backed_sample(i) for i in range(3 * batches)]
    data = Numbers(samples) if loop == "stream" else samples
    loader = DataLoader(data, batch_size=1, num_workers=num_workers)
    taken = wrong = 0

    def train(epoch, number, gradient):
        nonlocal taken, wrong
        at = run.position
        place = at.epoch, at.epoch_step, at.step
        expected = epoch, number, epoch * batches + number
        wrong += place != expected or gradient != BACKED[run.rank]
        is_late = run.rank == late
        if is_late and dies and at.step >= 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_late and at.step >= 5:
            await_path("far")
        if is_late and at.step >= 2 * batches:
            Path("back").touch()
            Path("again").touch()
        if is_late and at.step >= (epochs - 1) * batches:
            await_path("end")
        if not is_late and at.step >= 2 * batches + 3:
            Path("far").touch()
        if not is_late and at.step >= 3 * batches + 2:
            await_path("back")
        if not is_late and at.step >= (epochs - 1) * batches:
            await_path("again")
        optimizer.zero_grad()
        net(torch.tensor([[gradient]])).sum().backward()
        optimizer.step()
        taken += 1

    if loop == "steps":
        for step in run.steps(batches * epochs):
            wrong += step != run.position.step
            at = run.position
            train(at.epoch, at.epoch_step, BACKED[run.rank])
    else:
        stream = "whole" if loop == "stream" else None
        for epoch in run.epochs(epochs):
            part = run.shard(loader, epoch, stream=stream)
            wrong += loop == "shard" and len(part) != batches
            for x in part:
                train(epoch, int(x[0, 1]), float(x[0, 0]))
    if run.rank != late and run.position.step == epochs * batches:
        Path("end").touch()
    optimizer.state_dict()  # with lazy=True it waits
    print(json.dumps([taken, wrong, run.position.step, -net.weight.item()]))


def backed_norm(epochs, **keys):
    """With a backup worker, statistics and a scaler: rank 1 overflows in a batch
    of each epoch, rank 0 evaluates after it. Prints the steps of the run, its
    updates and the state."""
    backup = {"type": "ps", "backup_workers": 1}
    run = capstan.init(strategy=backup, **keys)
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    scaler = torch.amp.GradScaler("cpu", 2.0)
    rule = torch.optim.SGD(net.parameters(), 0.01)
    optimizer = capstan.DistributedOptimizer(rule, net, scaler=scaler)
    loader = DataLoader(torch.rand(120, 1), batch_size=4)
    for epoch in run.epochs(epochs):
        for number, x in enumerate(run.shard(loader, epoch)):
            optimizer.zero_grad()
            bad = run.rank == 1 and number == 3
            loss = net(x).pow(2).mean() * (math.inf if bad else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if run.rank == 0:
            net.eval()
            with torch.no_grad():
                for x in loader:
                    net(x)
            net.train()
    at = run.position
    print(json.dumps([at.step, at.updates, state(net)]))


def backed_wrongly(habit, **keys):
    """With a backup worker, and HABIT of a script that does not go with it."""
    backup = {"type": "ps", "backup_workers": 1}
    run = capstan.init(strategy=backup, **keys)
    net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    if habit == "meets":
        net.insert(1, nn.SyncBatchNorm(2))
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1),
        net,
        rule="worker" if habit == "worker" else "server",
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    if habit == "keeps":
        run.keep()
    loader = DataLoader(torch.rand(16, 1), batch_size=1)

    def train(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        if habit != "accumulates":
            optimizer.step()
        if habit in ("schedules", "follows"):
            scheduler.step()

    def batches(epoch):
        if habit == "alone":
            return loader
        if habit == "both":
            pair = run.shard(loader, epoch), run.shard(loader, epoch)
            return (x for x, _ in zip(*pair))
        return run.shard(loader, epoch)

    with run.join() if habit == "joins" else contextlib.nullcontext():
        for epoch in range(2) if habit == "counts" else run.epochs(2):
            for number, x in enumerate(batches(epoch)):
                within = habit == "accumulates"
                with run.no_sync() if within else contextlib.nullcontext():
                    train(x)
                if habit == "follows":
                    for group in optimizer.param_groups:
                        group["lr"] = 0.1 * 0.9**run.position.step
                if habit == "leaves" and number == 3:
                    break
            if habit == "epochs":
                scheduler.step()
    print(json.dumps("complete"))


if __name__ == "__main__":
    processes.main(globals())
