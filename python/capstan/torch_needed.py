# SPDX-License-Identifier: Apache-2.0
"""Raises ConfigError at import if torch is too old for capstan.torch."""

import torch

from .errors import ConfigError

_NEEDED = (2, 1)  # hooks after a gradient is accumulated

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _NEEDED:
    raise ConfigError(
        f"torch is {torch.__version__}; capstan.torch needs torch 2.1 or "
        "newer: pip install 'torch>=2.1'",
        "USAGE",
    )
