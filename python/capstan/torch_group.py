# SPDX-License-Identifier: Apache-2.0
"""The run's trainers as a group of torch.distributed, backend "capstan"."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
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


class _NoStore(dist.Store):
    """Ranks meet by way of the chief, and by no store of torch's."""

    def _refuse(self, *arguments: Any) -> NoReturn:
        _refuse("a store")

    set = get = add = wait = check = compare_set = delete_key = _refuse
    num_keys = append = multi_get = multi_set = _refuse


class Group(dist.ProcessGroup):
    """Each call is complete when it returns, also with async_op=True."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.rank, run.size)
        self._run = run

    def getBackendName(self) -> str:
        return "capstan"

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def size(self) -> int:
        return self._run.size

    def rank(self) -> int:
        return self._run.rank

    def _reduced(self, tensor: Tensor, op: Any) -> Tensor:
        """In host memory, of the type that it was computed in."""
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
        return torch.from_numpy(found)

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

    def gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        found = self._of_all(tensor)
        if self._run.rank == opts.rootRank:
            _fill(output, found.reshape(-1))
        return _done(output)

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


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Group, *arguments: Any, **named: Any) -> NoReturn:
        _refuse(name)

    return refuse


# What else torch.distributed calls, of all its releases.
for _method, _name in {
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "a coalesced all_gather",
    "all_gather_single_coalesced": "a coalesced all_gather",
    "reduce_scatter_tensor_coalesced": "a coalesced reduce_scatter",
    "reduce_scatter_single_coalesced": "a coalesced reduce_scatter",
    "merge_remote_group": "merge_remote_group",
    "new_window": "a window",
    "reconfigure": "a group that changes its ranks",
    "set_timeout": "set_timeout, as timeouts.step is the deadline,",
}.items():
    setattr(Group, _method, _refused(_name))


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


# The default group


def is_there() -> bool:
    """Is the default group one of a run's trainers?"""
    return dist.is_initialized() and isinstance(dist.group.WORLD, Group)


def is_there_of(run: Run) -> bool:
    """Is the default group RUN's trainers?"""
    return is_there() and dist.group.WORLD._run is run


def make(run: Run) -> bool:
    """The default group is RUN's trainers, unless another is there already.

    A group connects at its first collective.
    """
    if is_there_of(run):
        return True
    if is_there():
        dist.destroy_process_group()  # of a run that is closed
    if dist.is_initialized():
        return False
    _served[:] = [run]
    register()
    _take_scripts_calls()
    hook = sys.excepthook
    barrier = os.environ.pop(_INIT_BARRIER, None)  # of the store
    _plain["init_process_group"](
        "capstan", store=_store, rank=run.rank, world_size=run.size
    )
    sys.excepthook = hook  # torch's loses the text of one that exits
    if barrier is not None:
        os.environ[_INIT_BARRIER] = barrier
    return True


_INIT_BARRIER = "TORCH_DIST_INIT_BARRIER"
_store = _NoStore()  # kept alive: torch has it by reference
_plain: dict[str, Callable[..., Any]] = {}  # torch's, by name
_served: list[Run] = []  # the last one


def _init_process_group(*arguments: Any, **named: Any) -> None:
    """The script's: its ranks are the run's."""
    plain = _plain["init_process_group"]
    run = _served[0]
    if run.is_closed:
        if is_there():
            dist.destroy_process_group()
        return plain(*arguments, **named)
    given = inspect.signature(plain).bind(*arguments, **named).arguments
    for name, own in ("world_size", run.size), ("rank", run.rank):
        if given.get(name, -1) not in (-1, None, own):
            raise wrong(
                f"init_process_group({name}={given[name]}) in a run of "
                f"{run.size} trainers, of which this is rank {run.rank}: "
                "take run.rank and run.size, or leave both out"
            )
    if not make(run):
        return plain(*arguments, **named)  # torch's own error
    if run.logs and run.rank == 0:
        print(
            f"capstan: init_process_group({given.get('backend') or ''}): the "
            "default group is the run's trainers, with the deadline "
            "timeouts.step",
            file=sys.stderr,
        )


def _new_group(*arguments: Any, **named: Any) -> Any:
    """The script's: of all ranks, by the run's collectives."""
    plain = _plain["new_group"]
    bound = inspect.signature(plain).bind(*arguments, **named)
    if is_there():
        ranks = bound.arguments.get("ranks")
        if ranks is not None and sorted(ranks) != list(
            range(dist.get_world_size())
        ):
            raise wrong(
                f"new_group({list(ranks)}) in backend capstan: a group has "
                "all ranks of the run"
            )
        bound.arguments["backend"] = "capstan"
    return plain(*bound.args, **bound.kwargs)


# Calls that ask for more than the group before they come to it, and those of
# several tensors of a rank.
_BEFORE_THE_GROUP = (
    "all_gather_multigpu",
    "all_reduce_multigpu",
    "batch_isend_irecv",
    "broadcast_multigpu",
    "monitored_barrier",
    "reduce_multigpu",
    "reduce_scatter_multigpu",
    "shrink_group",
    "split_group",
)


def _refuses(name: str) -> Callable[..., Any]:

    def call(*arguments: Any, **named: Any) -> Any:
        if is_there():
            _refuse(name)
        return _plain[name](*arguments, **named)

    return call


def _take_scripts_calls() -> None:
    """Scripts and frameworks call these in place of torch's."""
    if _plain:
        return
    own = {"init_process_group": _init_process_group, "new_group": _new_group}
    for name in _BEFORE_THE_GROUP:
        own[name] = _refuses(name)
    for name, function in own.items():
        plain = getattr(dist.distributed_c10d, name, None)
        if plain is None:  # in a release of torch
            continue
        _plain[name] = plain
        function = functools.wraps(plain)(function)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is plain:
                setattr(module, name, function)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Within it a DataLoader of an IterDataPipe calls no collective."""
    plain = dist.is_initialized
    dist.is_initialized = lambda: False
    try:
        yield
    finally:
        dist.is_initialized = plain
