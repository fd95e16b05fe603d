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
    last number that is 1; a rank without a batch brings zeros.
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
        self.renew()
        brings = self._own if has_batch else np.zeros_like(self._own)
        self._run.push(self._number, brings)

    def renew(self) -> None:
        """This rank's values are compared as they are now."""
        found = self._values()
        own = [found.get(name, 0) for name in self._names]
        self._own = np.array([*own, 1], np.float32)

    def wait(self) -> None:
        """MEAN is that of the last step, before the step's wait too."""
        self._run.wait(self._number)

    def skip(self) -> None:
        """Brings nothing to a step in which no weights change."""
        self._run.push(self._number, contribution=EMPTY)

    def has_batches(self) -> bool:
        """After the step's wait: had a rank one?"""
        return bool(self.mean[-1] > 0)

    def is_followed(self) -> bool:
        """After the step's wait: had some rank a batch, and some none?"""
        return bool(0 < self.mean[-1] < 1)

    def check(self) -> None:
        """After the step's wait. Raises Failed if this rank differs from those
        with a batch."""
        if not self.has_batches() or self._run._is_behind():
            return
        own, mean = self._own, self.mean / self.mean[-1]
        differ = np.abs(mean - own) > 1e-5 * np.abs(own)
        if not differ.any():
            return
        place = int(np.argmax(differ))
        text = (
            f"the ranks' optimisers differ: {self._names[place]} is "
            f"{own[place]:g} on rank {self._run.rank}, and "
            f"{mean[place]:g} in the mean over the ranks: a scheduler or "
            "callback follows what is a rank's own, such as the loss of its "
            "samples or the number of its batches"
        )
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")
