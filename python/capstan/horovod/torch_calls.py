# SPDX-License-Identifier: Apache-2.0
"""Collectives of tensors, through which gradients go back.

All ranks make the same calls in the same order, with the same NAME, if any.
What begins a call returns a handle; the call is complete then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_copies import bytes_of, of_bytes
from . import calls
from .calls import wrong
from .names import (
    Average,
    ProcessSet,
    Sum,
    check_set,
    global_process_set,
    session,
    size,
)

_ALL = global_process_set
_SHORT = (torch.float16, torch.bfloat16)  # computed as float32


class Compressor:
    """Tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """TENSOR as it travels, and what decompress() needs."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return tensor.to(context)


class HalfCompressor(Compressor):
    """Floating point in 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        short = tensor.half() if tensor.is_floating_point() else tensor
        return short, tensor.dtype


class Compression:
    """What allreduce() and reducescatter() take as compression=."""

    none = Compressor
    fp16 = HalfCompressor


class Handle:
    """Of a call that is complete; its result is synchronize()'s."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __call__(self) -> Any:
        return self._result


def poll(handle: Handle) -> bool:
    """True: the call is complete."""
    _check_handle(handle)
    return True


def synchronize(handle: Handle) -> Any:
    """The result of the call."""
    _check_handle(handle)
    return handle()


def _check_handle(handle: Any) -> None:
    if not isinstance(handle, Handle):
        raise wrong(
            f"a handle is {handle!r}; expected is what a call that ends in "
            "_async has returned"
        )


class _Call(torch.autograd.Function):
    """FORWARD of a tensor; BACKWARD takes the gradient of that."""

    @staticmethod
    def forward(
        context: Any,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        tensor: Tensor,
    ) -> Any:
        context.capstan_backward = backward
        return forward(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return None, None, context.capstan_backward(gradient)


def _numbers(tensor: Tensor) -> Any:
    """TENSOR's values as an array, of any device and order."""
    own = tensor.detach().cpu().contiguous()
    return (own.float() if own.dtype in _SHORT else own).numpy()


def _bytes(tensor: Tensor) -> Any:
    """TENSOR, of any type, as an array of shape (rows, ..., bytes of a value)."""
    shape = (*tensor.shape, tensor.element_size())
    return bytes_of(tensor).reshape(shape)


def _of_bytes(data: Any, as_is: Tensor) -> Tensor:
    """The values of DATA, in the type and place of AS_IS."""
    found = of_bytes(data, data.shape[:-1], as_is.dtype)
    return found.to(as_is.device)


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_tensor(tensor: Any, kind: str) -> None:
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        found = getattr(tensor, "layout", type(tensor).__name__)
        raise wrong(f"{kind} of {found}; expected is a dense tensor")


def _op_of(op: str | None, average: bool | None) -> str:
    if op is not None and average is not None:
        raise wrong("op and average are both given: op is enough")
    if op is None:
        return Sum if average is False else Average
    return op


# allreduce


def _reduced(
    tensor: Tensor, name: str | None, op: str, before: float, after: float
) -> Tensor:
    _check_tensor(tensor, "allreduce")
    kind = _type_of(tensor)
    found = calls.allreduce(_numbers(tensor), name, op, before, after, kind)
    return torch.as_tensor(found).to(tensor)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _ALL,
) -> Tensor:
    """The ranks' TENSORs, of one shape and type, reduced by OP.

    OP is Average, Sum, Min, Max or Product, computed in rank order; float16
    and bfloat16 as float32. Whole numbers are exact, or an error where the
    result does not fit; a mean of them is rounded towards zero. AVERAGE=False
    is Sum.
    """
    check_set(process_set)
    _check_tensor(tensor, "allreduce")
    kind = _op_of(op, average)
    factors = prescale_factor, postscale_factor
    short, context = compression.compress(tensor)

    def back(gradient: Tensor) -> Tensor:
        if kind not in (Average, Sum):
            raise wrong(f"allreduce by {kind} has no gradient")
        return _reduced(gradient, name, kind, *factors)

    found = _Call.apply(
        lambda t: _reduced(t, name, kind, *factors), back, short
    )
    return compression.decompress(found, context)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _ALL,
) -> Tensor:
    """allreduce() in place."""
    check_set(process_set)
    factors = prescale_factor, postscale_factor
    with torch.no_grad():
        found = _reduced(tensor, name, _op_of(op, average), *factors)
        return tensor.copy_(found)


def allreduce_async(tensor: Tensor, *arguments: Any, **named: Any) -> Handle:
    """allreduce_()'s arguments, and a handle of the result."""
    return allreduce_async_(tensor.detach().clone(), *arguments, **named)


def allreduce_async_(tensor: Tensor, *arguments: Any, **named: Any) -> Handle:
    return Handle(allreduce_(tensor, *arguments, **named))


def _each(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    name: str | None,
    **named: Any,
) -> list[Any]:
    """FUNCTION of each of TENSORS, by a name of its own."""
    names = [f"{name}.{i}" if name else None for i in range(len(tensors))]
    return [
        function(tensor, name=of, **named) for tensor, of in zip(tensors, names)
    ]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _ALL,
) -> list[Tensor]:
    """allreduce() of each of TENSORS."""
    return _each(
        allreduce,
        tensors,
        name,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _ALL,
) -> list[Tensor]:
    """allreduce_() of each of TENSORS."""
    return _each(
        allreduce_,
        tensors,
        name,
        average=average,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def grouped_allreduce_async(
    tensors: Sequence[Tensor], *arguments: Any, **named: Any
) -> Handle:
    """grouped_allreduce_()'s arguments, and a handle of the results."""
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(copies, *arguments, **named)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], *arguments: Any, **named: Any
) -> Handle:
    return Handle(grouped_allreduce_(tensors, *arguments, **named))


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: str, process_set: ProcessSet = _ALL
) -> Handle:
    """Of a sparse tensor: by Average or Sum; calling the handle synchronizes."""
    check_set(process_set)
    if not isinstance(tensor, Tensor) or not tensor.is_sparse:
        raise wrong("sparse_allreduce_async of a tensor that is not sparse")
    if op not in (Average, Sum):
        raise wrong(f"op of sparse_allreduce_async is {op}; allowed: Average, Sum")
    own = tensor.detach().coalesce()
    places = allgather(own.indices().T.contiguous(), f"{name}.indices")
    values = allgather(own.values(), f"{name}.values")
    if op == Average:
        values = values / size()
    return Handle(torch.sparse_coo_tensor(places.T, values, tensor.shape))


# reducescatter


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str = Average,
    process_set: ProcessSet = _ALL,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of what allreduce() returns; first ranks have one more."""
    check_set(process_set)
    _check_tensor(tensor, "reducescatter")
    if not tensor.dim():
        raise wrong("reducescatter of a tensor without dimensions")
    factors = prescale_factor, postscale_factor
    short, context = compression.compress(tensor)

    def scatter(t: Tensor) -> Tensor:
        found = _reduced(t, name, op, *factors)
        return found[calls.rows_of(len(t))].clone()

    def back(gradient: Tensor) -> Tensor:
        if op not in (Average, Sum):
            raise wrong(f"reducescatter by {op} has no gradient")
        scale = prescale_factor * postscale_factor
        scale *= size() if op == Sum else 1
        return _gathered(gradient * scale, name)

    return compression.decompress(_Call.apply(scatter, back, short), context)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = _ALL,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    factors = prescale_factor, postscale_factor
    own = tensor.detach()
    return Handle(
        reducescatter(own, name, Compression.none, op, process_set, *factors)
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str = Average,
    process_set: ProcessSet = _ALL,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """reducescatter() of each of TENSORS."""
    return _each(
        reducescatter,
        tensors,
        name,
        compression=compression,
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = _ALL,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    factors = prescale_factor, postscale_factor
    own = [tensor.detach() for tensor in tensors]
    return Handle(
        grouped_reducescatter(
            own, name, Compression.none, op, process_set, *factors
        )
    )


# allgather, broadcast, alltoall


def _gathered(tensor: Tensor, name: str | None) -> Tensor:
    _check_tensor(tensor, "allgather")
    if not tensor.dim():
        raise wrong("allgather of a tensor without dimensions")
    kind = _type_of(tensor)
    parts = calls.allgather(_bytes(tensor), name, kind)
    return torch.cat([_of_bytes(part, tensor) for part in parts])


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = _ALL
) -> Tensor:
    """The ranks' TENSORs, joined in their first dimension, by rank."""
    check_set(process_set)
    rows: list[int] = []

    def gather(t: Tensor) -> Tensor:
        found = _gathered(t, name)
        if tensor.requires_grad:
            counts = _gathered(torch.tensor([len(t)]), name)
            rows.extend(counts.tolist())
        return found

    def back(gradient: Tensor) -> Tensor:
        mean = _reduced(gradient, name, Average, 1.0, 1.0)
        own = session().run.rank
        return mean.split(rows)[own]

    found: Tensor = _Call.apply(gather, back, tensor)
    return found


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = _ALL
) -> Handle:
    return Handle(allgather(tensor.detach(), name, process_set))


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> list[Tensor]:
    """allgather() of each of TENSORS."""
    return _each(allgather, tensors, name, process_set=process_set)


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Handle:
    own = [tensor.detach() for tensor in tensors]
    return Handle(grouped_allgather(own, name, process_set))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """OBJ of each rank, by rank; it can be pickled."""
    return calls.meet(calls.Call("allgather_object", name, ()), obj)


def _sent(tensor: Tensor, root: int, name: str | None) -> Tensor:
    _check_tensor(tensor, "broadcast")
    kind = _type_of(tensor)
    return _of_bytes(calls.broadcast(_bytes(tensor), root, name, kind), tensor)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Tensor:
    """Rank ROOT_RANK's TENSOR; those of others have its shape and type."""
    check_set(process_set)

    def back(gradient: Tensor) -> Tensor:
        mean = _reduced(gradient, name, Average, 1.0, 1.0)
        own = session().run.rank
        return mean if own == root_rank else torch.zeros_like(mean)

    found: Tensor = _Call.apply(
        lambda t: _sent(t, root_rank, name), back, tensor
    )
    return found


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Tensor:
    """The same, in place."""
    check_set(process_set)
    with torch.no_grad():
        return tensor.copy_(_sent(tensor, root_rank, name))


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Handle:
    return Handle(broadcast(tensor.detach(), root_rank, name, process_set))


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Handle:
    return Handle(broadcast_(tensor, root_rank, name, process_set))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Any:
    """Rank ROOT_RANK's OBJ, which can be pickled."""
    check_set(process_set)
    return calls.broadcast_object(obj, root_rank, name)


def _row_counts(tensor: Tensor, splits: Any) -> list[int]:
    """How many rows of TENSOR each rank is sent."""
    _check_tensor(tensor, "alltoall")
    if not tensor.dim():
        raise wrong("alltoall of a tensor without dimensions")
    if splits is None:
        if len(tensor) % size():
            raise wrong(
                f"alltoall of {len(tensor)} rows without splits, among "
                f"{size()} ranks: their number is no multiple"
            )
        return [len(tensor) // size()] * size()
    counts = [int(count) for count in splits]
    if len(counts) != size() or min(counts) < 0 or sum(counts) != len(tensor):
        raise wrong(
            f"splits of alltoall are {counts}; expected are {size()} numbers "
            f"whose sum is {len(tensor)}"
        )
    return counts


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Any:
    """SPLITS[r] rows of TENSOR to each rank r; those sent here, by rank.

    With SPLITS also how many rows each rank has sent here. None: each rank has
    as many.
    """
    check_set(process_set)
    received: list[int] = []

    def exchange(tensor: Tensor, counts: list[int]) -> Tensor:
        parts = [_bytes(part) for part in tensor.split(counts)]
        found = calls.alltoall(parts, name, _type_of(tensor))
        received[:] = [len(part) for part in found]
        return torch.cat([_of_bytes(part, tensor) for part in found])

    def back(gradient: Tensor) -> Tensor:
        return exchange(gradient, list(received))

    counts = _row_counts(tensor, splits)
    found = _Call.apply(
        functools.partial(exchange, counts=counts), back, tensor
    )
    if splits is None:
        return found
    as_is = splits if isinstance(splits, Tensor) else torch.IntTensor()
    return found, torch.tensor(received).to(as_is)


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _ALL,
) -> Handle:
    """Of the tensor, and of how many rows each rank has sent."""
    counts = _row_counts(tensor, splits) if splits is None else splits
    return Handle(alltoall(tensor.detach(), counts, name, process_set))


def barrier(process_set: ProcessSet = _ALL) -> None:
    """Waits until every rank calls it."""
    check_set(process_set)
    calls.barrier()
