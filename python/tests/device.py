# SPDX-License-Identifier: Apache-2.0
"""The device of the ranks' models: the GPU where there is one."""

from __future__ import annotations

import torch

name = "cpu"  # also of what they are compared with
# Functions of ranks that show what is of host memory, or make models there.
_ON_CPU = {"copied", "gan", "lazy_copies", "passes", "shared", "wrapped_as"}
_ON_CPU |= {"writes"}


def choose(function: str) -> None:
    """For FUNCTION of a rank; not before a fork, which a GPU does not bear."""
    global name
    if torch.cuda.device_count() and function not in _ON_CPU:
        name = "cuda"
        torch.backends.cudnn.allow_tf32 = False
