# SPDX-License-Identifier: Apache-2.0
"""The job's keys as arguments of init(), by python/tests/job_keys.py."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict


class JobKeys(TypedDict, total=False):
    """The types of the keys, for init(**keys: Unpack[JobKeys])."""

    defaults: Literal["torch", "tf"] | None
    seed: int | None
    epochs: int | None
    steps: int | None
    steps_per_epoch: int | None
    train_batch_size: int | None
    train_micro_batch_size_per_gpu: int | None
    gradient_accumulation_steps: int | None
    gradient_clipping: float | None
    optimizer: str | os.PathLike[str] | dict[str, Any] | None
    scheduler: dict[str, Any] | None
    scale_lr: Literal["none", "linear"] | None
    strategy: str | os.PathLike[str] | dict[str, Any] | None
    zero_optimization: dict[str, Any] | None
    wire: Literal["float32", "bf16"] | None
    chief: Literal["train", "coordinate"] | None
    device: Literal["auto", "cpu", "cuda"] | None
    devices: int | None
    threads: int | None
    workers: int | None
    checkpoint: str | os.PathLike[str] | dict[str, Any] | None
    tensorboard: dict[str, Any] | None
    metrics: dict[str, Any] | None
    mlflow: dict[str, Any] | None
    security: dict[str, Any] | None
    export: dict[str, Any] | None
    init: str | None
    steps_per_print: int | None
    on_nan: Literal["stop", "skip"] | None
    timeouts: dict[str, Any] | None
    compare: dict[str, Any] | None
    clip: float | None


SENTENCES: dict[str, str] = {
    "defaults": (
        "whose defaults keys have that are left out: torch's, or those of "
        "TensorFlow's Keras for optimizers and model.init"
    ),
    "seed": (
        "seed of the initial weights and the order of samples"
    ),
    "epochs": (
        "passes over the data"
    ),
    "steps": (
        "number of rounds; with staleness, number of pushes of all trainers"
        " together. 0 writes the initial checkpoint and ends"
    ),
    "steps_per_epoch": (
        "length of an epoch, shorter or longer than the data, as in Keras"
    ),
    "train_batch_size": (
        "micro batch x accumulation x replicas of all trainers; with "
        "staleness the replicas of one trainer"
    ),
    "train_micro_batch_size_per_gpu": (
        "samples of one pass of one replica"
    ),
    "gradient_accumulation_steps": (
        "passes whose gradients are summed in one push"
    ),
    "gradient_clipping": (
        "bound of the global norm of the averaged gradient; 0 is off"
    ),
    "optimizer": (
        "the update rule and its parameters; a word: its type"
    ),
    "scheduler": (
        "how the learning rate changes"
    ),
    "scale_lr": (
        "linear: the rate, and warmup_max_lr, times the number of replicas;"
        " not with staleness"
    ),
    "strategy": (
        "how trainers combine their gradients; a word: its type"
    ),
    "zero_optimization": (
        "DeepSpeed's ZeRO: what trainers of all-reduce keep of the "
        "optimiser's state"
    ),
    "wire": (
        "format of gradients and weights in messages"
    ),
    "chief": (
        "the chief trains too, or only coordinates"
    ),
    "device": (
        "device of the trainers: a GPU if there is one, only the CPU, or "
        "only a GPU"
    ),
    "devices": (
        "largest number of devices of a trainer; 0: all that it sees and "
        "shares with no other trainer"
    ),
    "threads": (
        "compute threads of a trainer"
    ),
    "workers": (
        "number of workers, where the chief's cluster description does not "
        "list all; with --join the most that may take part"
    ),
    "checkpoint": (
        "what a run saves of itself, and where it resumes from; a word: its"
        " dir"
    ),
    "tensorboard": (
        "event files for TensorBoard"
    ),
    "metrics": (
        "the points of the run in a file"
    ),
    "mlflow": (
        "the server of MLflow that gets the metrics"
    ),
    "security": (
        "who takes part in the run"
    ),
    "export": (
        "the trained weights in one file"
    ),
    "init": (
        "initial weights; not read if the run resumes from a checkpoint"
    ),
    "steps_per_print": (
        "steps between two points of the metrics and between two log lines;"
        " without it the run has 50 to 125 points, and one without an end "
        "has one each 100 steps"
    ),
    "on_nan": (
        "stop: a NaN loss ends the run with exit code 1; skip: its step is "
        "skipped, by a script's model with capstan.torch only"
    ),
    "timeouts": (
        "how long processes wait for each other"
    ),
    "compare": (
        "the cases that capstan compare measures"
    ),
    "clip": (
        "the same as gradient_clipping"
    ),
}
