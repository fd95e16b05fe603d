# SPDX-License-Identifier: Apache-2.0
"""A rank's part of what a torch DataLoader gives in an epoch.

What has an order, of samples or of batches, is drawn alike on all ranks, and
rank r has each size-th of it. The order is of (seed, epoch), so that a resumed
run goes on within it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
)

from .torch_exchange import wrong

if TYPE_CHECKING:
    from .torch import Run

# What a rank's loader has as the script's.
_SAME = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


def part_of(
    items: Sequence[Any], size: int, rank: int, drop_last: bool = False
) -> list[Any]:
    """RANK's part: item i is of rank i modulo SIZE.

    All parts have the same length. The first items are there twice if need be;
    with DROP_LAST the last ones are left out instead.
    """
    count = len(items)
    end = count // size * size if drop_last else -(-count // size) * size
    return [items[i % count] for i in range(rank, end, size)]


def generators() -> tuple[Any, ...]:
    """The states of Python's, NumPy's and torch's."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_generators(states: tuple[Any, ...]) -> None:
    """Sets what generators() has returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


class _Generators:
    """Within it Python's, NumPy's and torch's generators are those of NAME."""

    def __init__(self, name: str) -> None:
        own = random.Random(name)
        state = np.random.RandomState(own.getrandbits(32)).get_state()
        self.torch = torch.Generator().manual_seed(own.getrandbits(63))
        self._own = own.getstate(), state, self.torch.get_state()

    def __enter__(self) -> None:
        self._script = generators()
        set_generators(self._own)

    def __exit__(self, *_: Any) -> None:
        self._own = generators()
        set_generators(self._script)


def _chain(sampler: Any) -> list[Any]:
    """SAMPLER and what it draws from."""
    found: list[Any] = []
    while sampler is not None and sampler not in found:
        found.append(sampler)
        sampler = getattr(sampler, "sampler", None)
    return found


def _is_own(run: Run, chain: list[Any]) -> bool:
    """Does a sampler give this rank's part already?"""
    for sampler in chain:
        count = getattr(sampler, "num_replicas", 1)
        if count == 1:
            continue
        rank = getattr(sampler, "rank", None)
        if (count, rank) != (run.size, run.rank):
            raise wrong(
                f"run.shard takes no {type(sampler).__name__} of rank {rank} "
                f"of {count}: this is rank {run.rank} of {run.size}; give it "
                "num_replicas=run.size and rank=run.rank"
            )
        return True
    return False


def _draw_once(name: str, sampler: Any, chain: list[Any]) -> list[Any]:
    drawn = _Generators(name)
    own = [s for s in chain if isinstance(_generator(s), torch.Generator)]
    before = [s.generator for s in own]
    try:
        for s in own:
            s.generator = drawn.torch
        with drawn:
            return list(sampler)
    finally:
        for s, generator in zip(own, before):
            s.generator = generator


def _generator(sampler: Any) -> Any:
    return getattr(sampler, "generator", None)


def _plain(item: Any) -> Any:
    if hasattr(item, "tolist"):
        return item.tolist()
    if isinstance(item, (list, tuple)):
        return [_plain(i) for i in item]
    return item


def _draw(run: Run, sampler: Any, epoch: int, chain: list[Any]) -> list[Any]:
    """What SAMPLER gives in EPOCH, on all ranks and after a resume."""
    name = type(sampler).__name__
    if not hasattr(sampler, "__len__"):
        raise wrong(
            f"run.shard takes no {name} without __len__, which may have no "
            "end: give it one, or make the dataset an IterableDataset"
        )
    for s in chain:
        if hasattr(s, "set_epoch"):
            s.set_epoch(epoch)
    order = f"order {run.seed} {epoch}"
    found = _draw_once(order, sampler, chain)
    if _plain(found) != _plain(_draw_once(order, sampler, chain)):
        raise wrong(
            f"run.shard takes no {name} that gives another order each time: "
            "ranks would differ, and a resumed run too. Let it draw from "
            "torch's, NumPy's or Python's own generators, from a "
            "torch.Generator in its attribute generator, or from what its "
            "set_epoch() is told"
        )
    return found


def _items(run: Run, loader: DataLoader[Any], epoch: int) -> dict[str, Any]:
    """What a DataLoader of this rank's part has of its own."""
    batches: Any = loader.batch_sampler
    samples: Any = loader.sampler
    size, drop_last = loader.batch_size, loader.drop_last
    if type(batches) is BatchSampler:
        samples, size = batches.sampler, batches.batch_size
        drop_last = batches.drop_last
    elif batches is not None:
        chain = _chain(batches)
        found = _draw(run, batches, epoch, chain)
        own = _is_own(run, chain)
        return {
            "batch_sampler": (
                found if own else part_of(found, run.size, run.rank)
            )
        }
    common = {"batch_size": size, "drop_last": drop_last}
    if _is_whole(samples, loader.dataset):
        sampler: DistributedSampler[Any] = DistributedSampler(
            loader.dataset,
            run.size,
            run.rank,
            shuffle=isinstance(samples, RandomSampler),
            seed=run.seed,
            drop_last=drop_last,
        )
        sampler.set_epoch(epoch)
        return {"sampler": list(sampler), **common}
    chain = _chain(samples)
    found = _draw(run, samples, epoch, chain)
    if not _is_own(run, chain):
        found = part_of(found, run.size, run.rank, drop_last)
    return {"sampler": found, **common}


def _is_whole(sampler: Any, dataset: Any) -> bool:
    """Does SAMPLER give each sample of DATASET once?"""
    known = type(sampler) in (RandomSampler, SequentialSampler)
    repeats = getattr(sampler, "replacement", False)
    return known and not repeats and len(sampler) == len(dataset)


class _Part(IterableDataset[Any]):
    """A rank's part of a stream that all ranks read alike."""

    def __init__(self, run: Run, samples: Any, drop_last: bool) -> None:
        self._size, self._rank = run.size, run.rank
        self._samples, self._drop_last = samples, drop_last

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        group: list[Any] = []
        for sample in self._samples:
            if len(group) == self._size:
                yield group[self._rank]
                group = []
            group.append(sample)
            if len(first) < self._size:
                first.append(sample)
        drop_last = self._drop_last and len(group) < self._size
        if group and not drop_last:
            yield [*group, *first * self._size][self._rank]


def _check_kind(kind: type[DataLoader[Any]]) -> None:
    for name in "__iter__", "_get_iterator":
        if getattr(kind, name) is not getattr(DataLoader, name):
            raise wrong(
                f"run.shard takes no {kind.__name__}, whose own {name} it would "
                "leave out: give it the torch.utils.data.DataLoader (as it was "
                "before accelerate's prepare()), and do with its batches what "
                f"{kind.__name__} does"
            )


_STREAMS = ("part", "whole")
_END = object()  # of a loader's batches


class _Raised(NamedTuple):
    """In place of a batch: what the loader raised."""

    error: Exception


def _next(batches: Iterator[Any]) -> Any:
    """The next of BATCHES, a _Raised, or _END."""
    try:
        return next(batches, _END)
    except Exception as error:
        return _Raised(error)


class _Loop:
    """Goes on after what a loader raises, as the loader does: a generator
    would be at its end."""

    def __init__(self, turns: Iterator[Any]) -> None:
        self._turns = turns

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Any:
        batch = next(self._turns)
        if isinstance(batch, _Raised):
            raise batch.error
        return batch


class Shard:
    """A rank's part of a DataLoader's samples in an epoch."""

    def __init__(
        self,
        run: Run,
        loader: DataLoader[Any],
        epoch: int,
        stream: str | None = None,
    ) -> None:
        _check_kind(type(loader))
        self._run = run
        self._drawn: _Generators | None = None  # of a stream
        of_stream = isinstance(loader.dataset, IterableDataset)
        if stream is not None and (stream not in _STREAMS or not of_stream):
            raise wrong(
                f"run.shard(stream={stream!r}): allowed are {_STREAMS}, of an "
                "IterableDataset"
            )
        if of_stream:
            own = self._open_stream(loader, epoch, stream)
        else:
            own = {"dataset": loader.dataset, **_items(run, loader, epoch)}
        self._epoch, self._trained = epoch, False
        self._behind = 0  # with backup workers: batches of steps that are over
        evaluates = not torch.is_grad_enabled()
        self._first = 0 if evaluates else run._first_batch(epoch)
        if not of_stream:
            key = "sampler" if "sampler" in own else "batch_sampler"
            size = own.get("batch_size") or 1
            whole = len(own[key]) + (0 if own.get("drop_last") else size - 1)
            self._behind = max(0, self._first - whole // size)
            self._first -= self._behind
            own[key] = own[key][self._first * size :]
        # Not the global one, whose state a resumed run continues.
        own.setdefault(
            "generator",
            loader.generator
            or torch.Generator().manual_seed(
                run.seed + epoch * run.size + run.rank
            ),
        )
        same = {name: getattr(loader, name) for name in _SAME}
        self._loader = DataLoader(**same, **own)
        if self._first and (self._drawn or len(self._loader)):
            run._located = True

    def _open_stream(
        self, loader: DataLoader[Any], epoch: int, stream: str | None
    ) -> dict[str, Any]:
        run, dataset = self._run, loader.dataset
        if stream is None:
            raise wrong(
                "run.shard takes a loader of an IterableDataset by run.shard("
                'loader, epoch, stream="part") if the dataset gives the '
                'samples of run.rank of run.size only, or stream="whole" if '
                "it gives all, on each rank in the same order"
            )
        name = f"stream {run.seed} {epoch}"
        if stream == "part":
            name += f" {run.rank}"
        elif isinstance(dataset, IterDataPipe):
            raise wrong(
                'run.shard(stream="whole") takes no IterDataPipe: let it '
                'give the part of run.rank, and take stream="part"'
            )
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        self._drawn = _Generators(name)
        if stream == "whole":
            dataset = _Part(run, dataset, loader.drop_last)
        return {
            "dataset": dataset,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "generator": self._drawn.torch,
        }

    def __len__(self) -> int:
        if self._drawn:
            raise TypeError("a stream has no length")
        return self._first + len(self._loader)

    def _apart(self) -> contextlib.AbstractContextManager[None]:
        """Where torch would share a seed among ranks, which the run has done.

        A rank that joins late would wait for the next epoch of the others.
        """
        piped = isinstance(self._loader.dataset, IterDataPipe)
        if not piped or not torch.distributed.is_available():
            return contextlib.nullcontext()
        from . import torch_group

        return torch_group.hidden()

    def _batches(self) -> Iterator[Any]:
        """Batches, and a _Raised in place of one that the loader failed to
        make."""
        if self._drawn is None:
            batches = iter(self._loader)
            while (batch := _next(batches)) is not _END:
                yield batch
            return
        # The script's generators are apart: what a resumed run reads again
        # leaves them as the checkpoint had them.
        with self._drawn, self._apart():
            batches = iter(self._loader)
        number = 0
        while True:
            with self._drawn:
                batch = _next(batches)
            if batch is _END:
                self._behind += max(0, self._first - number)
                return
            if number >= self._first:
                yield batch
            number += 1

    def __iter__(self) -> Iterator[Any]:
        return _Loop(self._turns())

    def _turns(self) -> Iterator[Any]:
        """Where gradients are off a loop evaluates, and has no turns."""
        run, trains = self._run, torch.is_grad_enabled()
        follows, is_read = trains and run._is_backed, False
        if trains and self._trained:
            raise wrong(
                f"this is run.shard(loader, {self._epoch}), whose batches were "
                "trained with: call run.shard(loader, epoch) in each epoch"
            )
        if follows:
            self._open_alone()
        try:
            for number, batch in enumerate(self._batches(), self._first):
                if trains and run.ended:
                    run._end_loop()
                if trains and (run.ended or run._rewound):
                    return
                if follows and self._behind:
                    self._behind -= 1
                    self._take_step(number)
                    continue
                if isinstance(batch, _Raised):
                    yield batch
                    if follows:
                        self._check_one_step(0)
                    continue
                if trains and run._shard in (None, self):
                    run._begin_turn(run._batch)
                steps, missed = run._count, run._missed
                with run._within("shard"):
                    yield batch
                if run._count != steps:
                    self._take_step(number)
                if follows:
                    self._check_one_step(run._count - steps)
                    self._behind = run._missed - missed
            is_read = True
        finally:
            if run._shard is self:
                run._shard = None
            if follows:
                self._close_alone(is_read)

    def _open_alone(self) -> None:
        """With backup workers batches are those of the run's steps, and what is
        behind at the end of one shard is behind in the next."""
        run = self._run
        if run._left_shard:
            run._left_shard.fail_left()
        if run._open_shard:
            raise wrong(
                "two loops of run.shard train at once, and with "
                "strategy.backup_workers a step has a batch of one: give a "
                "loader batches of both, or take run.steps"
            )
        if self._first and run._count != run._begun_at:
            raise wrong(
                "with strategy.backup_workers run.shard is called where its "
                "loop begins, and not before another's"
            )
        run._open_shard = self
        self._behind += run._behind
        run._behind = 0

    def _close_alone(self, is_read: bool) -> None:
        run = self._run
        run._open_shard = None
        if not is_read:
            run._left_shard = self
            return
        run._behind = self._behind
        if self._first and self._behind:
            run._begun_at = -1  # the next one begins with its first batch

    def _check_one_step(self, steps: int) -> None:
        if steps == 1 or self._run.ended:
            return
        raise wrong(
            f"{steps} steps of a batch of run.shard, and with "
            "strategy.backup_workers each has one: leave run.no_sync() out, or "
            "take run.steps; a loop that evaluates is in torch.no_grad()"
        )

    def fail_left(self) -> None:
        raise wrong(
            f"the loop over run.shard(loader, {self._epoch}) was left before "
            "its end, and with strategy.backup_workers ranks are at other "
            "batches there: read it to its end, or take run.steps"
        )

    def _take_step(self, number: int) -> None:
        """The run has taken one with batch NUMBER, and maybe with others of
        another shard, which counts them."""
        self._trained = True
        if self._run._shard is None:
            self._run._shard = self
        if self._run._shard is self:
            self._run._batch = number + 1
