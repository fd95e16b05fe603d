# SPDX-License-Identifier: Apache-2.0
"""Capstan for PyTorch.

import torch, capstan.torch as capstan

run = capstan.init()
model = Net()
optimizer = capstan.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), model)
for epoch in run.epochs(5):
    for x, y in run.shard(loader, epoch):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.data import DataLoader, Subset

from . import (
    EMPTY,
    ENDS,
    FULL,
    GOES_ON,
    REWOUND,
    VOID,
    ZERO,
    ConfigError,
    Contribution,
    Error,
    Failed,
    Interrupted,
    Outcome,
    PeerLost,
    Position,
    torch_needed,  # before what an older torch lacks
)
from . import Run as PlainRun
from .overrides import described
from .run import current, join, version
from .torch_exchange import Exchange, wrong
from .torch_rules import (
    Adder,
    Rule,
    Server,
    Worker,
    adder_lacks,
    has_state,
    mixed,
    server_lacks,
)
from .torch_several import ChangeInTurn, InTurn, Several
from .torch_shard import Shard, part_of
from .torch_tables import Embedding, EmbeddingBag, bags, take_sparse

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .job_keys import JobKeys

__all__ = [
    "ConfigError",
    "Contribution",
    "DistributedOptimizer",
    "EMPTY",
    "ENDS",
    "Embedding",
    "EmbeddingBag",
    "Error",
    "FULL",
    "Failed",
    "GOES_ON",
    "Interrupted",
    "Outcome",
    "PeerLost",
    "Position",
    "REWOUND",
    "Run",
    "Shard",
    "VOID",
    "ZERO",
    "bags",
    "current",
    "init",
    "version",
]


class Run(PlainRun):
    """One process's part in a run, with torch's data and gradients."""

    _hint = "wrap the optimiser in DistributedOptimizer"
    syncs = True  # backward() sends gradients
    seed = 0
    takes_sparse = False  # nn.Embedding(sparse=True) becomes a table
    state_rows = 1_000_000  # most rows of a table that state_dict() has
    frozen = "assigned"  # or "trained": parameters frozen at the start
    exchange: Exchange | None = None
    optimizer: Rule | Several | None = None  # DistributedOptimizer's
    num_optimizers = 1  # init(optimizers=)
    joins = False  # the loop is in join()
    skips = False  # a step with a gradient that is not finite is left out
    reported = (0.0, 0, 0)  # with the next step: loss, samples, correct
    _batch = 0  # of the epoch, that comes next; of steps() the turn
    _shard: Shard | None = None  # whose loop takes the steps
    _open_shard: Shard | None = None  # with backup workers, the only one
    _left_shard: Shard | None = None  # the same, not read to its end
    _kept_batch: int | None = None  # where a resumed run goes on
    _begun: Position | None = None  # where it was started, or went back to
    _begun_at = 0  # the count of steps then
    _epoch_count = 0  # the same where the present epoch began,
    _asked_count = -1  # and where the script has asked for the position
    _back: list[torch.Tensor] = []  # what it had when it went back
    _watch: Any = None  # of modules that average gradients themselves

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to .grad and send nothing."""
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """The loop within it may have more batches on some ranks than others.

        At its end this rank takes part in the others' steps, without a batch,
        until all are at theirs, which takes one step more, that changes no
        weights. Gradients are averaged over the ranks with a batch. With
        staleness no rank waits for another.
        """
        rule, exchange = self.optimizer, self.exchange
        if rule is None or exchange is None:
            raise wrong("run.join() comes after DistributedOptimizer")
        if self._is_backed:
            raise wrong(
                "run.join() with strategy.backup_workers, where ranks are not "
                "at the same step: give all ranks as many batches, as "
                "run.shard does, or set that to 0"
            )
        if isinstance(rule, Server) and not exchange.trained:
            raise wrong("run.join() takes a model with parameters beside rows")
        self.joins = True
        try:
            yield
            with self._within("shard"):
                while not (self.is_stale or self.ended or self._rewound):
                    if not rule.capstan_follow():
                        break
        finally:
            self.joins = False

    def _finish(self, early: bool = False) -> None:
        if text := self._within_step():
            self.fail(text)
            raise wrong(text)
        super()._finish(early)

    def _within_step(self) -> str:
        if self.exchange and not self.ended:
            return self.exchange.check_ended()
        return ""

    def _free(self) -> None:
        super()._free()
        if self.optimizer:
            self.optimizer.capstan_close()
        if self.exchange:
            self.exchange.let_go()
        if self._watch:
            self._watch.remove()

    def forget(self) -> None:
        super().forget()
        if self.exchange:
            self.exchange.let_go()

    def init_process_group(self) -> None:
        """The run's trainers become torch.distributed's default group.

        init() has done so, but with process_group=False, or where the script
        has ended the group. all_reduce, all_gather, broadcast, barrier,
        reduce, reduce_scatter, gather, scatter and all_to_all, and those of
        objects, are collectives of the run. Others, and groups of some ranks,
        are errors with their names. Gradients are averaged by
        DistributedOptimizer.
        """
        if not torch.distributed.is_available():
            raise wrong("this torch has no torch.distributed")
        from . import torch_group

        if torch_group.is_there_of(self):
            self._say("the run's trainers are the default group already")
        elif not self._make_group():
            raise wrong(
                "a process group is there already: leave the script's "
                "init_process_group out, or make it after capstan.init()"
            )

    def _make_group(self) -> bool:
        """Makes the default group, unless the script has one."""
        from . import torch_group

        made = torch_group.make(self)
        if made and self._watch is None:
            self._watch = register_module_module_registration_hook(
                lambda module, *_: _check_alone(module)
            )
        return made

    def _say(self, text: str) -> None:
        if self.logs and self.rank == 0:
            print(f"capstan: {text}", file=sys.stderr)

    def report(self, loss: float, samples: int, correct: int = 0) -> None:
        """Reports the mean LOSS over SAMPLES with the next step."""
        self.reported = float(loss), samples, correct

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs from the run's present one to COUNT - 1, while it goes on."""
        for epoch in super().epochs(count):
            yield epoch
            if self.exchange and not self.ended:
                self.exchange.wait()

    def _go_back(self) -> None:
        super()._go_back()
        if self.exchange:
            self.exchange.take_again()
            tensors = self.exchange.tensors()
            self._back = [t.clone() for t in tensors]

    def _own_state(self) -> dict[str, Any]:
        found = super()._own_state()
        found.update(torch=torch.get_rng_state(), batch=self._batch)
        if self.optimizer:
            groups = self.optimizer.param_groups
            found["groups"] = [{**group, "params": None} for group in groups]
        if isinstance(self.optimizer, Several):
            return self.optimizer.added_to(found)
        return found

    def _set_own_state(self, states: dict[str, Any]) -> None:
        super()._set_own_state(states)
        torch.set_rng_state(states["torch"])
        self._kept_batch = self._batch = states["batch"]
        if self.optimizer:
            groups = self.optimizer.param_groups
            for group, saved in zip(groups, states["groups"]):
                group.update({**saved, "params": group["params"]})
        if isinstance(self.optimizer, Several):
            self.optimizer.resume(states)

    def begin_epoch(self, number: int) -> None:
        if self._left_shard:
            self._left_shard.fail_left()
        behind = self._behind
        super().begin_epoch(number)
        self._batch = 0
        self._epoch_count = self._count
        if behind:
            self._begin_here()

    def _begin_turn(self, number: int) -> None:
        self._batch = number
        if isinstance(self.optimizer, Several):
            self.optimizer.begin_turn()
        super()._begin_turn(number)

    def _first_turn(self) -> int:
        if not isinstance(self.optimizer, Several):
            return super()._first_turn()
        kept, self._kept_batch = self._kept_batch, None
        step = self.position.step
        return step // self.num_optimizers if kept is None else kept

    @property
    def position(self) -> Position:
        """Where the run is; after start()."""
        self._asked_count = self._count
        return super().position

    def _check_schedule(self) -> None:
        """Raises ConfigError if values of the optimiser may be those of another
        step, as by a schedule that counts its calls."""
        known = self._asked_count, self._epoch_count
        if self._is_backed and self._count not in known:
            raise wrong(
                "values of the optimiser, such as its rate, were changed in "
                "an epoch: with strategy.backup_workers a schedule that counts "
                "its calls is behind once this rank misses steps: call it once "
                "an epoch, or set them by run.position.step in each step"
            )

    def start(self) -> None:
        super().start()
        self._begin_here()
        self._epoch_count = self._count

    def _restore(self) -> None:
        if self.exchange and not self.exchange.in_place:
            self.exchange.set_tensors(self._back)  # the turn has gone on
        self._back = []
        super()._restore()
        self._begin_here()

    def _begin_here(self) -> None:
        self._begun, self._begun_at = self._position(), self._count

    def _first_batch(self, epoch: int) -> int:
        """The batch at which EPOCH begins: not 0 where the run goes on within
        it, up to its first step."""
        begun = self._begun
        if begun is None or epoch != begun.epoch:
            return 0
        if self._count != self._begun_at:
            return 0
        kept = self._kept_batch
        if self.is_stale and self._joined:
            kept = None  # other ranks are further
        batch = begun.epoch_step // self.num_optimizers
        return batch if kept is None else kept

    def shard(
        self, loader: DataLoader, epoch: int, stream: str | None = None
    ) -> Shard:
        """This rank's batches of EPOCH, of LOADER's batch size each.

        Of a batch_sampler a rank has whole batches. STREAM says what an
        IterableDataset gives: "part": this rank's samples only; "whole": those
        of all ranks, in the same order on each.
        """
        return Shard(self, loader, epoch, stream)

    def part(self, dataset: Any) -> Any:
        """This rank's part of DATASET, for a trainer that draws batches.

        Sample i is of rank i modulo size. All parts have the same length: the
        first samples are there twice if need be. Of Hugging Face's datasets
        the part is a dataset too.
        """
        rows = part_of(range(len(dataset)), self.size, self.rank)
        if hasattr(dataset, "select"):
            return dataset.select(rows)
        return Subset(dataset, rows)

    share = part  # its older name


@described
def init(
    job: str | os.PathLike[str] | None = None,
    *,
    keep_env: bool = False,
    log: bool = True,
    frozen: str = "assigned",
    optimizers: int = 1,
    tables: str | None = None,
    state_rows: int = 1_000_000,
    process_group: bool | None = None,
    **keys: Unpack[JobKeys],
) -> Run:
    """capstan.init() for torch.

    FROZEN "trained": parameters that are frozen at DistributedOptimizer, with
    rule "worker", may be trained later. Else they stay as rank 0 has them.
    OPTIMIZERS: how many DistributedOptimizers the script has, each with
    parameters of its own. The run starts with the last of them.
    TABLES "sparse": DistributedOptimizer makes tables of the model's
    nn.Embedding and nn.EmbeddingBag with sparse=True. STATE_ROWS: of a table
    with more rows state_dict() is an error.
    PROCESS_GROUP: the run's trainers are the default group of
    torch.distributed, which connects at its first collective. None: so they are,
    unless transformers.Trainer is imported, of which each process is alone: with
    a group it writes rank 0's files only, whatever folder a rank has.
    """
    if frozen not in ("assigned", "trained"):
        raise wrong(f'frozen is "{frozen}"; allowed: assigned, trained')
    if type(optimizers) is not int or optimizers < 1:
        raise wrong(
            f"optimizers is {optimizers!r}; allowed is a number from 1"
        )
    if tables not in (None, "sparse"):
        raise wrong(f'tables is {tables!r}; allowed: "sparse", None')
    if tables and optimizers > 1:
        raise wrong("init(tables='sparse') takes one DistributedOptimizer")
    if process_group is None:
        process_group = "transformers.trainer" not in sys.modules
    if type(process_group) is not bool:
        raise wrong(
            f"process_group is {process_group!r}; allowed: True, False, None"
        )
    run = join(Run, job, keep_env, log, keys)
    if process_group and torch.distributed.is_available():
        if not run._make_group():
            run._say(
                "the script has a process group of torch.distributed already, "
                "whose collectives are not the run's"
            )
    run.frozen, run.num_optimizers = frozen, optimizers
    run.takes_sparse, run.state_rows = tables == "sparse", state_rows
    if optimizers > 1:
        run._hint = f"wrap {optimizers} optimisers, as init(optimizers=) says"
    run.seed = keys.get("seed") or 0
    return run


def torch_run() -> Run:
    """The run that init() has opened."""
    run = current()
    if not isinstance(run, Run):
        raise wrong("call capstan.torch.init(), not capstan.init()")
    return run


_ALONE = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def _check_alone(module: nn.Module) -> None:
    """Raises ConfigError if MODULE averages gradients itself."""
    kinds = [kind.__name__ for kind in type(module).__mro__]
    for name in _ALONE:
        if name in kinds:
            raise wrong(
                f"the model is in {name}, which averages the gradients as "
                "DistributedOptimizer does: leave it out, and give "
                "DistributedOptimizer the model within it"
            )


def _check_modules(run: Run, model: nn.Module) -> None:
    """Raises ConfigError if a module of MODEL meets other ranks by itself."""
    for module in model.modules():
        _check_alone(module)
        if not isinstance(module, nn.SyncBatchNorm):
            continue
        if run.is_stale or run._is_backed:
            key = "staleness" if run.is_stale else "backup_workers"
            raise wrong(
                "the model has SyncBatchNorm, in whose forward pass all ranks "
                f"meet, and with strategy.{key} they take different steps: "
                f"take BatchNorm, or set strategy.{key} to 0"
            )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    rule: str = "auto",
    lazy: bool = False,
    scaler: Any = None,
    backward_passes_per_step: int = 1,
) -> torch.optim.Optimizer:
    """An optimiser whose step() is a step of the run on all ranks.

    It is an instance of a subclass of OPTIMIZER's class and shares its
    parameter groups. RULE "server": the ps apply SGD, Adam, AdamW, Adagrad or
    RMSprop; gradients are sent during backward(). RULE "worker": after
    backward() each .grad is the mean over the ranks, and OPTIMIZER applies it.
    LAZY: step() returns at once and each module waits for its own weights.
    SCALER: the GradScaler whose step() calls this one's. With rule "worker"
    the mean is of the sum of BACKWARD_PASSES_PER_STEP passes. RULE "auto":
    the ps's where they know the optimiser and no framework is imported.
    With strategy.staleness .grad is this rank's own with both rules, and
    clipping, accumulation and the GradScaler are the script's. With
    init(optimizers=2) a script has as many of them, with rule "worker": .grad
    is this rank's own until synchronize() or step(), which sends it.

                      rule "server"              rule "worker"
    optimiser         SGD, Adam, AdamW,          any of torch.optim.Optimizer
                      Adagrad, RMSprop
    it runs           on the ps; by all-reduce   on each rank
                      in the exchange
    .grad after       this rank's own, which     the mean over the ranks,
    backward()        has been sent              which the script may change
    clipping          init(clip=...)             the script's own, on the mean
    fp16              scaler=                    the script's GradScaler
    staleness         step() sends what .grad    step() sends the change
                      holds then: an update      of the weights, which the
                                                 ps add up
    its state         on the ps; state_dict()    on each rank, alike
                      fetches it
    restart           a checkpoint has it        init(checkpoint=...) keeps
                                                 it; without it a killed
                                                 worker stays out
    """
    run = torch_run()
    several = run.num_optimizers > 1
    if run.exchange:
        raise wrong(
            f"a DistributedOptimizer after {run.num_optimizers} of them: say "
            "in init(optimizers=) how many the script has, or give one all "
            "parameters, in groups"
        )
    _check_modules(run, model)
    has_framework = torch_needed.has_framework()
    kind = type(optimizer)
    loaded = has_state(optimizer)
    lacks = server_lacks(kind, optimizer.param_groups)
    if run.frozen == "trained":
        lacks = (
            "init(frozen='trained') takes DistributedOptimizer(..., "
            "rule='worker')"
        )
    if backward_passes_per_step != 1 and not run.is_stale:
        lacks = (
            "backward_passes_per_step is of rule 'worker': with rule 'server' "
            "do the passes before the last in run.no_sync()"
        )
    if several:
        lacks = f"init(optimizers={run.num_optimizers}) takes rule 'worker'"
    if rule == "auto":
        changed = has_framework and not run.is_stale  # gradients, by a loop
        known = not lacks and not changed and not loaded
        rule = "server" if known else "worker"
        if run.logs and run.rank == 0:
            print(f"capstan: {kind.__name__} by rule {rule}", file=sys.stderr)
    if rule not in ("server", "worker"):
        raise wrong(f'rule is "{rule}"; allowed: auto, server, worker')
    if rule == "server" and lacks:
        raise wrong(lacks)
    if rule == "server" and loaded:
        raise wrong(
            "rule server begins without state, and the optimiser has one: "
            "continue by init(checkpoint=...), or take rule 'worker'"
        )
    if lazy and isinstance(model, torch._dynamo.OptimizedModule):
        raise wrong("lazy=True does not work with torch.compile")
    if (lazy or (run.is_stale and rule == "worker")) and any(
        isinstance(module, torch.jit.ScriptModule) for module in model.modules()
    ):
        what = "lazy=True" if lazy else "rule 'worker' with staleness"
        raise wrong(f"{what} does not work with torch.jit, which takes no hooks")
    if lazy and rule == "worker":
        raise wrong("lazy=True does not work with rule worker")
    run.skips = run._skips()
    if run.skips and rule == "worker" and not run.is_stale:
        raise wrong(
            'on_nan "skip" takes rule \'server\' or strategy.staleness: with '
            "rule 'worker' all ranks have the same mean, and leave step() out "
            "themselves where it is not finite"
        )
    own = Adder if run.is_stale else Worker
    if rule == "worker" and run.is_stale and adder_lacks(kind):
        raise wrong(adder_lacks(kind))
    if run.takes_sparse:
        take_sparse(model, optimizer, rule == "server")
    if several:
        own = ChangeInTurn if run.is_stale else InTurn
    wrapper = mixed(Server if rule == "server" else own, optimizer)
    if rule == "worker":
        wrapper.capstan_count(backward_passes_per_step)
    wrapper.capstan_open(run, model, scaler, lazy)
    return wrapper
