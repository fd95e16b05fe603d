# SPDX-License-Identifier: Apache-2.0
"""Tables of rows on the ps, of which a step reads only those that it needs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _library
from .errors import ConfigError

if TYPE_CHECKING:
    from .run import Run

_c = _library.capstan


class Table:
    """Rows of DIM floats by 64-bit id; Run.table() makes it."""

    def __init__(self, run: Run, name: str, number: int, dim: int):
        self.run, self.name, self.number, self.dim = run, name, number, dim

    def lookup(self, ids: Any) -> np.ndarray:
        """The rows of IDS, of any shape, as float32 [*ids.shape, dim], as they
        are after the last step."""
        return lookup(self.run, [(self, ids)])[0]

    def prefetch(self, ids: Any) -> None:
        """Asks ahead for the rows of the next step's lookup(), with the same
        IDS: once a step, after its last lookup()."""
        prefetch(self.run, [(self, ids)])

    def push(self, ids: Any, gradients: Any) -> None:
        """Adds GRADIENTS [*ids.shape, dim] of the rows of IDS to this step,
        before run.step(); those of equal ids are added up."""
        push(self.run, [(self, ids, gradients)])


def declare(
    run: Run,
    name: str,
    dim: int,
    rule: Mapping[str, Any] | None,
    **settings: Any,
) -> Table:
    """Run.table()."""
    kind = rule.get("type") if rule else None
    if rule is not None and not isinstance(kind, str):
        raise ConfigError(
            f'table "{name}": rule is {rule!r}; it is like '
            '{"type": "Ftrl", "params": {"lr": 0.1}}',
            "MODEL_INVALID",
        )
    spec = _library.Table(
        name=name.encode(),
        dim=dim,
        optimizer=kind.encode() if kind else None,
        **settings,
    )
    number = ctypes.c_uint32()
    run._check(
        _c.capstan_declare_table(
            run._handle, ctypes.byref(spec), ctypes.byref(number)
        )
    )
    for key, value in (rule.get("params", {}) if rule else {}).items():
        run._check(
            _c.capstan_set_table(
                run._handle, number.value, key.encode(), float(value)
            )
        )
    return Table(run, name, number.value, dim)


def _ids(ids: Any) -> np.ndarray:
    array = np.ascontiguousarray(ids)
    if array.dtype.kind not in "iu":
        raise ConfigError(
            f"ids have the dtype {array.dtype}; they are integers",
            "MODEL_INVALID",
        )
    return array.astype(np.uint64, copy=False)


def _rows(parts: Sequence[tuple[Table, np.ndarray, np.ndarray]]) -> Any:
    rows = (_library.Rows * len(parts))()
    for row, (table, ids, values) in zip(rows, parts):
        row.table, row.count = table.number, ids.size
        row.ids, row.values = ids.ctypes.data, values.ctypes.data
    return rows


def _asked(requests: Sequence[tuple[Table, Any]]) -> list:
    parts = []
    for table, ids in requests:
        array = _ids(ids)
        values = np.empty((*array.shape, table.dim), np.float32)
        parts.append((table, array, values))
    return parts


def prefetch(run: Run, requests: Sequence[tuple[Table, Any]]) -> None:
    """Asks ahead for the rows of the next step's lookup() of the same
    requests: once a step, after its last lookup()."""
    parts = _asked(requests)
    run._check(_c.capstan_prefetch(run._handle, _rows(parts), len(parts)))


def lookup(
    run: Run, requests: Sequence[tuple[Table, Any]]
) -> list[np.ndarray]:
    """The rows of several tables in one exchange: of each (table, ids)."""
    parts = _asked(requests)
    run._await(_c.capstan_lookup, _rows(parts), len(parts))
    return [values for _, _, values in parts]


def push(run: Run, requests: Sequence[tuple[Table, Any, Any]]) -> None:
    """Gradients of rows of several tables: (table, ids, gradients)."""
    parts = []
    for table, ids, gradients in requests:
        array = _ids(ids)
        values = np.ascontiguousarray(gradients, np.float32)
        if values.shape != (*array.shape, table.dim):
            raise ConfigError(
                f'the gradients of table "{table.name}" have shape '
                f"{values.shape}; expected is {(*array.shape, table.dim)}",
                "MODEL_INVALID",
            )
        parts.append((table, array, values))
    run._check(_c.capstan_push_rows(run._handle, _rows(parts), len(parts)))
