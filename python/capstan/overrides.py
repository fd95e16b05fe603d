# SPDX-License-Identifier: Apache-2.0
"""The job's keys as arguments of init()."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

_SHORT = {"clip": "gradient_clipping"}
_MAIN_KEY = {"strategy": "type", "checkpoint": "dir", "optimizer": "type"}


def overrides(keys: dict[str, Any]) -> list[str]:
    """{"strategy": {"staleness": 2}} becomes ["strategy.staleness=2"].

    Values of None are left out; "strategy", "checkpoint" and "optimizer" may
    be their type or directory alone.
    """
    found: list[str] = []
    for key, value in keys.items():
        if key in _MAIN_KEY and isinstance(value, (str, os.PathLike)):
            value = {_MAIN_KEY[key]: value}
        if value is not None:
            found += _leaves(_SHORT.get(key, key), value)
    return found


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, float) and math.isinf(value):
        yield f'{path}="inf"'
    else:
        yield f"{path}={json.dumps(value, default=os.fspath)}"
