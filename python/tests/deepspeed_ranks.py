# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_deepspeed.py do."""

import argparse
import contextlib
import json
import math
import os
import signal
import sys

import frameworks
import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import capstan.deepspeed as deepspeed

PASSES = 2  # batches of a step
# WarmupLR's, over 4 updates.
RATES = [0.0, 0.0, 0.015, 0.03 * math.log(3, 4), *[0.03] * 4]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(frameworks.INPUTS, 16),
        nn.Tanh(),
        nn.Linear(16, frameworks.CLASSES),
    )


def dataset():
    x, y = (torch.tensor(part) for part in frameworks.samples())
    return TensorDataset(x, y)


def report(found):
    sys.stdout.write(json.dumps(found) + "\n")  # in one piece
    sys.stdout.flush()


def weights(net):
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


def plain():
    """AdamW, the mean of a step's samples, clipping, and the rates above."""
    net = network()
    optimizer = torch.optim.AdamW(
        net.parameters(), betas=(0.8, 0.999), weight_decay=0.1
    )
    for step, (x, y) in enumerate(DataLoader(dataset(), frameworks.BATCH)):
        optimizer.param_groups[0]["lr"] = RATES[step]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), frameworks.CLIP)
        optimizer.step()
    report(weights(net))


def config(**more):
    return {
        "train_batch_size": frameworks.BATCH,
        "gradient_accumulation_steps": PASSES,
        "gradient_clipping": frameworks.CLIP,
        "optimizer": {
            "type": "Adam",
            "params": {"betas": [0.8, 0.999], "weight_decay": 0.1},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_max_lr": 0.03, "warmup_num_steps": 4},
        },
        **more,
    }


def batches(engine):
    data = dataset()
    size, rank = engine.world_size, engine.global_rank
    sampler = DistributedSampler(data, size, rank, shuffle=False)
    micro = engine.train_micro_batch_size_per_gpu()
    return DataLoader(data, micro, sampler=sampler)


def train(steps, save=None, resume=None, pause=None, more=None, **keys):
    deepspeed.init_distributed(**keys)
    rank = deepspeed.torch_run().rank
    net = network(rank)  # rank 0's are all ranks'
    engine, _, loader, scheduler = deepspeed.initialize(
        model=net, config=config(**(more or {}))
    )
    assert loader is None and scheduler is engine.lr_scheduler
    first = 0
    if resume:
        path, client = engine.load_checkpoint(resume)
        assert path and client["note"] == "half"
        first = engine.global_steps
        assert first == frameworks.STEPS // 2, first
    for number, (x, y) in enumerate(batches(engine)):
        step = number // PASSES
        if not first <= step < steps:
            continue
        if engine.global_rank == 1 and step == pause and number % PASSES == 0:
            print("pauses", flush=True)
            signal.pause()
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        acts = engine.is_gradient_accumulation_boundary()
        assert acts == (number % PASSES == PASSES - 1)
        engine.step()
    assert engine.global_steps == steps, engine.global_steps
    if save:
        engine.save_checkpoint(save, client_state={"note": "half"})
    report(weights(net))


def halves(enabled, scale_power=8, **keys):
    """What mixed precision does, and what the engine says of itself."""
    deepspeed.init_distributed(**keys)
    half = {"enabled": True}
    if enabled == "fp16":
        half.update(initial_scale_power=scale_power, loss_scale_window=4)
    engine, *_ = deepspeed.initialize(
        model=network(), config=config(**{enabled: half})
    )
    dtype = torch.float16 if enabled == "fp16" else torch.bfloat16
    before = weights(engine.module)
    scales = []
    for x, y in batches(engine):
        loss = nn.functional.cross_entropy(engine(x.to(dtype)), y)
        engine.backward(loss)
        engine.step()
        if engine.micro_steps % PASSES == 0:
            scales.append(engine.loss_scale())
    kinds = {str(p.dtype) for p in engine.parameters()}
    engine.save_16bit_model("half")
    found = {
        "moved": weights(engine.module) != before,
        "scales": scales,
        "skipped": engine.skipped_steps,
        "steps": engine.global_steps,
        "samples": engine.global_samples,
        "enabled": [engine.fp16_enabled(), engine.bfloat16_enabled()],
        "kinds": sorted(kinds),
        "norm": engine.get_global_grad_norm(),
        "rates": engine.get_lr(),
        "sizes": [
            engine.train_batch_size(),
            engine.train_micro_batch_size_per_gpu(),
            engine.gradient_accumulation_steps(),
        ],
    }
    report(found)


def refusals(**keys):
    """The texts of what is refused, by what was called."""
    found = {}
    deepspeed.init_distributed(**keys)

    def tries(name, function):
        try:
            function()
        except (deepspeed.ConfigError, AttributeError) as error:
            found[name] = str(error)

    engine, optimizer, loader, _ = deepspeed.initialize(
        model=network(),
        training_data=dataset(),
        config=config(gradient_accumulation_steps=1),
    )
    tries("name", lambda: deepspeed.init_inference(network()))
    tries("engine", lambda: engine.flops_profiler)
    x, y = next(iter(loader))
    loss = nn.functional.cross_entropy(engine(x), y)
    tries("step", optimizer.step)
    events = config(tensorboard={"enabled": True})
    tries(
        "late", lambda: deepspeed.initialize(model=network(), config=events)
    )
    args = argparse.Namespace(deepspeed_config="ds.json")
    tries(
        "two",
        lambda: deepspeed.initialize(args, network(), config=config()),
    )
    tries("backward", lambda: loss.backward())
    tries("load", lambda: engine.load_checkpoint("none"))
    found["batch"] = len(x)
    report(found)


def taken():
    """The configuration is that of `capstan local`."""
    engine, *_ = deepspeed.initialize(model=network())
    report([engine.train_batch_size(), engine.global_rank])


def named():
    """The script reads the flag itself; TensorBoard's files are the run's."""
    path = f"ds{os.getpid()}.json"
    events = {"enabled": True, "output_path": "events", "job_name": "run"}
    with open(path, "w") as file:
        json.dump(config(tensorboard=events, steps_per_print=1), file)
    sys.argv += ["--deepspeed_config", path]
    deepspeed.init_distributed()
    engine, *_ = deepspeed.initialize(model=network(), config=path)
    for x, y in batches(engine):
        engine.backward(nn.functional.cross_entropy(engine(x), y))
        engine.step()
    report(engine.global_steps)


def differ():
    """Ranks that load other checkpoints."""
    engine, *_ = deepspeed.initialize(model=network(), config=config())
    if engine.global_rank == 1:
        engine.global_steps += 1
    with contextlib.suppress(StopIteration):
        for x, y in batches(engine):
            engine.backward(nn.functional.cross_entropy(engine(x), y))
            engine.step()


if __name__ == "__main__":
    functions = [plain, train, halves, refusals, taken, named, differ]
    processes.main({f.__name__: f for f in functions})
