# SPDX-License-Identifier: Apache-2.0
"""Capstan for Keras 2 and 3 over TensorFlow.

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
from collections.abc import Callable
from typing import Any

import numpy as np

from . import EMPTY, Failed, Run, current, process_hooks
from .agreed import Agreed
from .keras_versions import (
    check_model,
    check_optimizer,
    input_of,
    is_keras_2,
    is_made,
    layers_of,
    names_of,
    public_module,
    rate_of,
    state_of,
    statistics_of,
    takes_several_steps,
    tf,
    weights_of,
    wrong,
)

__all__ = ["Callback", "DistributedOptimizer", "fit", "start"]


class Exchange:
    """A model's variables in a run that brings the means of gradients.

    Statistics, such as those of BatchNormalization, are averaged once a step;
    frozen weights are rank 0's from the start on. Variables of other types
    than float32 stay local.
    """

    def __init__(self, run: Run, model: Any) -> None:
        self._run = run
        self._model = model
        self._optimizer = model.optimizer
        self._left_out = 0  # steps after the run's end
        self._statistics = _statistics(model)
        self._trained = [
            v for v in model.trainable_weights if v.dtype == "float32"
        ]
        self._values: list[np.ndarray] = []  # by number
        self._results: list[np.ndarray] = []  # by number: what a step brings
        self._number_of: dict[int, int] = {}  # by the identity of a variable
        kinds = {id(v): "averaged" for v in self._statistics}
        kinds.update({id(v): "trained" for v in self._trained})
        weights = [v for v in weights_of(model) if v.dtype == "float32"]
        for variable, name in zip(weights, names_of(weights)):
            self._declare(variable, name, kinds.get(id(variable), "assigned"))
        numbers = [self._number(v) for v in self._trained]
        names = names_of(self._trained)
        self._agreed = Agreed(
            run,
            lambda: {"learning_rate": rate_of(model.optimizer)},
            zip(names, [self._values[n] for n in numbers]),
        )
        run.set_optimizer("None")
        run.start()
        for variable, values in zip(weights, self._values):
            variable.assign(values)

    def _declare(self, variable: Any, name: str, kind: str) -> None:
        values = np.array(variable)
        brings = kind == "trained" and not self._run.is_stale
        mean = np.empty_like(values) if brings else None
        number = self._run.declare(name, values, kind, mean=mean)
        self._number_of[id(variable)] = number
        self._values.append(values)
        self._results.append(values if mean is None else mean)

    def apply(
        self,
        gradients: list[Any],
        variables: list[Any],
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        """APPLY, of what a rule makes of GRADIENTS, some of which are None."""
        with self._after_last_step():
            goes_on, means = self._mean(gradients, variables)
        return self._unless_over(goes_on, lambda: apply(means))

    def _unless_over(
        self, goes_on: tf.Tensor, step: Callable[[], Any]
    ) -> Any:
        """STEP, after GOES_ON and if that is true: a graph of several steps
        cannot stop in the midst of them."""
        if not takes_several_steps(self._model):
            with tf.control_dependencies([goes_on]):
                return step()

        def taken() -> tf.Tensor:
            step()
            return tf.constant(True)

        def left_out() -> tf.Tensor:
            self._leave_out()
            return tf.constant(False)

        goes_on.set_shape([])
        tf.cond(goes_on, taken, left_out)
        return self._optimizer.iterations

    def _leave_out(self) -> None:
        """In the graph of a step after the run's end."""

    def _is_over(self) -> bool:
        """Has the run ended? A graph of several steps then leaves out those
        that it has left, and fit() stops after it; other loops end here."""
        run = self._run
        if not run.ended:
            return False
        most = int(np.array(self._model.steps_per_execution)) - 1
        if run.error or run.is_closed or self._left_out >= most:
            process_hooks.expect_wrapped_exit()
            run._leave()
        if not self._left_out and run.logs and not process_hooks.is_signalled():
            print(
                f"capstan: the run is complete with step {run._position().step}"
                ", and fit() stops: what is left of steps_per_execution = "
                f"{most + 1} changes nothing",
                file=sys.stderr,
            )
        self._left_out += 1
        return True

    def _after_last_step(self) -> Any:
        """Nothing orders what a graph does to the optimiser's other variables,
        such as iterations, and a step, which saves them."""
        return tf.control_dependencies(self._read(state_of(self._optimizer)))

    def _mean(
        self, gradients: list[Any], variables: list[Any]
    ) -> tuple[tf.Tensor, list[Any]]:
        """Does the run go on, and the mean over the ranks of each gradient
        that is not None."""
        brought = [g for g in gradients if g is not None]
        of = [v for v, g in zip(variables, gradients) if g is not None]
        self._check_trained(of)
        numbers = [self._number(v) for v in of + self._statistics]

        def step(*tensors: tf.Tensor) -> list[Any]:
            if self._is_over():
                return [False, *(self._results[n] for n in numbers)]
            # Their own memory, which the run reads until the wait.
            arrays = [np.asarray(memoryview(t)) for t in tensors]
            self._copy_weights(arrays[len(numbers) :])
            return [True, *self._step(numbers, arrays)]

        tensors = [
            tf.convert_to_tensor(t)
            for t in brought + self._statistics + self._trained
        ]
        types = [tf.bool] + [tf.float32] * len(numbers)
        goes_on, *means = tf.py_function(step, tensors, types)
        for mean, tensor in zip(means, tensors):
            mean.set_shape(tensor.shape)
        for variable, mean in zip(self._statistics, means[len(brought) :]):
            variable.assign(mean)
        found = iter(means)
        return goes_on, [None if g is None else next(found) for g in gradients]

    def _read(self, variables: list[Any]) -> list[Any]:
        return [tf.convert_to_tensor(v) for v in variables]

    def give_weights(self) -> None:
        """The run has the weights of the last step too."""
        self._copy_weights([np.array(v) for v in self._trained])

    def _copy_weights(self, arrays: list[np.ndarray]) -> None:
        """A checkpoint reads VALUES, which the caller computes."""
        for variable, array in zip(self._trained, arrays):
            np.copyto(self._values[self._number(variable)], array)

    def _number(self, variable: Any) -> int:
        if id(variable) not in self._number_of:
            raise wrong(
                f'variable "{variable.name}" of {variable.dtype} was not in '
                "the model when the training began; expected is float32"
            )
        return self._number_of[id(variable)]

    def _check_trained(self, variables: list[Any]) -> None:
        trained = {id(v) for v in self._trained}
        for variable in variables:
            self._number(variable)
            if id(variable) not in trained:
                raise wrong(
                    f'variable "{variable.name}" was frozen when the run '
                    "started and has a gradient now, which the run does not "
                    "take: save the model, and train what is unfrozen by "
                    "another start of the script, which loads it"
                )

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


class Changes(Exchange):
    """With staleness: a step sends what this rank's optimiser has added to the
    weights that the run had brought."""

    def __init__(self, run: Run, model: Any) -> None:
        if hasattr(model.optimizer, "inner_optimizer"):
            raise wrong(
                "a LossScaleOptimizer leaves steps out, which with "
                "strategy.staleness nobody else does: take mixed_bfloat16, or "
                "set strategy.staleness to 0"
            )
        if getattr(model.optimizer, "ema_overwrite_frequency", None):
            raise wrong(
                "ema_overwrite_frequency writes a mean of this rank's weights, "
                "which with strategy.staleness lacks what other ranks add: "
                "leave it out, or set strategy.staleness to 0"
            )
        super().__init__(run, model)
        self._tensors = self._trained + self._statistics
        self._arrived = self._weights()

    def apply(
        self,
        gradients: list[Any],
        variables: list[Any],
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        self._check_trained(
            [v for v, g in zip(variables, gradients) if g is not None]
        )
        with self._after_last_step():
            goes_on = tf.py_function(
                self._begin, self._read(self._trained), tf.bool
            )
        return self._unless_over(
            goes_on, lambda: self._add_change(gradients, apply)
        )

    def _add_change(
        self, gradients: list[Any], apply: Callable[[list[Any]], Any]
    ) -> Any:
        given = [g if g is None else tf.identity(g) for g in gradients]
        applied = apply(given)
        self._assign(self._tensors, self._add)
        return applied

    def _leave_out(self) -> None:
        """The forward pass has changed statistics."""
        if self._statistics:
            self._assign(self._statistics, self._brought_statistics)

    def _assign(
        self, variables: list[Any], function: Callable[..., list[np.ndarray]]
    ) -> None:
        """VARIABLES become what FUNCTION of them returns."""
        types = [tf.float32] * len(variables)
        brought = tf.py_function(function, self._read(variables), types)
        for variable, values in zip(variables, brought):
            values.set_shape(variable.shape)
            variable.assign(values)

    def _brought_statistics(self, *_: tf.Tensor) -> list[np.ndarray]:
        return [self._values[self._number(v)] for v in self._statistics]

    def _weights(self) -> list[np.ndarray]:
        """A copy of those that the run has brought."""
        return [self._values[self._number(v)].copy() for v in self._trained]

    def _begin(self, *weights: tf.Tensor) -> bool:
        """Before the optimiser's step, and the change of its state. Does the
        run go on?"""
        if self._is_over():
            return False
        for variable, tensor, arrived in zip(
            self._trained, weights, self._arrived
        ):
            if not np.array_equal(memoryview(tensor), arrived):
                self._fail(
                    f'variable "{variable.name}" was written between two '
                    "steps: with strategy.staleness the run would add the "
                    "difference to what other ranks have changed: write it "
                    "before fit(), or in a constraint of its layer"
                )
        self._run._save_kept()  # of the last step
        return True

    def _add(self, *tensors: tf.Tensor) -> list[np.ndarray]:
        """The step: what the optimiser has changed leaves, and all arrives."""
        numbers = [self._number(v) for v in self._tensors]
        arrays = [np.asarray(memoryview(t)) for t in tensors]
        changes = [a - b for a, b in zip(arrays, self._arrived)]
        for variable, change in zip(self._trained, changes):
            if not np.isfinite(change).all():
                self._fail(
                    f'the change of variable "{variable.name}" in a step is '
                    "NaN or infinite: try a smaller rate, or clip the gradients"
                )
        statistics = arrays[len(changes) :]
        brought = dict(zip(numbers, changes + statistics))
        alone = [n for n, c in zip(numbers, changes) if not c.any()]
        for number in range(len(self._values)):
            if number in brought and number not in alone:
                self._run.push(number, brought[number])
            else:
                self._run.push(number, contribution=EMPTY)
        self._agreed.skip()
        self._run.step()
        self._run.wait()
        self._arrived = self._weights()
        return self._arrived + self._brought_statistics()

    def _fail(self, text: str) -> None:
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")

    def give_weights(self) -> None:
        """The run has them."""


def _statistics(model: Any) -> list[Any]:
    """What layers change in their forward passes."""
    return [
        variable
        for layer in layers_of(model)
        for variable in statistics_of(layer)
        if layer.trainable and variable.dtype == "float32"
    ]


class _State:
    """What a checkpoint has of an optimiser."""

    def __init__(self, optimizer: Any) -> None:
        self._variables = state_of(optimizer)

    def state_dict(self) -> list[np.ndarray]:
        return [np.array(v) for v in self._variables]

    def load_state_dict(self, state: list[np.ndarray]) -> None:
        for variable, values in zip(self._variables, state):
            variable.assign(values)


class _Exchanged:
    """Mixed into an optimiser's class, whose steps are the run's."""

    capstan_exchange: Exchange | None = None
    # Of a model that fit() builds: starts the run once it has its variables.
    capstan_start: Callable[[], None] | None = None

    def capstan_apply(
        self,
        grads: list[Any],
        variables: list[Any],
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        """APPLY of GRADS alone in a trace that another follows."""
        if self.capstan_exchange is None and self.capstan_start:
            if tf.executing_eagerly():
                raise wrong(
                    "fit() builds the model in its first step, which "
                    "run_eagerly computes with this rank's own weights: build "
                    "the model before, such as by model.build(shape)"
                )
            with tf.init_scope():
                has_variables = all(is_made(v) for v in variables)
                if has_variables:
                    self.capstan_start()
            if not has_variables:
                return apply(grads)
        if self.capstan_exchange is None:
            raise wrong("fit() needs callbacks=[capstan.keras.Callback()]")
        return self.capstan_exchange.apply(grads, variables, apply)


class _Exchanged2(_Exchanged):
    """Of Keras 2."""

    def apply_gradients(
        self, grads_and_vars: Any, *arguments: Any, **named: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        own = super().apply_gradients  # type: ignore[misc]
        return self.capstan_apply(
            [grad for grad, _ in pairs],
            variables,
            lambda grads: own(list(zip(grads, variables)), *arguments, **named),
        )


class _Exchanged3(_Exchanged):
    """Of Keras 3."""

    _trainable_variables: list[Any]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = list(trainable_variables or self._trainable_variables)
        own = super().apply  # type: ignore[misc]
        self.capstan_apply(
            list(grads), variables, lambda found: own(found, trainable_variables)
        )


def DistributedOptimizer(optimizer: Any) -> Any:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients, or
    with strategy.staleness this rank's, and sends what that changes.

    It is an optimiser of Keras 2 or 3, or what tf.keras.optimizers.get() takes.
    Its clipping acts on the mean. A model that is saved with it loads without
    Capstan. A LossScaleOptimizer is given to DistributedOptimizer, and not the
    other way round.
    """
    made = optimizer
    if isinstance(optimizer, (str, dict)):
        made = tf.keras.optimizers.get(optimizer)
    check_optimizer(made)
    kind = type(made)
    if issubclass(kind, _Exchanged):
        raise wrong(f"{kind.__name__} is a DistributedOptimizer already")
    rule = _Exchanged2 if is_keras_2(made) else _Exchanged3
    made.__class__ = type(
        kind.__name__, (rule, kind), {"__module__": public_module(kind)}
    )
    return made


def start(model: Any) -> None:
    """Waits for the run's weights, which are then in MODEL, and its optimiser.

    fit() does it; a script that goes on with a checkpoint calls it before, and
    finds in run.position where it is. MODEL is built and compiled.
    """
    check_model(model)
    if not model.built:
        raise wrong(
            f'model "{model.name}" has no weights yet: build it, such as by '
            "model.build(shape) or by a first layer keras.Input(shape)"
        )
    optimizer: Any = getattr(model, "optimizer", None)
    if not isinstance(optimizer, _Exchanged):
        raise wrong(
            f"the model's optimizer is {type(optimizer).__name__}; "
            "expected is capstan.keras.DistributedOptimizer(...), with "
            "mixed_float16 of a LossScaleOptimizer"
        )
    if optimizer.capstan_exchange is None:
        if not getattr(optimizer, "built", False):  # Keras 2 has it not
            optimizer.build(model.trainable_variables)
        run = current()
        if run._started:
            raise wrong(
                "the run has started with another DistributedOptimizer, which a "
                "second compile() does not replace: set optimizer.learning_rate "
                "of the first, or save the model and train on by another start "
                "of the script, which loads it"
            )
        made = Changes if run.is_stale else Exchange
        optimizer.capstan_exchange = made(run, model)
        current()._share(_State(optimizer))


def fit(
    model: Any, data: tf.data.Dataset, epochs: int, **arguments: Any
) -> None:
    """model.fit() up to EPOCHS from where the run is, within an epoch too.

    DATA has this rank's batches of an epoch, ARGUMENTS are fit()'s, and a
    Callback is added. A run that was resumed or joined does the rest of the
    epoch that was begun first.
    """
    check_model(model)
    arguments["callbacks"] = [*arguments.get("callbacks", ()), Callback()]
    if not _is_built(model):
        x, *_ = tf.nest.map_structure(
            lambda spec: input_of(model, spec), data.element_spec
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


def _is_built(model: Any) -> bool:
    return all(layer.built for layer in layers_of(model))


class Callback(tf.keras.callbacks.Callback):
    """Starts the run with fit(): all ranks begin with rank 0's weights.

    A model that fit() builds starts it when its first step has its variables.

    It sets jit_compile to False, as XLA cannot call the exchange, and stops
    the training when the run ends.
    """

    _epoch: int | None = None  # of fit(), that has begun

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        check_model(model)
        run = current()
        if model.jit_compile:
            model.jit_compile = False
            if run.logs and run.rank == 0:
                print("capstan: jit_compile is set to False", file=sys.stderr)

    # Keras 2 asks these, and the base may be of Keras 3.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self._epoch = None
        begun = getattr(optimizer, "capstan_exchange", None) is not None
        if begun or not isinstance(optimizer, _Exchanged) or _is_built(self.model):
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
