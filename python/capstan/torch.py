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
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from . import *  # noqa: F403  the names of the package
from . import _library, run as _run
from .run import current
from .torch_exchange import Exchange, Trained, wrong


class Run(_run.Run):
    """One process's part in a run, with torch's data and gradients."""

    syncs = True  # backward() sends gradients
    seed = 0
    _report: tuple[float, int, int] | None = None
    _exchange: Exchange | None = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to .grad and send nothing."""
        self.syncs = False
        try:
            yield
        finally:
            self.syncs = True

    def report(self, loss: float, samples: int, correct: int = 0) -> None:
        """Reports the mean LOSS over SAMPLES with the next step."""
        self._report = float(loss), samples, correct

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs from the run's present one to COUNT - 1, while it goes on."""
        for epoch in super().epochs(count):
            yield epoch
            if self._exchange and not self.ended:
                self._exchange.wait()

    def shard(self, loader: DataLoader, epoch: int) -> Shard:
        """This rank's batches of EPOCH, of LOADER's batch size each."""
        return Shard(self, loader, epoch)


class Shard:
    """A rank's part of a DataLoader's samples in an epoch."""

    def __init__(self, run: Run, loader: DataLoader, epoch: int):
        if isinstance(loader.dataset, IterableDataset):
            raise wrong("run.shard takes no loader of an IterableDataset")
        if type(loader.batch_sampler) is not BatchSampler:
            raise wrong("run.shard takes no loader with a batch_sampler")
        if type(loader.sampler) not in (RandomSampler, SequentialSampler):
            name = type(loader.sampler).__name__
            raise wrong(f"run.shard takes no loader with a {name}")
        self._run = run
        sampler = DistributedSampler(
            loader.dataset,
            run.size,
            run.rank,
            shuffle=isinstance(loader.sampler, RandomSampler),
            seed=run.seed,
            drop_last=loader.drop_last,
        )
        sampler.set_epoch(epoch)
        position = run.position
        done = position.epoch_step if epoch == position.epoch else 0
        first = done * loader.batch_size
        self._loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=list(itertools.islice(sampler, first, None)),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if self._run.ended:
                return
            yield batch


def init(*arguments: Any, **keys: Any) -> Run:
    """capstan.init for torch."""
    run = _run.init(*arguments, run_class=Run, **keys)
    run.seed = keys.get("seed") or 0
    return run


# The optimisers of the ps, and the keys of their parameter groups.
_SERVER_RULES: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    torch.optim.Adam: ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    torch.optim.AdamW: ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    torch.optim.Adagrad: ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    torch.optim.RMSprop: ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
}
_FRAMEWORKS = ("transformers.trainer", "lightning", "pytorch_lightning")


def _settings(group: dict[str, Any], keys: tuple[str, ...]) -> dict[str, float]:
    """A parameter group's values as capstan_set takes them."""
    found: dict[str, float] = {}
    for key in keys:
        if key == "betas":
            found["beta1"], found["beta2"] = map(float, group[key])
        else:
            found[key] = float(group[key])
    return found


class _Distributed(torch.optim.Optimizer):
    """Mixed into the optimiser's own class; made by DistributedOptimizer."""

    _step_supports_amp_scaling = True  # GradScaler leaves infinities to step()

    def _capstan_open(self, run: Run, model: nn.Module, scaler: Any) -> None:
        self._run = run
        self._scaler = scaler
        groups = [group["params"] for group in self.param_groups]
        self._exchange = run._exchange = Exchange(run, model, groups)
        for t in self._exchange.trained:
            t.parameter.register_post_accumulate_grad_hook(self._hook(t))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "_exchange" in self.__dict__:
            raise wrong("add parameter groups before DistributedOptimizer")
        super().add_param_group(param_group)

    def _take_report(self) -> tuple[float, int, int]:
        report, self._run._report = self._run._report, None
        return report or (0.0, 0, 0)


class _Server(_Distributed):
    """The update rule runs on the ps."""

    def _capstan_open(
        self, run: Run, model: nn.Module, scaler: Any, lazy: bool
    ) -> None:
        super()._capstan_open(run, model, scaler)
        self._lazy = lazy
        self._sent: list[dict[str, float]] = []
        if _library.has("optimizer"):
            name = self._rule.__name__.encode()
            run._check(_library.capstan.capstan_optimizer(run._handle, name))
            self._send_settings()
        self._exchange.start()
        if lazy:
            self._wait_in_modules(model)

    def _hook(self, t: Trained) -> Callable[[torch.Tensor], None]:
        def push(parameter: torch.Tensor) -> None:
            if self._run.syncs and self._scaler is None:
                self._before_push(t)
                self._exchange.push(t, parameter.grad)

        return push

    def _before_push(self, t: Trained) -> None:
        if self._lazy:
            self._exchange.wait([t])
        if not any(u.pushed for u in self._exchange.trained):
            self._send_settings()

    def _present_settings(self) -> list[dict[str, float]]:
        keys = _SERVER_RULES[self._rule]
        return [_settings(group, keys) for group in self.param_groups]

    def _send_settings(self) -> None:
        """Tells the run which rates and other values have changed."""
        present = self._present_settings()
        if not _library.has("set") or present == self._sent:
            return
        for number, group in enumerate(present):
            sent = self._sent[number] if self._sent else {}
            for key, value in group.items():
                if sent.get(key) != value:
                    self._run._set(number, key, value)
        self._sent = present

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Ends the step; the model then has the new weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self._run._report = self._run._report or (float(loss), 1, 0)
        if getattr(self, "found_inf", None) is not None:
            if self._scaler is None:
                raise wrong("DistributedOptimizer was not told of the scaler")
        self._push_all()
        self._exchange.end_step(*self._take_report())
        if not self._lazy or self._run.ended:
            self._exchange.wait()
        return loss

    def _push_all(self) -> None:
        exchange = self._exchange
        pushed = any(t.pushed for t in exchange.trained)
        if not pushed:
            if self._lazy:
                exchange.wait()
            self._send_settings()
        elif _library.has("set") and self._present_settings() != self._sent:
            raise wrong(
                "a parameter group was changed between backward() and step()"
            )
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return exchange.push_void()
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for t in exchange.trained:
                if t.parameter.grad is not None:
                    t.parameter.grad.div_(scale)
        exchange.push_rest()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._lazy and not set_to_none:
            self._exchange.wait()
        super().zero_grad(set_to_none)

    def _wait_in_modules(self, model: nn.Module) -> None:
        """lazy: a module that owns parameters waits for its subtree."""
        by_parameter = {t.parameter: t for t in self._exchange.trained}

        def hook_of(trained: list[Trained]) -> Callable[..., None]:
            def wait(module: nn.Module, inputs: Any) -> None:
                everything = not (module.training and torch.is_grad_enabled())
                self._exchange.wait(None if everything else trained)

            return wait

        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                found = [by_parameter.get(p) for p in module.parameters()]
                module.register_forward_pre_hook(
                    hook_of([t for t in found if t])
                )
        model.register_state_dict_pre_hook(lambda *_: self._exchange.wait())


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    rule: str = "auto",
    lazy: bool = False,
    scaler: Any = None,
) -> torch.optim.Optimizer:
    """An optimiser whose step() is a step of the run on all ranks.

    It is an instance of a subclass of OPTIMIZER's class and shares its
    parameter groups. RULE "server": the ps apply SGD, Adam, AdamW, Adagrad or
    RMSprop; gradients are sent during backward(). RULE "worker": after
    backward() each .grad is the mean over the ranks, and OPTIMIZER applies it.
    LAZY: step() returns at once and each module waits for its own weights.
    SCALER: the GradScaler whose step() calls this one's.
    """
    run = current()
    if not isinstance(run, Run):
        raise wrong("call capstan.torch.init(), not capstan.init()")
    kind = type(optimizer)
    if rule == "auto":
        framework = any(name in sys.modules for name in _FRAMEWORKS)
        known = kind in _SERVER_RULES and not framework
        rule = "server" if known else "worker"
        if run.logs and run.rank == 0:
            print(f"capstan: {kind.__name__} by rule {rule}", file=sys.stderr)
    if rule not in ("server", "worker"):
        raise wrong(f'rule is "{rule}"; allowed: auto, server, worker')
    if rule == "worker":
        raise wrong("rule worker is not there yet")
    if kind not in _SERVER_RULES:
        names = ", ".join(known.__name__ for known in _SERVER_RULES)
        raise wrong(f"rule server knows {names}; not {kind.__name__}")
    if lazy and isinstance(model, torch._dynamo.OptimizedModule):
        raise wrong("lazy=True does not work with torch.compile")
    made = type(kind.__name__, (_Server, kind), {"_rule": kind})
    wrapper = made.__new__(made)
    wrapper.__dict__.update(optimizer.__dict__)
    wrapper._capstan_open(run, model, scaler, lazy)
    return wrapper
