# SPDX-License-Identifier: Apache-2.0
"""Values that must be alike on all ranks, compared in each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .errors import Failed
from .run import EMPTY, Run


class Agreed:
    """The values of the rates and the like that each rank applies itself.

    VALUES gives them by name; those that it gives first are compared from then
    on. They travel as one tensor whose mean over the ranks comes back, with a
    last number that is 1 of a rank with a batch.
    """

    def __init__(self, run: Run, values: Callable[[], dict[str, float]]):
        self._run, self._values = run, values
        self._names = list(values())
        self.mean = np.zeros(len(self._names) + 1, np.float32)
        self._own = self.mean
        self._number = run.declare(
            "capstan.hyperparameters", self.mean, "averaged"
        )

    def push(self, has_batch: bool = True) -> None:
        """Brings this rank's values to the present step."""
        found = self._values()
        self._own = np.zeros_like(self.mean)
        for place, name in enumerate(self._names):
            self._own[place] = found.get(name, 0)
        self._own[-1] = has_batch
        self._run.push(self._number, self._own)

    def skip(self) -> None:
        """Brings nothing to a step in which no weights change."""
        self._run.push(self._number, contribution=EMPTY)

    def has_batches(self) -> bool:
        """After the step's wait: had a rank one?"""
        return bool(self.mean[-1] > 0)

    def check(self) -> None:
        """After the step's wait. Raises Failed if the ranks differ."""
        differ = np.abs(self.mean - self._own) > 1e-5 * np.abs(self._own)
        differ[-1] = False
        if not differ.any() or self._run._is_behind():
            return
        place = int(np.argmax(differ))
        text = (
            f"the ranks' optimisers differ: {self._names[place]} is "
            f"{self._own[place]:g} on rank {self._run.rank}, and "
            f"{self.mean[place]:g} in the mean over the ranks: a scheduler or "
            "callback follows what is a rank's own, such as the loss of its "
            "samples or the number of its batches"
        )
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")
