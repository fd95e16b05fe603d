# SPDX-License-Identifier: Apache-2.0
"""The run's trainers as a group of torch.distributed, backend "capstan"."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future

from .run import Run, current
from .torch_copies import bytes_of, of_bytes
from .torch_exchange import wrong

_SHORT = (torch.float16, torch.bfloat16)  # computed as float32
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
}


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def _fill(tensor: Tensor, data: np.ndarray) -> None:
    tensor.copy_(of_bytes(data, tuple(tensor.shape), tensor.dtype))


def _refuse(name: str) -> NoReturn:
    raise wrong(
        f"{name} in backend capstan; it has all_reduce, all_gather, "
        "broadcast, barrier, reduce, reduce_scatter, gather, scatter and "
        "all_to_all"
    )


class Group(dist.ProcessGroup):
    """Each call is complete when it returns, also with async_op=True."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.rank, run.size)
        self._run = run

    def getBackendName(self) -> str:
        return "capstan"

    def size(self) -> int:
        return self._run.size

    def rank(self) -> int:
        return self._run.rank

    def _reduced(self, tensor: Tensor, op: Any) -> Tensor:
        # Only a ReduceOp on the left equals its kind, and it has no hash.
        name = next((n for kind, n in _OPS.items() if op == kind), None)
        if name is None or tensor.is_complex():
            raise wrong(
                f"a reduction of {tensor.dtype} by {op}; allowed are "
                f"{', '.join(_OPS.values())} of real numbers"
            )
        values = tensor.detach().cpu()
        if values.dtype in _SHORT:
            values = values.float()
        found = self._run.all_reduce(values.contiguous().numpy(), name)
        return torch.from_numpy(found).to(tensor)

    def _of_all(self, tensor: Tensor) -> np.ndarray:
        return self._run.all_gather(bytes_of(tensor))

    # The names that torch.distributed calls

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            tensor.copy_(self._reduced(tensor, op))
        return _done(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        for tensor in tensors:
            found = self._reduced(tensor, opts.reduceOp)
            if self._run.rank == opts.rootRank:
                tensor.copy_(found)
        return _done(tensors)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        for tensor in tensors:
            data = self._run.broadcast(bytes_of(tensor), opts.rootRank)
            _fill(tensor, data)
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        self._run.barrier()
        return _done(None)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for parts, tensor in zip(outputs, inputs):
            for part, data in zip(parts, self._of_all(tensor)):
                _fill(part, data)
        return _done(outputs)

    def all_gather_single(
        self, output: Tensor, tensor: Tensor, opts: Any = None
    ) -> Any:
        _fill(output, self._of_all(tensor).reshape(-1))
        return _done(output)

    _allgather_base = all_gather_single

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for i, tensor in enumerate(inputs):
            found = self._of_all(tensor)
            if self._run.rank == opts.rootRank:
                for part, data in zip(outputs[i], found):
                    _fill(part, data)
        return _done(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for i, tensor in enumerate(outputs):
            all_parts = np.zeros(
                (self._run.size, tensor.nbytes), np.uint8
            )
            if self._run.rank == opts.rootRank:
                all_parts = np.stack([bytes_of(part) for part in inputs[i]])
            found = self._run.broadcast(all_parts, opts.rootRank)
            _fill(tensor, found[self._run.rank])
        return _done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for output, parts in zip(outputs, inputs):
            found = [self._reduced(part, opts.reduceOp) for part in parts]
            output.copy_(found[self._run.rank])
        return _done(outputs)

    def reduce_scatter_single(
        self, output: Tensor, tensor: Tensor, opts: Any
    ) -> Any:
        found = self._reduced(tensor, opts.reduceOp).reshape(-1)
        part = found.chunk(self._run.size)[self._run.rank]
        output.copy_(part.reshape(output.shape))
        return _done(output)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        own = [bytes_of(part) for part in inputs]
        found = self._run.all_gather_object(own)
        for output, parts in zip(outputs, found):
            _fill(output, parts[self._run.rank])
        return _done(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        size = self._run.size
        to = list(output_sizes) or [len(output) // size] * size
        of = list(input_sizes) or [len(tensor) // size] * size
        return self.alltoall(output.split(to), tensor.split(of))

    alltoall_base = all_to_all_single

    def send(self, *arguments: Any) -> NoReturn:
        _refuse("send")

    def recv(self, *arguments: Any) -> NoReturn:
        _refuse("recv")

    recv_anysource = recv

    def all_gather_single_coalesced(self, *arguments: Any) -> NoReturn:
        _refuse("a coalesced all_gather")

    def reduce_scatter_single_coalesced(self, *arguments: Any) -> NoReturn:
        _refuse("a coalesced reduce_scatter")


def _open(store: Any, rank: int, size: int, timeout: timedelta) -> Group:
    run = current()
    if size != run.size:
        raise wrong(
            f"a process group of {size} ranks in a run of {run.size}: a "
            "group of backend capstan has all of them"
        )
    return Group(run)


def register() -> None:
    """Makes the backend known to torch.distributed."""
    if "capstan" not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            "capstan", _open, devices=["cpu", "cuda"]
        )


def make(run: Run) -> None:
    """The default group is RUN's trainers."""
    if dist.is_initialized():
        raise wrong(
            "a process group is there already: leave the script's "
            "init_process_group out"
        )
    register()
    store = dist.HashStore()
    dist.init_process_group(
        "capstan", store=store, rank=run.rank, world_size=run.size
    )
