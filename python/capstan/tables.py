# SPDX-License-Identifier: Apache-2.0
"""Tables of rows, on the ps or on every rank: a step reads those that it needs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _library
from .errors import ConfigError

if TYPE_CHECKING:
    from .run import Run

_c = _library.capstan


_COMBINERS = ("sum", "mean", "sqrtn")  # as enum capstan_combiner


class Bags:
    """Bags of ids, of which lookup() gives the combined rows, one a bag.

    IDS are integers [bags, ids], or [ids] with the OFFSETS [bags] at which
    they begin. A bag has the sum of its rows, each times its WEIGHTS (as IDS;
    None: 1); "mean" divides by the sum of the weights, "sqrtn" by the root of
    the sum of their squares, unless that is 0. A bag of no ids has zeros. All
    are copied."""

    def __init__(
        self,
        ids: Any,
        combiner: str = "sum",
        offsets: Any = None,
        weights: Any = None,
    ):
        array = _integers(ids)
        if combiner not in _COMBINERS:
            raise _wrong(
                f'combiner is "{combiner}"; allowed: {", ".join(_COMBINERS)}'
            )
        if array.ndim != (2 if offsets is None else 1):
            raise _wrong(
                f"ids of bags have shape {array.shape}; they are [bags, ids], "
                "or [ids] with offsets"
            )
        self.combiner = _COMBINERS.index(combiner)
        self.ids = array.reshape(-1).copy()
        self.offsets = _offsets(array, offsets)
        self.shape = (len(self.offsets) - 1,)
        self.weights = None
        if weights is not None:
            self.weights = np.array(weights, np.float32, order="C")
            if self.weights.shape != array.shape:
                raise _wrong(
                    f"weights have shape {self.weights.shape}, ids "
                    f"{array.shape}"
                )


def _wrong(text: str) -> ConfigError:
    return ConfigError(text, "MODEL_INVALID")


def _offsets(ids: np.ndarray, begins: Any) -> np.ndarray:
    """Where bags begin in IDS, and where the last ends."""
    if begins is None:
        begins = np.arange(len(ids)) * ids.shape[1]
    begins = np.asarray(begins)
    if not begins.size:
        begins = begins.astype(np.int64)
    ends = np.append(begins, ids.size)
    if begins.ndim != 1 or begins.dtype.kind not in "iu":
        raise _wrong(
            f"offsets have shape {begins.shape} and dtype {begins.dtype}; "
            "they are integers [bags]"
        )
    if ids.size >= 2**32 or ends[0] != 0 or (ends[:-1] > ends[1:]).any():
        raise _wrong(
            f"offsets {begins.tolist()[:8]} of {ids.size} ids; they go up "
            "from 0 to at most the number of ids, below 2^32"
        )
    return ends.astype(np.uint32)


class Table:
    """Rows of DIM floats by 64-bit id; Run.table() makes it. IDS are integers
    of any shape, or Bags of them, whose shape is [bags].

    A copy, also one that was pickled, has no rows: it reads those of the table
    that the run of its process has under its name."""

    def __init__(self, run: Run | None, name: str, number: int, dim: int):
        """RUN None: a copy, which has no NUMBER."""
        self.run, self.name, self.number, self.dim = run, name, number, dim

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (None, self.name, -1, self.dim)

    def of_run(self) -> Table:
        """The run's table, of which this may be a copy."""
        from . import run as runs

        run = self.run or runs._current
        found = self if self.run or not run else run._tables.get(self.name)
        if run is None:
            why = "this process has no run"
        elif run._open is None:
            why = run._closed_because
        elif found is None or found.dim != self.dim:
            why = "the run of this process has no such table"
        else:
            return found
        raise _wrong(
            f'the rows of table "{self.name}" of dim {self.dim} are in the run '
            f"that declares it, and {why}: read them before run.close(), or "
            "from a checkpoint (capstan ckpt export --table)"
        )

    def lookup(self, ids: Any) -> np.ndarray:
        """The rows of IDS, float32 [*ids.shape, dim], as they are after the
        last step."""
        return lookup(self.of_run().run, [(self, ids)])[0]

    def prefetch(self, ids: Any) -> None:
        """Asks ahead for the rows of the next step's lookup(), with the same
        IDS: once a step, after its last lookup(); or, best, before its only
        one, if that was asked for ahead itself. Another lookup() in that step
        ends the run."""
        prefetch(self.of_run().run, [(self, ids)])

    def push(self, ids: Any, gradients: Any) -> None:
        """Adds GRADIENTS [*ids.shape, dim] of what lookup() gives to this
        step, before run.step(); those of equal ids are added up."""
        push(self.of_run().run, [(self, ids, gradients)])

    def ids(self, most: int) -> np.ndarray:
        """The ids of the rows that the table has after the last step, int64
        [n], ascending. More than MOST are an error."""
        table = self.of_run()
        assert table.run is not None
        found = np.empty(most, np.uint64)
        count = ctypes.c_size_t()
        table.run._await(
            *(_c.capstan_ids, table.number, found.ctypes.data, most),
            ctypes.byref(count),
        )
        if count.value > most:
            raise _wrong(
                f'table "{self.name}" has more than {most} rows: `capstan '
                f"ckpt export --table {self.name}` writes those of a checkpoint"
            )
        return np.sort(found[: count.value].view(np.int64))

    def write(self, ids: Any, rows: Any) -> None:
        """Sets the rows of IDS to ROWS [*ids.shape, dim]; of equal ids the
        last stands. Their optimiser's state stays as it is.

        Before run.start(): the rows that the table begins with. All ranks
        write those of the same tables; rank 0's stand, and others may have
        none. A run that continues a checkpoint leaves them out.

        After it: with this step, as push(), before its gradients are applied;
        where several ranks write a row, the highest rank's stands. lookup() of
        this rank gives them at once."""
        write(self.of_run().run, [(self, ids, rows)])


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
    run._tables[name] = Table(run, name, number.value, dim)
    return run._tables[name]


def _integers(ids: Any) -> np.ndarray:
    array = np.ascontiguousarray(ids)
    if not array.size:  # of no dtype, if it is a list
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise _wrong(f"ids have the dtype {array.dtype}; they are integers")
    if array.dtype == np.int64:
        return array.view(np.uint64)
    return array.astype(np.uint64, copy=False)


def _keys(ids: Any) -> np.ndarray | Bags:
    return ids if isinstance(ids, Bags) else _integers(ids)


_Part = tuple[Table, "np.ndarray | Bags", np.ndarray]


def _rows(parts: Sequence[_Part]) -> Any:
    rows = (_library.Rows * len(parts))()
    for row, (table, keys, values) in zip(rows, parts):
        ids = keys
        if isinstance(keys, Bags):
            ids = keys.ids
            row.num_bags, row.combiner = keys.shape[0], keys.combiner
            row.offsets = keys.offsets.ctypes.data
            if keys.weights is not None:
                row.weights = keys.weights.ctypes.data
        row.table, row.count = table.number, ids.size
        row.ids, row.values = ids.ctypes.data, values.ctypes.data
    return rows


_Make = Callable[[tuple[int, ...]], np.ndarray]


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(shape, np.float32)


def _asked(
    requests: Sequence[tuple[Table, Any]], make: _Make = _empty
) -> list[_Part]:
    parts = []
    for asked, ids in requests:
        table, keys = asked.of_run(), _keys(ids)
        parts.append((table, keys, make((*keys.shape, table.dim))))
    return parts


def prefetch(run: Run, requests: Sequence[tuple[Table, Any]]) -> None:
    """Run.prefetch()."""
    parts = _asked(requests)
    run._check(_c.capstan_prefetch(run._handle, _rows(parts), len(parts)))


def lookup(
    run: Run, requests: Sequence[tuple[Table, Any]], make: _Make = _empty
) -> list[np.ndarray]:
    """The rows of several tables in one exchange: of each (table, ids). MAKE
    gives the arrays for them."""
    parts = _asked(requests, make)
    run._await(_c.capstan_lookup, _rows(parts), len(parts))
    return [values for _, _, values in parts]


def _given(
    requests: Sequence[tuple[Table, Any, Any]], what: str
) -> list[_Part]:
    """(table, ids, values): WHAT, with values for each."""
    parts = []
    for table, ids, given in requests:
        if table.run is None:
            raise _wrong(f'a copy of table "{table.name}" takes no {what}')
        keys = _keys(ids)
        values = np.ascontiguousarray(given, np.float32)
        shape = (*keys.shape, table.dim)
        if not values.size and 0 in shape:
            values = values.reshape(shape)
        if values.shape != shape:
            raise _wrong(
                f'the {what} of table "{table.name}" have shape '
                f"{values.shape}; expected is {shape}"
            )
        parts.append((table, keys, values))
    return parts


def push(run: Run, requests: Sequence[tuple[Table, Any, Any]]) -> None:
    """Gradients of rows of several tables: (table, ids, gradients)."""
    if run.ended:
        run._leave()
    parts = _given(requests, "gradients")
    run._check(_c.capstan_push_rows(run._handle, _rows(parts), len(parts)))


def write(run: Run, requests: Sequence[tuple[Table, Any, Any]]) -> None:
    """Rows of several tables: (table, ids, rows), of which no ids are Bags."""
    if run.ended:
        run._leave()
    for table, ids, _ in requests:
        if isinstance(ids, Bags):
            raise _wrong(f'rows of table "{table.name}" are written by id')
    parts = _given(requests, "rows")
    run._check(_c.capstan_write_rows(run._handle, _rows(parts), len(parts)))
