# SPDX-License-Identifier: Apache-2.0
"""A generator and a discriminator, each with an optimiser of its own.

capstan local --ps 1 --workers 2 -- python gan.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import capstan.torch as capstan
from capstan.examples import images

run = capstan.init(optimizers=2)
torch.manual_seed(run.rank)
made = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU())
made.extend([nn.Linear(256, 784), nn.Sigmoid()])
told = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
settings = {"lr": 2e-4, "betas": (0.5, 0.999)}
of_made = torch.optim.Adam(made.parameters(), **settings)
of_told = torch.optim.Adam(told.parameters(), **settings)
of_made = capstan.DistributedOptimizer(of_made, made)
of_told = capstan.DistributedOptimizer(of_told, told)
run.keep()

x, _ = images.read(count=4096)
loader = DataLoader(TensorDataset(torch.tensor(x).flatten(1)), 64, shuffle=True)
loss = nn.BCEWithLogitsLoss()
for epoch in run.epochs(2):
    for (real,) in run.shard(loader, epoch):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = made(torch.randn(len(real), 64))
        of_told.zero_grad()
        of_real, of_fake = told(real), told(fake.detach())
        (loss(of_real, ones) + loss(of_fake, zeros)).backward()
        of_told.step()
        of_made.zero_grad()
        fooled = loss(told(fake), ones)
        fooled.backward()
        of_made.step()
        run.report(fooled.item(), len(real))
if run.rank == 0:
    print(f"loss of the generator {fooled.item():.3f}")
