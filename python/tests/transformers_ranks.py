# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_transformers.py do."""

import json
import pathlib
import signal

import frameworks
import processes
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import capstan.torch as capstan

WORDS = 16


def network():
    """Without dropout, which would differ from one process's."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=frameworks.INPUTS,
            num_labels=frameworks.CLASSES,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def dataset():
    x, y = frameworks.samples()
    words = (torch.tensor(x).sigmoid() * WORDS).long()
    return [{"input_ids": a, "labels": int(b)} for a, b in zip(words, y)]


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)


class InOrder(Trainer):
    """Each of its releases has another setting for that, or none."""

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer_of(net, optimizer, data, steps, size, **settings):
    """Two backward passes a step; the Trainer clips and sets rates."""
    return InOrder(
        net,
        TrainingArguments(
            max_steps=steps,
            per_device_train_batch_size=frameworks.BATCH // size // 2,
            gradient_accumulation_steps=2,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=3,
            max_grad_norm=frameworks.CLIP,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            **settings,
        ),
        train_dataset=data,
        optimizers=(optimizer, None),
    )


def weights(net):
    return torch.nn.utils.parameters_to_vector(net.parameters()).tolist()


class Pause(TrainerCallback):
    def __init__(self, run, step):
        self.run, self.at = run, step

    def on_step_begin(self, args, state, control, **more):
        if self.run.rank == 1 and state.global_step == self.at:
            print("pauses", flush=True)
            signal.pause()


def plain():
    net, steps = network(), frameworks.STEPS
    settings = {"output_dir": "none", "save_strategy": "no"}
    trainer_of(net, sgd(net), dataset(), steps, 1, **settings).train()
    print(json.dumps(weights(net)))


def train(steps, save=None, resume=None, pause=None, rule="auto", **keys):
    run = capstan.init(**keys)
    net = network()
    optimizer = capstan.DistributedOptimizer(sgd(net), net, rule)
    saves = save and run.rank == 0
    trainer = trainer_of(
        net,
        optimizer,
        run.part(dataset()),
        steps,
        run.size,
        output_dir=save or "none",
        save_strategy="steps" if saves else "no",
        save_steps=steps,
    )
    trainer.add_callback(Pause(run, pause))
    trainer.train(resume_from_checkpoint=resume and f"{resume}/checkpoint-4")
    if not resume and "strategy" not in keys:  # a step of two backward passes is one of the run
        assert run.position.step == steps
    print(json.dumps(weights(net)), flush=True)


def saves(folder):
    """Each rank in a folder of its own."""
    run = capstan.init()
    net = network()
    optimizer = capstan.DistributedOptimizer(sgd(net), net)
    trainer = trainer_of(
        net,
        optimizer,
        run.part(dataset()),
        2,
        run.size,
        output_dir=f"{folder}/{run.rank}",
        save_strategy="steps",
        save_steps=2,
    )
    trainer.train()
    found = sorted(
        path.name
        for path in pathlib.Path(folder, f"{run.rank}/checkpoint-2").iterdir()
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    processes.main(globals())
