# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_lightning.py do."""

import json
import signal

import frameworks
import lightning
import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import capstan.torch as capstan

EPOCH = 4  # steps


class Net(lightning.LightningModule):
    def __init__(self, seed=0, skip=None):
        super().__init__()
        torch.manual_seed(seed)
        self.skip = skip  # the step in which there is no loss
        self.layers = nn.Sequential(
            nn.Linear(frameworks.INPUTS, 16),
            nn.Tanh(),
            nn.Linear(16, frameworks.CLASSES),
        )

    def training_step(self, batch, index):
        if self.global_step == self.skip:
            return None
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), 0.5, momentum=0.9)

    def configure_optimizers(self):
        optimizer = self.optimizer()
        rate = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        schedule = {"scheduler": rate, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class SharedNet(Net):
    more = {}  # arguments of DistributedOptimizer

    def optimizer(self):
        plain = super().optimizer()
        return capstan.DistributedOptimizer(plain, self, **self.more)


class EarlyNet(SharedNet):
    """An epoch's last step may have fewer batches, and is clipped."""

    def on_before_optimizer_step(self, optimizer):
        optimizer.synchronize()


def dataset():
    x, y = frameworks.samples()
    count = EPOCH * frameworks.BATCH
    return TensorDataset(torch.tensor(x[:count]), torch.tensor(y[:count]))


def fit(
    net,
    loader,
    steps,
    clip=frameworks.CLIP,
    resume=None,
    callbacks=(),
    batches=1,
):
    trainer = lightning.Trainer(
        max_epochs=steps // EPOCH,
        accumulate_grad_batches=batches,
        gradient_clip_val=clip,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(net, loader, ckpt_path=resume)
    return trainer


def report(net):
    found = nn.utils.parameters_to_vector(net.parameters()).tolist()
    print(json.dumps(found), flush=True)


class Pause(lightning.Callback):
    def __init__(self, run, step):
        self.run, self.at = run, step

    def on_train_batch_start(self, trainer, net, batch, index):
        if self.run.rank == 1 and trainer.global_step == self.at:
            print("pauses", flush=True)
            signal.pause()


def plain(batches=1):
    net = Net()
    loader = DataLoader(dataset(), frameworks.BATCH)
    fit(net, loader, frameworks.STEPS, batches=batches)
    report(net)


def train(
    steps,
    save=None,
    resume=None,
    pause=None,
    skip=None,
    batches=1,
    early=False,
    more=None,
    rule="auto",
    **keys,
):
    """Rank 1 has no loss in step SKIP, and so nothing to clip then. A step has
    BATCHES, or EARLY fewer. MORE: of DistributedOptimizer."""
    run = capstan.init(**keys)
    kind = EarlyNet if early else SharedNet
    net = kind(run.rank, skip if run.rank == 1 else None)
    net.more = more or {"rule": rule}
    data = dataset()
    loader = DataLoader(
        data,
        frameworks.BATCH // run.size,
        sampler=DistributedSampler(data, run.size, run.rank, shuffle=False),
    )
    clip = frameworks.CLIP if skip is None else None
    pauses = [Pause(run, pause)]
    trainer = fit(net, loader, steps, clip, resume, pauses, batches)
    if save and run.rank == 0:
        trainer.save_checkpoint(save)
    report(net)


if __name__ == "__main__":
    processes.main(globals())
