# SPDX-License-Identifier: Apache-2.0
# Trains by torch's DistributedDataParallel; ddp.py is the same with Capstan.
# torchrun --nproc_per_node 2 ddp_plain.py
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
teacher = nn.Linear(8, 1)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model = nn.parallel.DistributedDataParallel(model)
data = torch.Generator().manual_seed(1 + rank)
for step in range(200):
    x = torch.randn(32, 8, generator=data)
    loss = nn.functional.mse_loss(model(x), teacher(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if rank == 0:
    weights = nn.utils.parameters_to_vector(model.parameters())
    print(f"norm of the weights {weights.norm():.6f}")
dist.destroy_process_group()
