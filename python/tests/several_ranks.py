# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_several.py do: scripts with several optimisers."""

import contextlib
import hashlib
import json
import time

import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import capstan.torch as capstan

BATCH, TURNS = 16, 12
BCE = nn.BCEWithLogitsLoss()
ONES, ZEROS = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
ADAM = {"lr": 2e-3, "betas": (0.5, 0.999)}


def nets():
    torch.manual_seed(3)
    made = nn.Sequential(
        *(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()),
        nn.Linear(32, 16),
    )
    told = nn.Sequential(
        *(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2)),
        nn.Linear(32, 1),
    )
    return made, told


class Script:
    """A model or two, an optimiser for each part, and a turn of the loop."""

    def __init__(self):
        self.made, self.told = nets()
        self.models = self.made, self.told
        self.optimizers = [
            torch.optim.Adam(m.parameters(), **ADAM) for m in self.models
        ]

    def noise(self):
        return torch.randn(BATCH, 8)

    def mean(self, optimizer):
        """Before what a script does with the gradients itself."""
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()


class DCGAN(Script):
    """What is made before the discriminator's step is used after it."""

    def turn(self, real):
        of_made, of_told = self.optimizers
        self.told.zero_grad()
        BCE(self.told(real), ONES).backward()
        fake = self.made(self.noise())
        BCE(self.told(fake.detach()), ZEROS).backward()
        of_told.step()
        self.made.zero_grad()
        BCE(self.told(fake), ONES).backward()
        of_made.step()


class WGAN(Script):
    """Clamps weights, and takes three steps of the critic in a turn."""

    def turn(self, real):
        of_made, of_told = self.optimizers
        self.told.requires_grad_(True)
        for _ in range(3):
            of_told.zero_grad()
            for p in self.told.parameters():
                p.data.clamp_(-0.05, 0.05)
            fake = self.made(self.noise()).detach()
            (self.told(fake).mean() - self.told(real).mean()).backward()
            of_told.step()
        self.told.requires_grad_(False)
        of_made.zero_grad()
        (-self.told(self.made(self.noise())).mean()).backward()
        of_made.step()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nets()


class ActorCritic(Script):
    """One model; the advantage is of the critic before its step. Clips."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        agent = Agent()
        self.models = agent, agent
        self.actor, self.critic = agent.actor, agent.critic
        self.optimizers = [
            torch.optim.AdamW(self.actor.parameters(), lr=2e-3),
            torch.optim.RMSprop(self.critic.parameters(), lr=1e-3),
        ]

    def turn(self, states):
        of_actor, of_critic = self.optimizers
        seen = states[:, :8] + 0.1 * self.noise()
        gain = self.actor(seen).sum(1, keepdim=True) - self.critic(states)
        of_critic.zero_grad()
        gain.pow(2).mean().backward(retain_graph=True)
        self.mean(of_critic)
        nn.utils.clip_grad_norm_(self.critic.parameters(), 0.5)
        of_critic.step()
        of_actor.zero_grad()
        policy = self.actor(seen).sum(1, keepdim=True)
        (-(policy * gain.detach()).mean()).backward()
        self.mean(of_actor)
        nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
        of_actor.step()


class TwoRules(Script):
    """Each optimiser has a part of a model, of one backward pass."""

    def __init__(self):
        super().__init__()
        net = self.told
        self.models = net, net
        first = getattr(torch.optim, "Muon", torch.optim.Adagrad)
        self.optimizers = [
            first([net[0].weight], lr=0.01),
            torch.optim.AdamW([net[0].bias, *net[3].parameters()], lr=0.01),
        ]

    def turn(self, real):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        BCE(self.told(real), ONES).backward()
        for optimizer in self.optimizers:
            optimizer.step()


SCRIPTS = {s.__name__: s for s in (DCGAN, WGAN, ActorCritic, TwoRules)}


def data():
    made = torch.Generator().manual_seed(9)
    return torch.randn(TURNS, BATCH, 16, generator=made)


def result(script):
    """A number of all bits, and weights and buffers."""
    state = [
        v.tolist()
        for model in dict.fromkeys(script.models)
        for v in model.state_dict().values()
    ]
    bits = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    print(json.dumps([bits, state]), flush=True)


def plain(script):
    script = SCRIPTS[script]()
    torch.manual_seed(5)
    for real in data():
        script.turn(real)
    result(script)


def wrapped(script):
    script.optimizers = [
        capstan.DistributedOptimizer(optimizer, model)
        for optimizer, model in zip(script.optimizers, script.models)
    ]


def train(script, **keys):
    """All ranks have the same batches."""
    run = capstan.init(optimizers=2, **keys)
    script = SCRIPTS[script]()
    wrapped(script)
    torch.manual_seed(5)
    run.keep()
    real = data()
    for turn in run.steps(TURNS):
        script.turn(real[turn])
        print("turn", turn, flush=True)
    result(script)


def uneven(script, counts, **keys):
    """Rank r has COUNTS[r] turns. As far as ranks have one they have the same
    batches."""
    run = capstan.init(optimizers=2, **keys)
    script = SCRIPTS[script]()
    wrapped(script)
    torch.manual_seed(5)
    run.keep()
    real = data()
    with run.join():
        for turn in run.steps(counts[run.rank]):
            script.turn(real[turn])
            print("turn", turn, flush=True)
    result(script)


class Count:
    """What a script keeps: the batches that it has had."""

    def __init__(self):
        self.batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def epochs(script, seconds=0.0, **keys):
    """Two epochs of this rank's own batches, and a rate that follows turns."""
    run = capstan.init(optimizers=2, seed=4, **keys)
    script = SCRIPTS[script]()
    wrapped(script)
    count = Count()
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for optimizer in script.optimizers
    ]
    torch.manual_seed(5)
    run.keep(count, *schedulers)
    loader = DataLoader(
        TensorDataset(data().flatten(0, 1)), BATCH, shuffle=True
    )
    for epoch in run.epochs(2):
        for (real,) in run.shard(loader, epoch):
            count.batches += 1
            script.turn(real)
            for scheduler in schedulers:
                scheduler.step()
            print("turn", flush=True)
            time.sleep(seconds)
    script.models += (nn.Linear(1, 1),)  # a place for the count
    script.models[-1].weight.data.fill_(count.batches)
    script.models[-1].bias.data.fill_(schedulers[0].get_last_lr()[0])
    result(script)


def led_epochs(script):
    epochs(script, 0.1, **processes.led(5))


class Adds(torch.optim.Optimizer):
    """Adds 1 to its weights."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p += 1


def adds(checkpoint, turns=0):
    """With staleness: the first of two takes one step a turn, the other two.
    Prints the weights at the start."""
    run = capstan.init(
        optimizers=2,
        strategy={"staleness": "inf"},
        checkpoint=checkpoint,
    )
    parts = [nn.Linear(300, 1, bias=False) for _ in range(2)]
    for part in parts:
        part.weight.data.zero_()
    one, two = (
        capstan.DistributedOptimizer(Adds(part.parameters()), part)
        for part in parts
    )
    weights = [sorted(set(p.weight.flatten().tolist())) for p in parts]
    print(json.dumps([weights, run.position.step]), flush=True)
    for turn in range(turns):
        two.step()
        one.step()
        two.step()
        print("turn", turn, flush=True)


def _refuse(name, run, script):
    """What a script must not do, by NAME."""
    made, told = script.optimizers
    if name == "one more":
        wrapped(script)
        wrapped(Script())
    elif name == "shared":
        capstan.DistributedOptimizer(made, script.made)
        both = [*script.told.parameters(), script.made[0].weight]
        capstan.DistributedOptimizer(torch.optim.SGD(both, 0.1), script.told)
    elif name == "server":
        capstan.DistributedOptimizer(made, script.made, rule="server")
    elif name == "lazy":
        capstan.DistributedOptimizer(made, script.made, lazy=True)
    elif name == "early":
        capstan.DistributedOptimizer(made, script.made).step()
    elif name == "table":
        bag = nn.Sequential(capstan.EmbeddingBag(4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(bag[1].parameters(), 0.1)
        capstan.DistributedOptimizer(optimizer, bag)
    elif name == "clips":
        wrapped(script)
        script.told(torch.ones(BATCH, 16)).sum().backward()
        nn.utils.clip_grad_norm_(script.told.parameters(), 0.1)
        script.optimizers[1].step()
    elif name == "differ":
        wrapped(script)
        script.optimizers[run.rank].step()
    elif name == "left out":
        capstan.DistributedOptimizer(made, script.made)
        run.close()


def refuse(what, number=2):
    """Prints the error."""
    try:
        run = capstan.init(optimizers=number)
        with contextlib.suppress(SystemExit):
            _refuse(what, run, Script())
    except capstan.Error as error:
        print(json.dumps(str(error)), flush=True)
        raise


if __name__ == "__main__":
    processes.main(globals())
