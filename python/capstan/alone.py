# SPDX-License-Identifier: Apache-2.0
"""Ends a run whose script trains by a framework and never reaches the others,
or not with all that it trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import Failed

if TYPE_CHECKING:
    from .run import Run
    from .torch import Run as TorchRun

_MOST = 100  # steps before the run has started
_TORCH = (
    "Wrap the optimiser, and train with what this returns: capstan.torch."
    "DistributedOptimizer(optimizer, model); a Trainer takes it by "
    "optimizers=(DistributedOptimizer(...), None)"
)
_OTHERS = (
    "Train with what DistributedOptimizer returns; a Trainer takes it by "
    "optimizers=(DistributedOptimizer(...), None)"
)
_SEVERAL = (
    "Give each optimiser a DistributedOptimizer, and say how many there are: "
    "capstan.init(optimizers=2). If each rank is to train these alone, step "
    "them within run.no_sync()"
)
_SEVERAL_HOROVOD = (
    "Average their gradients by hvd.allreduce, or take capstan.torch with a "
    "DistributedOptimizer each and init(optimizers=2)"
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


def _is_horovod() -> bool:
    return "capstan.horovod.torch" in sys.modules


def _groups_itself() -> bool:
    """Has the script a process group that is not the run's?"""
    dist = sys.modules["torch"].distributed
    if not dist.is_available() or not dist.is_initialized():
        return False
    from . import torch_group

    return not torch_group.is_there()


class Others:
    """Watches the optimisers of torch that are not RUN's, until end().

    TRAINED: the identities of the parameters that the run trains. Steps with
    these fail it where the run takes none meanwhile; those with others where
    they take turns with the run's, without a collective that may average them.
    """

    def __init__(self, run: TorchRun, trained: set[int]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._run, self._trained = run, trained
        self._in_place: dict[int, int] = {}  # steps, by optimiser
        self._beside = 0  # steps
        self._at, self._beside_at = run._count, (run._count, run._collected)
        self._name, self._beside_name = "", ""  # of the optimisers
        hook = register_optimizer_step_post_hook(lambda o, *_: self._count(o))
        self.end = hook.remove

    def _count(self, optimizer: Any) -> None:
        run, at = self._run, self._run._count
        if run.size == 1 or run._open is None or run.ended:
            return
        if not run.syncs or _groups_itself():
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(p) in self._trained for p in held):
            if at != self._at:
                self._at = at
                self._in_place.clear()
            steps = self._in_place.get(id(optimizer), 0) + 1
            self._in_place[id(optimizer)] = steps
            self._name = type(optimizer).__name__
        elif any(p.grad is not None for p in held):
            before, self._beside_at = self._beside_at, (at, run._collected)
            self._beside += at > before[0] and before[1] == run._collected
            self._beside_name = type(optimizer).__name__
        else:
            return
        if max(self._beside, *self._in_place.values(), 0) >= _MOST:
            self._fail()

    def check(self) -> None:
        """At the script's end, of few steps."""
        if self._in_place and not self._run._count:
            self._fail()
        if self._beside > 1:
            print(f"capstan: warning: {self._text()}", file=sys.stderr)

    def _text(self) -> str:
        if self._in_place and self._beside <= 1:
            return (
                f"{max(self._in_place.values())} steps of {self._name} with "
                "the run's parameters, and none has met the other ranks: each trains "
                f"alone. {_OTHERS}"
            )
        return (
            f"{self._beside} steps of {self._beside_name} in turns with the run's, "
            "with parameters that no DistributedOptimizer has: each rank "
            f"trains them alone. {_SEVERAL_HOROVOD if _is_horovod() else _SEVERAL}"
        )

    def _fail(self) -> NoReturn:
        text = self._text()
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")


def _watch_torch(run: Run) -> Callable[[], None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = _counter(run, _HOROVOD if _is_horovod() else _TORCH)
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
