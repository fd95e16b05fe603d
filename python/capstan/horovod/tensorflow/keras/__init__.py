# SPDX-License-Identifier: Apache-2.0
"""The names of horovod.tensorflow.keras, for scripts that were written for it.

import capstan.horovod.tensorflow.keras as hvd

Collectives are of all ranks, which make the same calls in the same order, and
no steps of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from .... import Run
from .... import init as join_run
from .... import keras as capstan_keras
from ... import calls
from ...calls import wrong
from ...names import (
    Average,
    ProcessSet,
    Sum,
    add_process_set,
    begin,
    ccl_built,
    check_op,
    check_set,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    elastic,
    global_process_set,
    gloo_built,
    gloo_enabled,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    refuse,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from . import callbacks

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class Compression:
    """What allreduce() takes as compression=: the type that values travel in."""

    none = None
    fp16 = tf.float16


def init(
    comm: Sequence[int] | None = None, process_sets: Any = None, **keys: Any
) -> Run:
    """Joins the run; KEYS are those of capstan.init().

    A process that is in the run already stays in it. COMM and PROCESS_SETS are
    of Horovod, and refused if they name some of the ranks.
    """
    return begin(join_run, comm, process_sets, keys)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients.

    It is capstan.keras.DistributedOptimizer(); fit() needs
    callbacks.BroadcastGlobalVariablesCallback(0). Devices, groups and
    GRADIENT_PREDIVIDE_FACTOR change nothing here.
    """
    check_set(process_set)
    _check_factor(gradient_predivide_factor)
    if compression is not Compression.none:
        raise wrong(
            "compression of DistributedOptimizer is fp16: leave it out, and "
            'with ps write hvd.init(wire="bf16")'
        )
    if op == Sum:
        raise wrong(
            "op of DistributedOptimizer is Sum: leave it out, as gradients are "
            "averaged, and multiply the loss by hvd.size(), which is the same"
        )
    check_op(op, (Average,), "DistributedOptimizer")
    if backward_passes_per_step != 1:
        raise wrong(
            f"backward_passes_per_step is {backward_passes_per_step}: leave it "
            "out, and give Keras 3's optimizer gradient_accumulation_steps="
            f"{backward_passes_per_step}, which averages them, or take a batch "
            "that is larger"
        )
    return capstan_keras.DistributedOptimizer(optimizer)


def _check_factor(factor: float) -> None:
    if not 0 < factor < float("inf"):
        raise wrong(
            f"gradient_predivide_factor is {factor}; allowed is a number "
            "above 0"
        )


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Is an error, as in Horovod with eager execution."""
    refuse(
        "broadcast_global_variables",
        "fit(callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]) "
        "gives all ranks rank 0's variables",
    )


def _array(value: Any) -> np.ndarray:
    """VALUE as TensorFlow has it: a Python number is of 32 bits."""
    found: np.ndarray = tf.convert_to_tensor(value).numpy()
    return np.asarray(found)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The ranks' VALUEs, of one shape and type, reduced by OP, as a tensor.

    Whole numbers are exact, or an error where the result does not fit; a mean
    of them is rounded towards zero.
    """
    if op is not None and average is not None:
        raise wrong("op and average are both given: op is enough")
    kind = op or (Sum if average is False else Average)
    own = _array(value)
    factors = prescale_factor, postscale_factor
    found = _reduced(own, name, kind, *factors, compression)
    return tf.constant(found.astype(own.dtype))


def _reduced(
    own: np.ndarray,
    name: str | None,
    op: str,
    before: float = 1.0,
    after: float = 1.0,
    compression: Any = None,
) -> np.ndarray:
    dtype = own.dtype.name
    if own.dtype.kind == "f" and compression is not None:
        own = own.astype(compression.as_numpy_dtype)
        dtype = f"{dtype} as {own.dtype}"
    elif own.dtype.name == "bfloat16":
        own = own.astype(np.float32)
    return np.asarray(
        calls.allreduce(own, name, op, before, after, dtype)
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The ranks' VALUEs, joined in their first dimension, by rank."""
    return tf.constant(np.concatenate(calls.allgather(_array(value), name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Rank ROOT_RANK's VALUE; those of others have its shape and type."""
    return tf.constant(calls.broadcast(_array(value), root_rank, name))


def reducescatter(
    value: Any, name: str | None = None, op: str = Average
) -> Any:
    """This rank's rows of what allreduce() returns; first ranks have one more."""
    own = _array(value)
    if not own.ndim:
        raise wrong("reducescatter of a value without dimensions")
    found = _reduced(own, name, op).astype(own.dtype)
    return tf.constant(found[calls.rows_of(len(found))])


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """The saved model, whose optimizer is a DistributedOptimizer."""
    if legacy_opts:
        raise wrong(
            "legacy_opts of load_model is True: save the model with an "
            "optimizer of tf.keras.optimizers, without legacy"
        )
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is None:
        raise wrong(f"{filepath} has no optimizer: the model was not compiled")
    model.optimizer = DistributedOptimizer(
        model.optimizer, compression=compression
    )
    return model
