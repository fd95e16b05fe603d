# SPDX-License-Identifier: Apache-2.0
"""The names of horovod.tensorflow.keras.callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from .... import current
from .... import keras as capstan_keras
from ... import calls
from ...calls import wrong
from ...names import rank, refuse, size

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(capstan_keras.Callback):
    """capstan.keras.Callback: all ranks begin with rank 0's variables."""

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Any = None
    ) -> None:
        super().__init__()
        if root_rank:
            raise wrong(
                f"root_rank is {root_rank}: a run begins with rank 0's weights"
            )
        if local_variables:
            refuse(
                "local_variables",
                "the run has all variables of float32: leave the argument out",
            )


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """The logs of an epoch become the means over the ranks."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for name in sorted(logs or {}):
            own = np.array(logs[name], np.float32)
            with current()._preparing():
                logs[name] = float(calls.allreduce(own, f"metric {name}"))


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):
    """The rate is INITIAL_LR times MULTIPLIER from START_EPOCH to END_EPOCH.

    MULTIPLIER is a function of the epoch: with STAIRCASE at its beginning,
    else with the part of it that the batches are; or a number, to the power of
    the epochs since START_EPOCH. A change of the rate scales the momentum that
    has accumulated alike, unless MOMENTUM_CORRECTION is false.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise wrong("initial_lr is None; expected is the first rate")
        self._first, self._last = start_epoch, end_epoch
        self._rate, self._multiplier = initial_lr, multiplier
        self._staircase, self._corrects = staircase, momentum_correction
        self._steps, self._epoch = steps_per_epoch, 0

    def _factor(self, epoch: float) -> float:
        if callable(self._multiplier):
            return self._multiplier(epoch)
        return self._multiplier ** (epoch - self._first)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._staircase and not self._steps:
            self._steps = self.params.get("steps")
            if not self._steps:
                raise wrong(
                    f"{type(self).__name__} does not know the steps of an "
                    "epoch: give it steps_per_epoch="
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        last = self._last
        if self._epoch < self._first or last is not None and self._epoch >= last:
            return
        if not self._staircase:
            assert self._steps
            self._set_rate(self._epoch + batch / self._steps)
        elif batch == 0:
            self._set_rate(self._epoch)

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = float(np.array(optimizer.learning_rate))
        rate = self._rate * self._factor(epoch)
        optimizer.learning_rate = rate
        if self._corrects and getattr(optimizer, "momentum", 0):
            for variable in _momenta(optimizer):
                variable.assign(variable * (rate / before))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(np.array(self.model.optimizer.learning_rate))


def _momenta(optimizer: Any) -> list[Any]:
    """What SGD and RMSprop have accumulated, which has the rate in it."""
    for name in "momentums", "_momentums":
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    raise wrong(
        f"momentum_correction of {type(optimizer).__name__}: give the callback "
        "momentum_correction=False"
    )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The rate grows from INITIAL_LR / size() to INITIAL_LR.

    It does so in WARMUP_EPOCHS, by batches, and reaches it with the last batch.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def grow(epoch: float) -> float:
            assert self._steps
            done = (epoch + 1 / self._steps) / warmup_epochs
            return (1 + done * (size() - 1)) / size()

        super().__init__(
            initial_lr,
            grow,
            0,
            warmup_epochs,
            False,
            momentum_correction,
            steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose and rank() == 0 and epoch + 1 == self._last:
            rate = float(np.array(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: the rate has grown to {rate:g}")


def BestModelCheckpoint(*arguments: Any, **named: Any) -> NoReturn:
    """Is an error that names Keras's own callback."""
    refuse(
        "BestModelCheckpoint",
        "on rank 0 take keras.callbacks.ModelCheckpoint(filepath, "
        "save_best_only=True)",
    )
