# SPDX-License-Identifier: Apache-2.0
# The calls of DeepSpeed's CIFAR example, in their order, with images of
# Fashion-MNIST; deepspeed_images.py is the same with Capstan.
# deepspeed deepspeed_images_plain.py --dtype bf16
import argparse
import os

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--log-interval", type=int, default=200)
parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
parser.add_argument("--stage", type=int, default=0, choices=(0, 1, 2))
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

config = {
    "train_batch_size": 64,
    "steps_per_print": 2000,
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 1e-3, "betas": [0.8, 0.999], "weight_decay": 3e-7},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 100},
    },
    "gradient_clipping": 1.0,
    "bf16": {"enabled": args.dtype == "bf16"},
    "fp16": {"enabled": args.dtype == "fp16", "initial_scale_power": 15},
    "zero_optimization": {"stage": args.stage, "reduce_scatter": True},
}

deepspeed.init_distributed()
local_rank = int(os.environ["LOCAL_RANK"])
get_accelerator().set_device(local_rank)


def dataset(part, count):
    x, y = read(part, count)
    return TensorDataset(torch.from_numpy(x)[:, None], torch.from_numpy(y))


train = dataset("train", args.samples)
test = dataset("t10k", args.samples)
net = nn.Sequential(
    nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
    nn.Linear(84, 10),
)  # fmt: skip
parameters = filter(lambda p: p.requires_grad, net.parameters())
engine, optimizer, loader, _ = deepspeed.initialize(
    args=args,
    model=net,
    model_parameters=parameters,
    training_data=train,
    config=None if args.deepspeed_config else config,
)
device = get_accelerator().device_name(engine.local_rank)
dtype = torch.float32
if engine.bfloat16_enabled():
    dtype = torch.bfloat16
elif engine.fp16_enabled():
    dtype = torch.half
criterion = nn.CrossEntropyLoss()

for epoch in range(args.epochs):
    running = 0.0
    for i, data in enumerate(loader):
        inputs, labels = data[0].to(device), data[1].to(device)
        outputs = engine(inputs.to(dtype))
        loss = criterion(outputs, labels)
        engine.backward(loss)
        engine.step()
        running += loss.item()
        if engine.global_rank == 0 and (i + 1) % args.log_interval == 0:
            loss = running / args.log_interval
            print(f"epoch {epoch + 1}, batch {i + 1}: loss {loss:.3f}")
            running = 0.0

engine.eval()
right = 0
with torch.no_grad():
    for x, y in DataLoader(test, 1000):
        outputs = engine(x.to(device).to(dtype))
        right += (outputs.argmax(1) == y.to(device)).sum().item()
if engine.global_rank == 0:
    print(f"accuracy {right / len(test):.4f}")
