# SPDX-License-Identifier: Apache-2.0
"""The ends of backward passes, where autograd's hooks would cost more than what
they send: one for each parameter takes 1.6 us of the processor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction
from torch.autograd.variable import ImperativeEngine

if TYPE_CHECKING:
    from .torch_exchange import Trained

Arrive = Callable[["list[Trained]", "Sequence[Tensor | None]"], None]


class _Engine(ImperativeEngine):
    """Autograd's, which tells WATCHES of each pass that sets .grad."""

    def __init__(self) -> None:
        self.watches: list[Passes] = []
        self._thread = threading.local()

    def run_backward(self, *arguments: Any, **keys: Any) -> Any:
        # A pass may begin another, as a reentrant checkpoint does.
        within = getattr(self._thread, "within", False)
        if within or not keys.get("accumulate_grad"):
            return super().run_backward(*arguments, **keys)
        begun = [(watch, watch.gradients()) for watch in self.watches]
        self._thread.within = True
        try:
            found = super().run_backward(*arguments, **keys)
        finally:
            self._thread.within = False
        for watch, gradients in begun:
            watch.end(*gradients)
        return found


_own = Variable._execution_engine
_engine = _Engine()


def is_within() -> bool:
    """Is this backward pass begun by a node of another?"""
    frame = sys._getframe()
    while frame and frame.f_code is not BackwardCFunction.apply.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return bool(frame)


def are_seen() -> bool:
    """Are the passes those of torch's own engine?"""
    return type(Variable._execution_engine) in (ImperativeEngine, _Engine)


class Passes:
    """Calls ARRIVE at the end of a backward pass with those of TRAINED that it
    has given a gradient, and these; then ENDED."""

    def __init__(
        self,
        trained: list[Trained],
        arrive: Arrive,
        ended: Callable[[], None],
    ) -> None:
        # The last first, as in a pass: tensors in a row are sent together.
        self._trained = trained[::-1]
        self._parameters = [t.parameter for t in self._trained]
        self._arrive, self._ended = arrive, ended
        _engine.watches.append(self)
        Variable._execution_engine = _engine

    def remove(self) -> None:
        if self in _engine.watches:
            _engine.watches.remove(self)
        if not _engine.watches:
            Variable._execution_engine = _own

    def gradients(self) -> tuple[list[Tensor | None], list[int]]:
        """Those of now, and their versions."""
        found = [p.grad for p in self._parameters]
        if all(map(is_, found, repeat(None))):
            return found, []
        return found, [-1 if g is None else g._version for g in found]

    def end(self, before: list[Tensor | None], versions: list[int]) -> None:
        """The pass has ended that began with gradients BEFORE."""
        found = [p.grad for p in self._parameters]
        trained, gradients = self._trained, found
        if versions or any(map(is_, found, repeat(None))):
            places = [
                i
                for i, new in enumerate(found)
                if new is not None
                and (new is not before[i] or new._version != versions[i])
            ]
            trained = [self._trained[i] for i in places]
            gradients = [found[i] for i in places]
        with torch.no_grad():
            if trained:
                self._arrive(trained, gradients)
            self._ended()
