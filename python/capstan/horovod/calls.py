# SPDX-License-Identifier: Apache-2.0
"""Collectives by Horovod's rules, of NumPy arrays.

Each begins with what all ranks call: a difference is an error on all of them,
before any data is reduced. Other ranks' names, types and shapes count, so that
values that only look alike are not mixed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import ConfigError
from ..run import current
from .names import Average, Max, Min, Product, Sum, check_op, session

_OPS = {
    Average: "mean",
    Sum: "sum",
    Min: "min",
    Max: "max",
    Product: "product",
}
_JOIN = "join"


def wrong(text: str) -> ConfigError:
    """A wrong call."""
    return ConfigError(text, "USAGE")


class Call(NamedTuple):
    """What all ranks say alike."""

    kind: str
    name: str | None
    about: tuple[Any, ...]  # type, shape and the like

    def __str__(self) -> str:
        words = [self.kind, repr(self.name) if self.name else ""]
        words += [str(value) for value in self.about]
        return " ".join(word for word in words if word)


def meet(call: Call, own: Any = None) -> list[Any]:
    """OWN of each rank, by rank, once all of them make CALL.

    None: of a rank that is in join().
    """
    if session().joined:
        raise wrong(
            f"{call}, and a rank is in join(): with a DistributedOptimizer "
            "collectives come before join(), or after it"
        )
    found = current().all_gather_object((call, own))
    joined = [r for r, (other, _) in enumerate(found) if other.kind == _JOIN]
    others = [r for r in range(len(found)) if r not in joined]
    first = found[others[0]][0]
    for r in others:
        if found[r][0] != first:
            raise wrong(
                f"rank {others[0]} calls {first}, and rank {r} {found[r][0]}: "
                "all ranks make the same calls in the same order"
            )
    if joined and not _adds(call):
        raise wrong(
            f"{call}, and ranks {joined} are in join(): until all are, there "
            "is allreduce by Average or Sum"
        )
    return [own for _, own in found]


def _adds(call: Call) -> bool:
    return call.kind == "allreduce" and call.about[2] in (Average, Sum)


def join() -> int:
    """Brings zeros to the other ranks' allreduce until all ranks call it.

    Returns the rank that called it last.
    """
    own = Call(_JOIN, None, ())
    before: list[bool] = []
    while True:
        calls = [c for c, _ in current().all_gather_object((own, None))]
        now = [c.kind == _JOIN for c in calls]
        if all(now):
            break
        before = now
        call = next(c for c in calls if c.kind != _JOIN)
        if not _adds(call):
            raise wrong(f"{call}, and this rank is in join()")
        _, shape, op, before_it, after_it, dtype = call.about
        _reduce(np.zeros(shape, dtype), op, before_it, after_it)
    last = [r for r in range(len(now)) if not before or not before[r]]
    return last[-1]


def allreduce(
    array: np.ndarray,
    name: str | None,
    op: str = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    dtype: str | None = None,
) -> np.ndarray:
    """ARRAY times PRESCALE, reduced over the ranks, times POSTSCALE.

    DTYPE: that of which ARRAY is another form.
    """
    check_op(op, tuple(_OPS), "allreduce")
    _check_numbers(array, op, prescale, postscale)
    kind = array.dtype.name
    about = (dtype or kind, array.shape, op, prescale, postscale, kind)
    meet(Call("allreduce", name, about))
    return _reduce(array, op, prescale, postscale)


def _check_numbers(
    array: np.ndarray, op: str, prescale: float, postscale: float
) -> None:
    kind = array.dtype.kind
    if kind not in "fib" and array.dtype != np.uint8:
        raise wrong(
            f"allreduce of {array.dtype}; allowed: floating point, uint8, "
            "int8, int16, int32, int64, and bool by Min and Max"
        )
    if kind == "b" and op not in (Min, Max):
        raise wrong(
            f"allreduce of bool by {op}: take Min, Max, or whole numbers"
        )
    for factor in prescale, postscale:
        if not math.isfinite(factor):
            raise wrong(f"a factor of allreduce is {factor}")
        if factor != 1 and kind != "f":
            raise wrong(
                f"allreduce of {array.dtype} by a factor of {factor}: take "
                "floating point"
            )


def _reduce(
    array: np.ndarray, op: str, prescale: float, postscale: float
) -> np.ndarray:
    """All ranks of the run call it."""
    run = current()
    if array.dtype.kind != "f" and op not in (Min, Max):
        return _exact(run.all_gather(array), op)
    scaled = array if prescale == 1 else array * array.dtype.type(prescale)
    found = run.all_reduce(scaled, _OPS[op])
    return found if postscale == 1 else found * found.dtype.type(postscale)


def _exact(parts: np.ndarray, op: str) -> np.ndarray:
    """Whole numbers of each rank, reduced, or an error where that does not fit.

    A mean is rounded towards zero.
    """
    fold = np.multiply.reduce if op == Product else np.add.reduce
    size = fold(np.abs(parts.astype(float)), 0)
    wide = np.int64 if np.max(size, initial=0) < 2**62 else object
    total = np.asarray(fold(parts.astype(wide), 0), wide)
    if op == Average:
        total = np.sign(total) * (np.abs(total) // len(parts))
    limits = np.iinfo(parts.dtype)
    if total.size and not (
        limits.min <= total.min() and total.max() <= limits.max
    ):
        raise wrong(
            f"the {op} of an allreduce does not fit into {parts.dtype}"
        )
    return total.astype(parts.dtype)


def _type_of(array: np.ndarray, dtype: str | None) -> tuple[str, str]:
    """Type and shape of ARRAY, which are bytes if it is of another DTYPE.

    Of no rows: those of any number of them.
    """
    shape = array.shape[:-1] if dtype else array.shape
    sizes = [str(size) for size in shape]
    if shape and not shape[0]:
        sizes[0] = "..."
    return dtype or array.dtype.name, f"({', '.join(sizes)})"


def broadcast(
    array: np.ndarray, root: int, name: str | None, dtype: str | None = None
) -> np.ndarray:
    """Rank ROOT's ARRAY, which has the same shape on all ranks."""
    check_root(root)
    about = (*_type_of(array, dtype), f"from rank {root}")
    with current()._preparing():
        meet(Call("broadcast", name, about))
        return current().broadcast(array, root)


def broadcast_object(obj: Any, root: int, name: str | None) -> Any:
    """Rank ROOT's OBJ, which can be pickled."""
    check_root(root)
    with current()._preparing():
        meet(Call("broadcast_object", name, (f"from rank {root}",)))
        return current().broadcast_object(obj, root)


def check_root(root: int) -> None:
    if root not in range(current().size):
        raise wrong(
            f"root_rank is {root}; allowed: 0 to {current().size - 1}"
        )


def allgather(
    array: np.ndarray, name: str | None, dtype: str | None = None
) -> list[np.ndarray]:
    """Each rank's ARRAY, by rank; they may differ in their first dimension."""
    if not array.ndim:
        raise wrong("allgather of a value without dimensions")
    return meet(Call("allgather", name, _type_of(array[0:0], dtype)), array)


def alltoall(
    parts: list[np.ndarray], name: str | None, dtype: str | None = None
) -> list[np.ndarray]:
    """What each rank has among its PARTS for this one, by rank."""
    about = _type_of(parts[0][0:0], dtype)
    found = meet(Call("alltoall", name, about), parts)
    return [of_rank[current().rank] for of_rank in found]


def rows_of(count: int) -> slice:
    """This rank's part of COUNT rows: the first ranks have one more."""
    run = current()
    least, more = divmod(count, run.size)
    first = run.rank * least + min(run.rank, more)
    return slice(first, first + least + (run.rank < more))


def barrier() -> None:
    """Waits until every rank calls it."""
    with current()._preparing():
        meet(Call("barrier", None, ()))
