# SPDX-License-Identifier: Apache-2.0
"""Values that must be alike on all ranks, compared in each step."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np

from .errors import Failed
from .run import EMPTY, FULL, Contribution, Run


_PART = 1024  # weights that are compared in a step
# Relative: ranks on other processors may round otherwise, and weights near 0
# by so much each.
_ALIKE, _WEIGHTS_ALIKE, _ROUNDED = 1e-5, 1e-3, 1e-6


class Agreed:
    """The values of the rates and the like that each rank applies itself.

    VALUES gives them by name; those that it gives first are compared from then
    on. They travel as one tensor whose mean over the ranks comes back, with a
    last number that is 1; a rank without a batch brings zeros. The number before
    is of a part of WEIGHTS, in each step of another, as they were at
    look(), or else at the push.
    """

    def __init__(
        self,
        run: Run,
        values: Callable[[], dict[str, float]],
        weights: Iterable[tuple[str, np.ndarray]],
    ):
        self._run, self._values = run, values
        self._names = list(values())
        self._weights = [(n, w.reshape(-1)) for n, w in weights if w.size]
        self._part, self._sum = "", 0.0  # of it, and the sum of sizes there
        self._rounded = 0.0  # how much of that ranks may round
        # Before this step, after so many returns of the run: the step is one
        # that it goes back to before the loop knows.
        self._looked_at: tuple[int, int] | None = None
        self.mean = np.zeros(len(self._names) + 2, np.float32)
        self._own = array("f", bytes(self.mean.nbytes))  # the last push
        self._number = run.declare(
            "capstan.hyperparameters", self.mean, "averaged"
        )

    def push(self, has_batch: bool = True) -> None:
        """Brings this rank's values to the present step."""
        if self._looked_at != self._place():
            self.look()
        self.renew()
        brings = self._own
        if not has_batch:
            brings = array("f", bytes(self.mean.nbytes))
        address, _ = brings.buffer_info()
        self._run._push(self._number, address, self.mean.nbytes, FULL, brings)

    def _place(self) -> tuple[int, int]:
        return self._run._position().step, self._run._returns

    def look(self) -> None:
        """Takes a part of the weights that is the same on all ranks, for the
        next push: until then a script may change them for a backward pass."""
        if not self._weights:
            return
        self._looked_at = self._place()
        turn, number = divmod(self._looked_at[0], len(self._weights))
        self._part, weights = self._weights[number]
        first = turn % -(-weights.size // _PART) * _PART
        part = weights[first : first + _PART]
        self._sum = float(np.abs(part).sum(dtype=np.float64))
        self._rounded = _ROUNDED * part.size

    def renew(self) -> None:
        """This rank's values are compared as they are now."""
        found = self._values()
        own = [found.get(name, 0) for name in self._names]
        self._own = array("f", [*own, self._sum, 1])

    def wait(self) -> None:
        """MEAN is that of the last step, before the step's wait too."""
        self._run.wait(self._number)

    def skip(self, contribution: Contribution = EMPTY) -> None:
        """Brings nothing to a step in which nothing is compared."""
        self._run.push(self._number, contribution=contribution)

    def has_batches(self) -> bool:
        """After the step's wait: had a rank one?"""
        return bool(self.mean[-1] > 0)

    def is_followed(self) -> bool:
        """After the step's wait: had some rank a batch, and some none?"""
        return bool(0 < self.mean[-1] < 1)

    def _differ(self, own: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Which of OWN are other than their MEAN over the ranks?"""
        with np.errstate(invalid="ignore", over="ignore"):  # infinities
            allowed = _ALIKE * np.abs(own, dtype=np.float64)
            allowed[-2] *= _WEIGHTS_ALIKE / _ALIKE
            allowed[-2] += self._rounded
            return np.abs(mean - own) > allowed

    def check(self) -> None:
        """After the step's wait. Raises Failed if this rank differs from those
        with a batch."""
        if not self.has_batches() or self._run._is_behind():
            return
        if self._own.tobytes() == self.mean.tobytes():
            return
        own = np.frombuffer(self._own, np.float32)
        mean = self.mean / self.mean[-1]
        differ = self._differ(own, mean)
        if not differ.any():
            return
        place = int(np.argmax(differ))
        values = (
            f"{own[place]:g} on rank {self._run.rank}, and {mean[place]:g} in "
            "the mean over the ranks"
        )
        if place < len(self._names):
            text = (
                f"the ranks' optimisers differ: {self._names[place]} is "
                f"{values}: a scheduler or callback follows what is a rank's "
                "own, such as the loss of its samples or the number of its "
                "batches"
            )
        else:
            text = (
                f'the ranks\' weights differ: the sizes in a part of "'
                f'{self._part}" add up to {values}: each rank applies its '
                "optimiser itself, so what the script writes into weights "
                "after DistributedOptimizer, and what an optimiser follows "
                "beside gradients, must be alike on all ranks; in place of "
                "nn.Embedding(max_norm=m), whose forward pass scales the rows "
                "of a rank's own samples, scale all after step(): "
                "weight.data.renorm_(2, 0, m)"
            )
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")
