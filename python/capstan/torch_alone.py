# SPDX-License-Identifier: Apache-2.0
"""Ends a run whose script trains by torch and never reaches the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from .errors import Failed

if TYPE_CHECKING:
    from .run import Run

_MOST = 100  # steps of an optimiser before the run has started


def watch(run: Run) -> Callable[[], None]:
    """Fails RUN at the _MOST-th step of any optimiser, until what it returns
    is called."""
    count = 0

    def count_step(optimizer: Any, *_: Any) -> None:
        nonlocal count
        count += run._open is not None
        if run._open is None or count < _MOST:
            return
        text = (
            f"{_MOST} steps of {type(optimizer).__name__} after init(), and "
            "none has met the other ranks: each trains alone. Wrap the "
            "optimiser, and train with what this returns: capstan.torch."
            "DistributedOptimizer(optimizer, model); a Trainer takes it by "
            "optimizers=(DistributedOptimizer(...), None)"
        )
        run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")

    return register_optimizer_step_post_hook(count_step).remove
