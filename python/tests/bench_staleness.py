# SPDX-License-Identifier: Apache-2.0
"""Accuracy with staleness beside a synchronous run's, at equal samples.

bench_staleness.py [SEED...]: 2 and 4 workers, staleness 4 and "inf", SGD with
momentum 0.9 of rates r, r / 2 and r / workers; the network of fashion_mnist.py.
One line of JSON for each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from processes import PROGRAM, SETTINGS

RATE, BATCH, EPOCHS, SAMPLES, TESTED = 0.01, 32, 2, 16000, 4000


def rank(staleness: str, rate: float, seed: int) -> None:
    """One rank; rank 0 prints the accuracy of the test images."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    import capstan.torch as capstan
    from capstan.examples import fashion_mnist as example

    torch.set_num_threads(1)
    bound = staleness if staleness == "inf" else int(staleness)
    run = capstan.init(strategy={"staleness": bound}, seed=seed)
    torch.manual_seed(seed)
    model = example.network()
    optimizer = capstan.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), rate, momentum=0.9), model
    )
    folder = str(example.FOLDER)
    data = example.dataset("train", SAMPLES, folder)
    loader = DataLoader(data, BATCH, shuffle=True)
    for epoch in run.epochs(EPOCHS):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if run.rank == 0:
        tested = example.dataset("t10k", TESTED, folder)
        print(example.accuracy(model, tested))


def measure(workers: int, staleness: str, rate: float, seed: int) -> None:
    local = [str(PROGRAM), "local", "--ps", "1", "--workers", str(workers)]
    script = [sys.executable, __file__, "rank", staleness, str(rate), str(seed)]
    done = subprocess.run(
        [*local, "--", *script],
        env={**os.environ, **SETTINGS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    found = {"workers": workers, "seed": seed, "staleness": staleness}
    found.update(rate=rate, accuracy=float(done.stdout))
    print(json.dumps(found), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
        return
    for seed in [int(word) for word in sys.argv[1:]] or [1]:
        for workers in 2, 4:
            measure(workers, "0", RATE, seed)
            for staleness in "4", "inf":
                for part in sorted({1, 2, workers}):
                    measure(workers, staleness, RATE / part, seed)


if __name__ == "__main__":
    main()
