# SPDX-License-Identifier: Apache-2.0
"""Raises ConfigError where torch, or a framework over it, is too old: at import,
and at DistributedOptimizer."""

import re
import sys

import torch

from .errors import ConfigError

# Without hooks after a gradient is accumulated, torch has no exchange within
# backward(). The others' are the oldest that the tests have passed with.
_NEEDED = {
    "torch": (2, 1),
    "transformers.trainer": (4, 36),
    "lightning": (2, 1),
    "pytorch_lightning": (2, 1),
}


def check(module: str, version: str) -> None:
    name, needed = module.split(".")[0], _NEEDED[module]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < needed:
        least = ".".join(map(str, needed))
        raise ConfigError(
            f"{name} is {version}; capstan.torch needs {name} {least} or "
            f"newer: pip install '{name}>={least}'",
            "USAGE",
        )


def has_framework() -> bool:
    """Has this process imported one whose loop may change gradients?"""
    found = [name for name in _NEEDED if name in sys.modules]
    for name in found:
        package = sys.modules[name.split(".")[0]]
        if hasattr(package, "__version__"):  # else a module of the script
            check(name, package.__version__)
    return found != ["torch"]


check("torch", torch.__version__)
