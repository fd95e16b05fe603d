# SPDX-License-Identifier: Apache-2.0
"""Ends a run whose script trains by a framework and never reaches the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import Failed

if TYPE_CHECKING:
    from .run import Run

_MOST = 100  # steps before the run has started
_TORCH = (
    "Wrap the optimiser, and train with what this returns: capstan.torch."
    "DistributedOptimizer(optimizer, model); a Trainer takes it by "
    "optimizers=(DistributedOptimizer(...), None)"
)
_HOROVOD = (
    "Wrap the optimiser, and train with what this returns: "
    "hvd.DistributedOptimizer(optimizer, model.named_parameters())"
)
_KERAS = (
    "Wrap the optimiser before compile(), by capstan.keras."
    "DistributedOptimizer(optimizer), and give fit() callbacks="
    "[capstan.keras.Callback()]"
)


def watch(run: Run) -> Callable[[], None]:
    """Fails RUN at the _MOST-th step of an optimiser of torch or Keras, until
    what it returns is called."""
    ends = []
    if "torch" in sys.modules:
        ends.append(_watch_torch(run))
    for package in "keras", "tf_keras":
        if package in sys.modules:
            ends.append(_watch_keras(run, sys.modules[package]))

    def end() -> None:
        while ends:
            ends.pop()()

    return end


def _counter(run: Run, advice: str) -> Callable[[Any], None]:
    """Counts a step of an optimiser."""
    count = 0

    def count_step(optimizer: Any) -> None:
        nonlocal count
        count += run._open is not None
        if run._open is None or count < _MOST:
            return
        text = (
            f"{_MOST} steps of {type(optimizer).__name__} after init(), and "
            f"none has met the other ranks: each trains alone. {advice}"
        )
        run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")

    return count_step


def _watch_torch(run: Run) -> Callable[[], None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_horovod = "capstan.horovod.torch" in sys.modules
    count = _counter(run, _HOROVOD if is_horovod else _TORCH)
    return register_optimizer_step_post_hook(lambda o, *_: count(o)).remove


def _watch_keras(run: Run, keras: ModuleType) -> Callable[[], None]:
    """Batches of fit(), whose graph calls the optimiser, and calls of a loop
    that has no graph."""
    lists, optimizers = keras.callbacks.CallbackList, keras.optimizers.Optimizer
    apply_name = "apply" if hasattr(optimizers, "apply") else "apply_gradients"
    end_batch = lists.on_train_batch_end
    apply = getattr(optimizers, apply_name)
    count_batch, count_call = _counter(run, _KERAS), _counter(run, _KERAS)

    def counted_batch(self: Any, *arguments: Any, **named: Any) -> Any:
        count_batch(self.model.optimizer)
        return end_batch(self, *arguments, **named)

    def counted_apply(self: Any, *arguments: Any, **named: Any) -> Any:
        done = apply(self, *arguments, **named)
        count_call(self)
        return done

    def end() -> None:
        lists.on_train_batch_end = end_batch
        setattr(optimizers, apply_name, apply)

    lists.on_train_batch_end = counted_batch
    setattr(optimizers, apply_name, counted_apply)
    return end
