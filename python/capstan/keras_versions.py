# SPDX-License-Identifier: Apache-2.0
"""What differs between Keras 2 and 3, by the class of what is given.

Keras 2 is the package keras of TensorFlow 2.15, or tf_keras; a script may have
imported either beside Keras 3. Raises ConfigError at import without the
TensorFlow that capstan.keras needs.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from .errors import ConfigError

_NEEDED = (
    "capstan.keras needs TensorFlow 2.15 or newer, with its Keras 2 or with "
    "Keras 3 over TensorFlow: pip install 'tensorflow>=2.15'"
)

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise ConfigError(f"{error}; {_NEEDED}", "USAGE") from error
if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 15):
    raise ConfigError(f"TensorFlow is {tf.__version__}; {_NEEDED}", "USAGE")


def wrong(text: str) -> ConfigError:
    """A wrong call or model."""
    return ConfigError(text, "MODEL_INVALID")


def _package(given: Any) -> ModuleType | None:
    """The package keras or tf_keras that GIVEN's class comes from."""
    for base in type(given).__mro__:
        root = base.__module__.split(".")[0]
        if root in ("keras", "tf_keras"):
            return sys.modules[root]
    return None


def _name(given: Any) -> str:
    """Of GIVEN's class, with its package if that has another of the name."""
    kind = type(given)
    module = kind.__module__
    if ".legacy" in module:
        return f"tf.keras.optimizers.legacy.{kind.__name__}"
    if module.startswith("tensorflow."):
        return f"tf.compat.v1.train.{kind.__name__}"
    return kind.__name__


def is_keras_2(given: Any) -> bool:
    package = _package(given)
    return package is not None and package.__version__.startswith("2.")


def _check_package(given: Any, what: str, instead: str) -> None:
    """Raises ConfigError if GIVEN, a WHAT, is of no Keras over TensorFlow."""
    package = _package(given)
    if package is None:
        raise wrong(f"{_name(given)} is no {what} of Keras: {instead}")
    version = f"{package.__name__} {package.__version__}"
    if is_keras_2(given):
        if int(package.__version__.split(".")[1]) < 15:
            raise wrong(f"{_name(given)} is of {version}; {_NEEDED}")
    elif package.backend.backend() != "tensorflow":
        raise wrong(
            f"{_name(given)} is of {version} over "
            f"{package.backend.backend()}; {_NEEDED}, and set "
            "KERAS_BACKEND=tensorflow"
        )


def check_optimizer(optimizer: Any) -> None:
    """Raises ConfigError unless OPTIMIZER is one that Keras has today."""
    instead = (
        "give an optimiser of tf.keras.optimizers, and in place of an "
        "Estimator a model of Keras"
    )
    _check_package(optimizer, "optimiser", instead)
    package = _package(optimizer)
    assert package is not None
    if not isinstance(optimizer, package.optimizers.Optimizer):
        raise wrong(
            f"{_name(optimizer)} is not taken: give the one of "
            "tf.keras.optimizers, without legacy"
        )


def check_model(model: Any) -> None:
    """Raises ConfigError unless MODEL is one that one process computes."""
    _check_package(model, "model", "an Estimator's model becomes one of Keras")
    strategy = model.distribute_strategy
    one = tf.distribute.OneDeviceStrategy
    extended = type(strategy.extended).__name__
    if extended != "_DefaultDistributionExtended" and not isinstance(
        strategy, one
    ):
        raise wrong(
            f'model "{model.name}" was made in the scope of '
            f"{type(strategy).__name__}, in whose place Capstan trains: leave "
            "strategy and scope out; the batch size is a rank's, and "
            "dataset.shard(run.size, run.rank) gives it its samples"
        )


def public_module(kind: type) -> str:
    """The module in which a saved model finds the optimiser KIND."""
    root = kind.__module__.split(".")[0]
    if root not in ("keras", "tf_keras"):
        return kind.__module__  # the script's own
    return f"{root}.optimizers"


def names_of(variables: list[Any]) -> list[str]:
    """A name for each variable, alike on all ranks and no name twice."""
    found: dict[str, int] = {}
    names = []
    for variable in variables:
        name = getattr(variable, "path", None) or variable.name.split(":")[0]
        count = found[name] = found.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}_{count}")
    return names


def _is_metric(layer: Any) -> bool:
    """Keras 2 counts metrics among the layers."""
    package = _package(layer)
    return package is not None and isinstance(layer, package.metrics.Metric)


def layers_of(model: Any) -> list[Any]:
    """MODEL and its layers."""
    return [n for n in model._flatten_layers() if not _is_metric(n)]


def weights_of(model: Any) -> list[Any]:
    """Those of MODEL, without what metrics count."""
    layers = model._flatten_layers()
    metrics = {id(v) for n in layers if _is_metric(n) for v in n.weights}
    return [v for v in model.weights if id(v) not in metrics]


def statistics_of(layer: Any) -> list[Any]:
    """The variables that LAYER itself changes in its forward pass."""
    if is_keras_2(layer):
        return layer._non_trainable_weights
    return layer._non_trainable_variables


def is_made(variable: Any) -> bool:
    """Has VARIABLE a value? One that a trace of tf.function made has none."""
    if isinstance(variable, tf.Variable):
        return bool(variable.is_initialized())
    return bool(variable._value.is_initialized())


def rate_of(optimizer: Any) -> float:
    """The learning rate; Keras 2 has its schedule there."""
    rate = optimizer.learning_rate
    if callable(rate):
        rate = rate(optimizer.iterations)
    return float(np.array(rate))


def takes_several_steps(model: Any) -> bool:
    """Does one graph of MODEL's take several of fit()'s steps?"""
    tunes = getattr(model, "autotune_steps_per_execution", False)  # Keras 2's
    with tf.init_scope():
        return bool(tunes) or int(np.array(model.steps_per_execution)) > 1


def state_of(optimizer: Any) -> list[Any]:
    """The variables of OPTIMIZER, and of a LossScaleOptimizer's scale."""
    own = list(optimizer.variables)
    scale: Any = getattr(optimizer, "_loss_scale", None)  # Keras 2's
    if hasattr(scale, "current_loss_scale"):
        own += [scale.current_loss_scale, scale.counter]
    return own


def input_of(model: Any, spec: tf.TensorSpec) -> Any:
    """What stands for a tensor like SPEC where MODEL is built."""
    package = _package(model)
    assert package is not None
    if is_keras_2(model):
        return package.Input(type_spec=spec)
    return package.KerasTensor(spec.shape, spec.dtype.name)
