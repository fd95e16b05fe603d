# SPDX-License-Identifier: Apache-2.0
"""The job's keys as arguments of init()."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from .job_keys import SENTENCES, JobKeys

_SHORT = {"clip": "gradient_clipping"}
_MAIN_KEY = {"strategy": "type", "checkpoint": "dir", "optimizer": "type"}


def types() -> dict[str, str]:
    """The annotation of each key."""
    return {
        key: kind.__forward_arg__
        for key, kind in JobKeys.__annotations__.items()
    }


Init = TypeVar("Init", bound=Callable[..., Any])


def described(init: Init) -> Init:
    """INIT(..., **keys), whose help() has each key with type and sentence."""
    signature = inspect.signature(init)
    own = [p for p in signature.parameters.values() if p.name != "keys"]
    keys = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
        )
        for key, kind in types().items()
    ]
    both = signature.replace(parameters=[*own, *keys])
    init.__signature__ = both  # type: ignore[attr-defined]
    lines = "".join(f"\n    {k}: {text}" for k, text in SENTENCES.items())
    text = inspect.cleandoc(init.__doc__ or "")
    init.__doc__ = f"{text}\n\nKEYS:\n{lines}\n"
    return init


def overrides(keys: Mapping[str, Any]) -> list[str]:
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
