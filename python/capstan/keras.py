# SPDX-License-Identifier: Apache-2.0
"""Capstan for Keras 3 over TensorFlow.

import capstan.keras, keras

run = capstan.init()
model.compile(
    capstan.keras.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss=...)
model.fit(
    dataset.shard(run.size, run.rank).batch(32),
    callbacks=[capstan.keras.Callback()])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from . import EMPTY, ConfigError, Run, current
from .agreed import Agreed

_NEEDED = (
    "capstan.keras needs Keras 3 over TensorFlow: pip install 'keras>=3' "
    "'tensorflow>=2.16', without TF_USE_LEGACY_KERAS, and with "
    "KERAS_BACKEND=tensorflow"
)
if int(keras.__version__.split(".")[0]) < 3:
    raise ConfigError(f"Keras is {keras.__version__}; {_NEEDED}", "USAGE")
if keras.backend.backend() != "tensorflow":
    raise ConfigError(
        f"Keras' backend is {keras.backend.backend()}; {_NEEDED}", "USAGE"
    )

import tensorflow as tf  # noqa: E402

__all__ = ["Callback", "DistributedOptimizer", "fit", "start"]


def wrong(text: str) -> ConfigError:
    """A wrong call or model."""
    return ConfigError(text, "MODEL_INVALID")


class Exchange:
    """A model's variables in a run that brings the means of gradients.

    Statistics, such as those of BatchNormalization, are averaged once a step;
    frozen weights are rank 0's from the start on. Variables of other types
    than float32 stay local.
    """

    def __init__(self, run: Run, model: keras.Model) -> None:
        self._run = run
        optimizer = model.optimizer
        self._statistics = list(_statistics(model))
        self._trained = [
            v for v in model.trainable_weights if v.dtype == "float32"
        ]
        self._values: list[np.ndarray] = []  # by number
        self._results: list[np.ndarray] = []  # by number: what a step brings
        self._number_of: dict[int, int] = {}  # by the identity of a variable
        kinds = {id(v): "averaged" for v in self._statistics}
        kinds.update({id(v): "trained" for v in self._trained})
        weights = [v for v in model.weights if v.dtype == "float32"]
        for variable in weights:
            self._declare(variable, kinds.get(id(variable), "assigned"))
        self._agreed = Agreed(
            run,
            lambda: {"learning_rate": float(np.array(optimizer.learning_rate))},
        )
        run.set_optimizer("None")
        run.start()
        for variable, values in zip(weights, self._values):
            variable.assign(values)

    def _declare(self, variable: keras.Variable, kind: str) -> None:
        values = np.array(variable)
        mean = np.empty_like(values) if kind == "trained" else None
        number = self._run.declare(variable.path, values, kind, mean=mean)
        self._number_of[id(variable)] = number
        self._values.append(values)
        self._results.append(values if mean is None else mean)

    def mean(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The mean over the ranks of each gradient that is not None."""
        brought = [g for g in gradients if g is not None]
        of = [v for v, g in zip(variables, gradients) if g is not None]
        numbers = [self._number(v) for v in of + self._statistics]

        def step(*tensors: tf.Tensor) -> list[np.ndarray]:
            # Their own memory, which the run reads until the wait.
            arrays = [np.asarray(memoryview(t)) for t in tensors]
            self._copy_weights(arrays[len(numbers) :])
            return self._step(numbers, arrays)

        tensors = [
            tf.convert_to_tensor(t)
            for t in brought + self._statistics + self._trained
        ]
        means = tf.py_function(step, tensors, [tf.float32] * len(numbers))
        for mean, tensor in zip(means, tensors):
            mean.set_shape(tensor.shape)
        for variable, mean in zip(self._statistics, means[len(brought) :]):
            variable.assign(mean)
        found = iter(means)
        return [None if g is None else next(found) for g in gradients]

    def give_weights(self) -> None:
        """The run has the weights of the last step too."""
        self._copy_weights([np.array(v) for v in self._trained])

    def _copy_weights(self, arrays: list[np.ndarray]) -> None:
        """A checkpoint reads VALUES, which the caller computes."""
        for variable, array in zip(self._trained, arrays):
            np.copyto(self._values[self._number(variable)], array)

    def _number(self, variable: keras.Variable) -> int:
        if id(variable) not in self._number_of:
            raise wrong(
                f'variable "{variable.path}" of {variable.dtype} was not in '
                "the model when the training began; expected is float32"
            )
        return self._number_of[id(variable)]

    def _step(
        self, numbers: list[int], arrays: list[np.ndarray]
    ) -> list[np.ndarray]:
        """A step of the run, to which this rank brings ARRAYS."""
        for number, array in zip(numbers, arrays):
            self._run.push(number, array)
        for number in set(range(len(self._values))).difference(numbers):
            self._run.push(number, contribution=EMPTY)
        self._agreed.push()
        self._run.step()
        self._run.wait()
        self._agreed.check()
        return [self._results[number] for number in numbers]


def _statistics(model: keras.Model) -> Iterator[keras.Variable]:
    """What layers change in their forward passes."""
    for layer in model._flatten_layers():
        for variable in layer._non_trainable_variables:
            if layer.trainable and variable.dtype == "float32":
                yield variable


class _State:
    """What a checkpoint has of an optimiser."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._variables = optimizer.variables

    def state_dict(self) -> list[np.ndarray]:
        return [np.array(v) for v in self._variables]

    def load_state_dict(self, state: list[np.ndarray]) -> None:
        for variable, values in zip(self._variables, state):
            variable.assign(values)


class _Mean(keras.optimizers.Optimizer):
    """Mixed into an optimiser's class: it applies the ranks' mean."""

    capstan_exchange: Exchange | None = None
    # Of a model that fit() builds: starts the run once it has its variables.
    capstan_start: Callable[[], None] | None = None

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = list(trainable_variables or self._trainable_variables)
        if self.capstan_exchange is None and self.capstan_start:
            if tf.executing_eagerly():
                raise wrong(
                    "fit() builds the model in its first step, which "
                    "run_eagerly computes with this rank's own weights: build "
                    "the model before, such as by model.build(shape)"
                )
            with tf.init_scope():
                made = all(v._value.is_initialized() for v in variables)
                if made:
                    self.capstan_start()
            if not made:  # but after this trace, which another follows
                return super().apply(grads, trainable_variables)
        if self.capstan_exchange is None:
            raise wrong("fit() needs callbacks=[capstan.keras.Callback()]")
        means = self.capstan_exchange.mean(list(grads), variables)
        super().apply(means, trainable_variables)


def DistributedOptimizer(
    optimizer: str | keras.optimizers.Optimizer,
) -> keras.optimizers.Optimizer:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients.

    Its clipping acts on the mean. A model that is saved with it loads without
    Capstan. A LossScaleOptimizer is given to DistributedOptimizer, and not the
    other way round.
    """
    name = type(optimizer).__name__
    if any(c.__module__.startswith("tf_keras") for c in type(optimizer).mro()):
        raise wrong(f"{name} is of Keras 2 (tf_keras); {_NEEDED}")
    made = keras.optimizers.get(optimizer)
    kind = type(made)
    made.__class__ = type(
        kind.__name__, (_Mean, kind), {"__module__": "keras.optimizers"}
    )
    return made


def start(model: keras.Model) -> None:
    """Waits for the run's weights, which are then in MODEL, and its optimiser.

    fit() does it; a script that goes on with a checkpoint calls it before, and
    finds in run.position where it is. MODEL is built and compiled.
    """
    if not model.built:
        raise wrong(
            f'model "{model.name}" has no weights yet: build it, such as by '
            "model.build(shape) or by a first layer keras.Input(shape)"
        )
    optimizer = model.optimizer
    if not isinstance(optimizer, _Mean):
        raise wrong(
            f"the model's optimizer is {type(optimizer).__name__}; "
            "expected is capstan.keras.DistributedOptimizer(...)"
        )
    if optimizer.capstan_exchange is None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        optimizer.capstan_exchange = Exchange(current(), model)
        current()._share(_State(optimizer))


def fit(
    model: keras.Model, data: tf.data.Dataset, epochs: int, **arguments: Any
) -> None:
    """model.fit() up to EPOCHS from where the run is, within an epoch too.

    DATA has this rank's batches of an epoch, ARGUMENTS are fit()'s, and a
    Callback is added. A run that was resumed or joined does the rest of the
    epoch that was begun first.
    """
    arguments["callbacks"] = [*arguments.get("callbacks", ()), Callback()]
    if not _is_built(model):
        x, *_ = tf.nest.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name),
            data.element_spec,
        )
        model(x)
    start(model)
    at = current().position
    rest = data.skip(at.epoch_step)
    has_rest = at.epoch_step and any(True for _ in rest.take(1))
    if has_rest and at.epoch < epochs:
        model.fit(
            rest, initial_epoch=at.epoch, epochs=at.epoch + 1, **arguments
        )
    first = at.epoch + (at.epoch_step > 0)
    if first < epochs and not current().ended:
        model.fit(data, initial_epoch=first, epochs=epochs, **arguments)


def _is_built(model: keras.Model) -> bool:
    return all(layer.built for layer in model._flatten_layers())


class Callback(keras.callbacks.Callback):
    """Starts the run with fit(): all ranks begin with rank 0's weights.

    A model that fit() builds starts it when its first step has its variables.

    It sets jit_compile to False, as XLA cannot call the exchange, and stops
    the training when the run ends.
    """

    _epoch: int | None = None  # of fit(), that has begun

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        run = current()
        if model.jit_compile:
            model.jit_compile = False
            if run.logs and run.rank == 0:
                print("capstan: jit_compile is set to False", file=sys.stderr)

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self._epoch = None
        begun = getattr(optimizer, "capstan_exchange", None) is not None
        if begun or not isinstance(optimizer, _Mean) or _is_built(self.model):
            self._start()
        else:
            optimizer.capstan_start = self._start

    def _start(self) -> None:
        start(self.model)
        if current().ended:
            current()._leave()
        if self._epoch is not None:
            self.on_epoch_begin(self._epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self.model.optimizer.capstan_exchange is None:
            return  # _start() comes back
        at = current()._position()
        if epoch != at.epoch or not at.epoch_step:
            current().begin_epoch(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        if self.model.optimizer.capstan_exchange is not None:
            self.model.optimizer.capstan_exchange.give_weights()
        if current().ended:
            current()._end_loop()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.capstan_exchange is None:
            raise wrong(
                "fit() has taken a step that this rank computed alone, as the "
                "model is not built: build it before, such as by "
                "model.build(shape)"
            )
        self.model.stop_training |= current().ended
