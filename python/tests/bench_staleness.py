# SPDX-License-Identifier: Apache-2.0
"""Accuracy or loss with staleness beside a synchronous run's, at equal samples.

bench_staleness.py images|text [SEED...]: 2 and 4 workers, staleness 4 and "inf",
rates r, r / 2 and r / workers. "images" is the network of fashion_mnist.py and SGD
with momentum 0.9; "text" is a transformer that tells the next byte of the texts in
/usr/share/doc, and Adam. One line of JSON for each run, of EPOCHS (2) epochs of
SAMPLES (16000) samples.

bench_staleness.py images|text alone LATE RATE SEED: the same in one process
without Capstan, each step with the gradient of the weights LATE steps before: what
comes of that, and not of an exchange.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import PROGRAM, SETTINGS

BATCH = 32  # a rank
CONTEXT = 32  # bytes
TEXT = 4 << 20  # bytes, of which the last 32nd is the test's


class Images:
    rate = 0.01
    samples = int(os.environ.get("SAMPLES", 16000))
    tested = min(samples // 4, 10000)
    epochs = int(os.environ.get("EPOCHS", 2))

    def __init__(self) -> None:
        from capstan.examples import fashion_mnist as example

        folder = str(example.FOLDER)
        self.data = example.dataset("train", self.samples, folder)
        self.test = example.dataset("t10k", self.tested, folder)
        self.network = example.network

    def optimizer(self, model: Any, rate: float) -> Any:
        import torch

        return torch.optim.SGD(model.parameters(), rate, momentum=0.9)

    def loss(self, model: Any, x: Any, y: Any) -> Any:
        from torch import nn

        return nn.functional.cross_entropy(model(x), y)

    def quality(self, model: Any) -> float:
        from capstan.examples import fashion_mnist as example

        return example.accuracy(model, self.test)


class Text(Images):
    rate = 0.002

    def __init__(self) -> None:
        import torch
        from torch.utils.data import TensorDataset

        bytes_of = torch.frombuffer(bytearray(_text()), dtype=torch.uint8)
        cut = len(bytes_of) - len(bytes_of) // 32
        generator = torch.Generator().manual_seed(0)
        starts = torch.randint(
            cut - CONTEXT - 1, (self.samples,), generator=generator
        )
        rows = bytes_of.unfold(0, CONTEXT + 1, 1)
        taken = rows[starts].long()
        self.data = TensorDataset(taken[:, :-1], taken[:, 1:])
        self.tested_rows = rows[cut::CONTEXT].long()[:1000]

    def network(self) -> Any:
        import torch
        from torch import nn

        class Transformer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bytes = nn.Embedding(256, 64)
                self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, 64))
                layer = nn.TransformerEncoderLayer(
                    64, 4, 256, 0.0, batch_first=True, norm_first=True
                )
                self.layers = nn.TransformerEncoder(
                    layer, 2, nn.LayerNorm(64), enable_nested_tensor=False
                )
                self.told = nn.Linear(64, 256)

            def forward(self, x: Any) -> Any:
                mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
                found = self.bytes(x) + self.places
                found = self.layers(found, mask, is_causal=True)
                return self.told(found).transpose(1, 2)

        return Transformer()

    def optimizer(self, model: Any, rate: float) -> Any:
        import torch

        return torch.optim.Adam(model.parameters(), rate)

    def quality(self, model: Any) -> float:
        """The loss of the test's bytes, in nats."""
        import torch

        with torch.no_grad():
            x, y = self.tested_rows[:, :-1], self.tested_rows[:, 1:]
            return float(self.loss(model, x, y))


TASKS = {"images": Images, "text": Text}


def _text() -> bytes:
    """The first TEXT bytes of the texts, in the order of their names, each once."""
    found, seen = bytearray(), set()
    for path in sorted(Path("/usr/share/doc").glob("*/copyright")):
        content = path.read_bytes()
        if content not in seen and len(found) < TEXT:
            seen.add(content)
            found += content
    return bytes(found[:TEXT])


def train(task: Any, staleness: str, rate: float, seed: int) -> None:
    """One rank; rank 0 prints the quality once all ranks have ended."""
    import torch
    from torch.utils.data import DataLoader

    import capstan.torch as capstan

    torch.set_num_threads(1)
    bound = staleness if staleness == "inf" else int(staleness)
    run = capstan.init(strategy={"staleness": bound}, seed=seed)
    torch.manual_seed(seed)
    model = task.network()
    optimizer = capstan.DistributedOptimizer(task.optimizer(model, rate), model)
    loader = DataLoader(task.data, BATCH, shuffle=True)
    for epoch in run.epochs(task.epochs):
        for x, y in run.shard(loader, epoch):
            optimizer.zero_grad()
            task.loss(model, x, y).backward()
            optimizer.step()
    run.barrier()
    optimizer.zero_grad()
    optimizer.step()  # brings what the others have sent last
    if run.rank == 0:
        print(task.quality(model))


def alone(task: Any, late: int, rate: float, seed: int) -> None:
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    model = task.network()
    optimizer = task.optimizer(model, rate)
    loader = DataLoader(task.data, BATCH, shuffle=True)
    weights: collections.deque[Any] = collections.deque(maxlen=late + 1)
    replica = copy.deepcopy(model)
    batches = itertools.chain.from_iterable(loader for _ in range(task.epochs))
    for x, y in batches:
        weights.append([p.detach().clone() for p in model.parameters()])
        with torch.no_grad():
            for own, value in zip(replica.parameters(), weights[0]):
                own.copy_(value)
        replica.zero_grad()
        task.loss(replica, x, y).backward()
        for own, given in zip(model.parameters(), replica.parameters()):
            own.grad = given.grad
        optimizer.step()
    replica.load_state_dict(
        {**replica.state_dict(), **dict(model.named_parameters())}
    )
    print(task.quality(replica))


def measure(
    name: str, workers: int, staleness: str, rate: float, seed: int
) -> None:
    local = [str(PROGRAM), "local", "--ps", "1", "--workers", str(workers)]
    script = [sys.executable, __file__, name, "rank", staleness]
    done = subprocess.run(
        [*local, "--", *script, str(rate), str(seed)],
        env={**os.environ, **SETTINGS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    found = {"workers": workers, "seed": seed, "staleness": staleness}
    found.update(rate=rate, quality=float(done.stdout))
    print(json.dumps(found), flush=True)


def compare(name: str, workers: int, seed: int) -> None:
    first = TASKS[name].rate
    measure(name, workers, "0", first, seed)
    for staleness in "4", "inf":
        for part in sorted({1, 2, workers}):
            measure(name, workers, staleness, first / part, seed)


def main() -> None:
    name, words = sys.argv[1], sys.argv[2:]
    if words[:1] == ["rank"]:
        train(TASKS[name](), words[1], float(words[2]), int(words[3]))
    elif words[:1] == ["alone"]:
        late, rate, seed = words[1:]
        alone(TASKS[name](), int(late), float(rate), int(seed))
    else:
        for number in [int(word) for word in words] or [1]:
            for workers in 2, 4:
                compare(name, workers, number)


if __name__ == "__main__":
    main()
