# SPDX-License-Identifier: Apache-2.0
"""What capstan.torch costs. Runs are interleaved; medians of REPEATS (5).

bench_torch.py rounds [REPEATS]: rounds a second beside DistributedDataParallel
over Gloo: two ranks on this machine with one thread each, SGD, an MLP
784-512-512-10.
bench_torch.py small [REPEATS]: CPU time of a rank's process in a step with 160
small parameters, beside plain torch; one rank, as two and their ps would share the
caches and cores that plain torch has alone.
bench_torch.py start [REPEATS]: seconds from a command to the end of step 1.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from processes import PROGRAM, TESTS, free_port

BATCHES = {32: 600, 256: 300}  # a rank: steps
WARM_UP = 20  # steps
DDP, PS, ALL_REDUCE, PLAIN = "DDP", "1 ps", "all-reduce", "plain"


def loop(model: Any, x: Any, y: Any, optimizer: Any, steps: int) -> None:
    from torch import nn

    for step in range(steps):
        optimizer.zero_grad()
        output = model(x[step % len(x)])
        nn.functional.cross_entropy(output, y[step % len(y)]).backward()
        optimizer.step()


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
    loop(net, x, y, optimizer, WARM_UP)
    start = time.perf_counter()
    loop(net, x, y, optimizer, steps)
    if number == 0:
        print(json.dumps(steps / (time.perf_counter() - start)), flush=True)
    if kind == DDP:
        torch.distributed.destroy_process_group()


def small_rank(rule: str, steps: int) -> None:
    """One rank of RULE or of PLAIN torch, with 160 parameters; rank 0 prints
    its milliseconds of CPU a step, and the time of day after the first."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(80)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    if rule != PLAIN:
        import capstan.torch as capstan

        number = capstan.init(log=False).rank
        optimizer = capstan.DistributedOptimizer(optimizer, model, rule)
    x, y = torch.randn(16, 32, 8), torch.randint(8, (16, 32))
    loop(model, x, y, optimizer, 1)
    first = time.time()
    loop(model, x, y, optimizer, WARM_UP)
    start = time.process_time()
    loop(model, x, y, optimizer, steps)
    used = 1000 * (time.process_time() - start) / steps if steps else 0.0
    if number == 0:
        print(json.dumps([used, first]), flush=True)


def run(command: list[str]) -> Any:
    """What rank 0 prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS.parent),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def local(ps: int, workers: int, *script: str) -> list[str]:
    roles = ["--ps", str(ps), "--workers", str(workers)]
    return [str(PROGRAM), "local", *roles, "--", *script]


def rate(batch: int, kind: str) -> float:
    """Of one run."""
    script = [__file__, "rank", kind, str(batch), str(BATCHES[batch])]
    if kind == DDP:
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        launcher += ["--nproc_per_node", "2"]
        return run([*launcher, f"--master_port={free_port()}", *script])
    return run(local(int(kind == PS), 2, sys.executable, *script))


def small_of(rule: str, workers: int, steps: int) -> tuple[float, float]:
    """Milliseconds of CPU a step, and seconds until the first has ended."""
    script = [sys.executable, __file__, "small_rank", rule, str(steps)]
    start = time.time()
    used, first = run(script if rule == PLAIN else local(1, workers, *script))
    return used, first - start


def medians(
    what: str, repeats: int, cases: list[Any], one: Callable[..., float]
) -> None:
    """Prints what ONE measures of each case, beside the first of its kind."""
    found: dict[Any, list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            found[case].append(one(*case))
    print(f"{what}, median of {repeats:2}     min     max")
    for case in cases:
        words = " ".join(map(str, case))
        print(
            f"{words:24} {statistics.median(found[case]):9.3f} "
            f"{min(found[case]):7.3f} {max(found[case]):7.3f}"
        )


def main(which: str, repeats: int) -> None:
    if which == "rounds":
        kinds = itertools.product(BATCHES, (DDP, PS, ALL_REDUCE))
        medians("batch, rounds/s", repeats, list(kinds), rate)
    elif which == "small":
        of_rules = [(rule, 1) for rule in (PLAIN, "server", "worker")]
        medians(
            "rule, workers: ms", repeats, of_rules,
            lambda rule, workers: small_of(rule, workers, 2000)[0],
        )  # fmt: skip
    else:
        starts = [(PLAIN, 1), ("server", 1), ("server", 2)]
        medians(
            "rule, workers: s", repeats, starts,
            lambda rule, workers: small_of(rule, workers, 0)[1],
        )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "small_rank":
        small_rank(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
