# SPDX-License-Identifier: Apache-2.0
"""Rounds a second of capstan.torch beside DistributedDataParallel over Gloo.

bench_torch.py [REPEATS]: two ranks on this machine with one thread each, SGD,
an MLP 784-512-512-10. Runs are interleaved; medians of REPEATS (5).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time

from processes import PROGRAM, TESTS, free_port

BATCHES = {32: 600, 256: 300}  # a rank: steps
WARM_UP = 20  # steps
DDP, PS, ALL_REDUCE = "DDP", "1 ps", "all-reduce"


def rank(kind: str, batch: int, steps: int) -> None:
    """One rank; rank 0 prints its rounds a second."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(),
        nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    net: nn.Module = model
    if kind == DDP:
        torch.distributed.init_process_group("gloo")
        number = torch.distributed.get_rank()
        net = nn.parallel.DistributedDataParallel(model)
    else:
        import capstan.torch as capstan

        number = capstan.init(log=False).rank
        optimizer = capstan.DistributedOptimizer(optimizer, model)
    x = torch.randn(16, batch, 784)
    y = torch.randint(10, (16, batch))
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.perf_counter()
        optimizer.zero_grad()
        output = net(x[step % 16])
        nn.functional.cross_entropy(output, y[step % 16]).backward()
        optimizer.step()
    if number == 0:
        print(json.dumps(steps / (time.perf_counter() - start)), flush=True)
    if kind == DDP:
        torch.distributed.destroy_process_group()


def rate(kind: str, batch: int) -> float:
    """Of one run."""
    script = [sys.executable, __file__, kind, str(batch), str(BATCHES[batch])]
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS.parent),
        "OMP_NUM_THREADS": "1",
    }
    if kind == DDP:
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        launcher += ["--nproc_per_node", "2"]
        command = [*launcher, f"--master_port={free_port()}", *script[1:]]
    else:
        ps = "1" if kind == PS else "0"
        local = ["local", "--ps", ps, "--workers", "2", "--"]
        command = [str(PROGRAM), *local, *script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"{kind}: {done.stderr}")
    return float(done.stdout.strip().splitlines()[-1])


def main(repeats: int) -> None:
    cases = list(itertools.product(BATCHES, (DDP, PS, ALL_REDUCE)))
    rates: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for batch, kind in cases:
            rates[batch, kind].append(rate(kind, batch))
    print(f"rounds/s, median of {repeats}     min     max   of DDP")
    for batch, kind in cases:
        found = rates[batch, kind]
        middle = statistics.median(found)
        share = middle / statistics.median(rates[batch, DDP])
        print(
            f"batch {batch:3} {kind:12} {middle:8.1f} {min(found):7.1f} "
            f"{max(found):7.1f} {share:8.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
