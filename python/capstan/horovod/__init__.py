# SPDX-License-Identifier: Apache-2.0
"""Horovod's modules, for scripts that were written for them.

import capstan.horovod.torch as hvd             # import horovod.torch as hvd
import capstan.horovod.tensorflow.keras as hvd  # ... horovod.tensorflow.keras

`import capstan.horovod as hvd` has the names of the first. A name of Horovod's
that a run does not have is there too, and its use an error that says what to
do instead.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from .names import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or find_spec(f"{__name__}.{name}"):
        raise AttributeError(name)  # a module is not imported yet
    return getattr(importlib.import_module(f"{__name__}.torch"), name)
