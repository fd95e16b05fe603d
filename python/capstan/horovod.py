# SPDX-License-Identifier: Apache-2.0
"""The names of horovod.torch, for scripts that were written for it.

import capstan.horovod as hvd

A run has one optimizer, and rank 0 is the root of every broadcast. Steps
between those of training carry the small values of allreduce() and
broadcast_object(); all ranks call these in the same order. barrier(),
allgather(), allgather_object() and broadcast() are collectives of the run, of
any size and no steps of it, also before DistributedOptimizer.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import EMPTY, FULL, ConfigError, PeerLost
from .run import current
from .torch import init, torch_run
from .torch_exchange import Buffer, wrong
from .torch_rules import Worker, mixed

__all__ = [
    "Average",
    "Compression",
    "ConfigError",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "local_rank",
    "rank",
    "shutdown",
    "size",
]

Average, Sum = "Average", "Sum"
_MAX_BYTES = 1 << 20  # of an allreduce
_SCRATCH = 1 << 14  # float32 values of a step between: its number, others
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SHORT = (torch.float32, torch.float16, torch.bfloat16)  # float32 has them all


def rank() -> int:
    return current().rank


def size() -> int:
    return current().size


def local_rank() -> int:
    return current().local_rank


def barrier() -> None:
    """Waits until every rank calls it."""
    current().barrier()


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """The ranks' TENSORs, joined in their first dimension, by rank."""
    if not tensor.dim():
        raise wrong("allgather of a tensor without dimensions")
    parts = allgather_object(tensor.detach().cpu())
    ends = {(part.shape[1:], part.dtype) for part in parts}
    if len(ends) > 1:
        raise wrong(
            "allgather of tensors that differ in more than their first "
            f"dimension: {', '.join(str((*p.shape, p.dtype)) for p in parts)}"
        )
    return torch.cat(parts).to(tensor.device)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """OBJ of each rank, by rank; it can be pickled."""
    return current().all_gather_object(obj)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None
) -> Tensor:
    """Rank ROOT_RANK's TENSOR; those of others have its shape and type."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = current().broadcast(flat.view(torch.uint8).numpy(), root_rank)
    found = torch.from_numpy(data).view(tensor.dtype)
    return found.reshape(tensor.shape).to(tensor.device)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None
) -> Tensor:
    """The same, in place."""
    with torch.no_grad():
        return tensor.copy_(broadcast(tensor, root_rank))


def shutdown() -> None:
    """Ends this process's part with success."""
    current().close()


class Compression:
    """What messages carry is said at the start: init(wire="bf16")."""

    none = "none"
    fp16 = "fp16"


class Scratch(Buffer):
    """What the steps between those of training carry."""

    def has_news(self, rank: int) -> bool:
        return False


class _Parameters:
    """What Exchange reads of a module."""

    def __init__(
        self, named: list[tuple[str, nn.Parameter]], more: dict[str, Tensor]
    ) -> None:
        known = {p.data_ptr() for _, p in named}
        self._named = named
        self._more = {
            name: tensor
            for name, tensor in more.items()
            if tensor.data_ptr() not in known
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._named)

    def parameters(self) -> list[nn.Parameter]:
        return [p for _, p in self._named]

    def named_buffers(self) -> Iterable[tuple[str, Tensor]]:
        return self._more.items()

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]:
        return ()


class Deferred(Worker):
    """A Worker that joins the run when rank 0 has its first weights."""

    def capstan_prepare(
        self, named: list[tuple[str, nn.Parameter]], passes: int
    ) -> None:
        self._named = named
        self.capstan_count(passes)

    def capstan_join(self, more: dict[str, Tensor]) -> None:
        """The run's weights are in the parameters, and in the tensors MORE."""
        if "_exchange" not in self.__dict__:
            model: Any = _Parameters(self._named, more)
            self.capstan_open(torch_run(), model, None, False)

    def _start(self) -> None:
        super()._start()
        values = torch.zeros(_SCRATCH)
        self._scratch = Scratch("capstan.between", values, "averaged")
        exchange = self._exchange
        self._scratch.number = exchange._declare(
            self._scratch.name, values, "averaged", 0
        )
        exchange.buffers.append(self._scratch)
        self._between = 0  # the steps between so far

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.capstan_join({})
        super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.capstan_join({})
        return super().step(closure)

    def synchronize(self) -> None:
        """Nothing is left to do where backward() has averaged gradients."""
        self.capstan_join({})
        super().synchronize()

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def between(self, values: Tensor | None) -> Tensor | None:
        """A step in which only VALUES, float32 of shape (n,), are averaged.

        N is below _SCRATCH. VALUES None: this rank brings none. The mean has
        the shape (_SCRATCH - 1,); None: no rank has brought any.
        """
        run = self._run
        self._between = (self._between + 1) % 256
        self._exchange.settle()
        for t in self._exchange.trained:
            run.push(t.number, contribution=EMPTY)
        for b in self._exchange.buffers:
            if b is self._scratch and values is not None:
                sent = torch.zeros(_SCRATCH)
                sent[0] = self._between
                sent[1 : len(values) + 1] = values
                run._push(b.number, sent.data_ptr(), sent.nbytes, FULL, sent)
            else:
                run.push(b.number, contribution=EMPTY)
        self._agreed.skip()
        run.step()
        run.wait()
        found = self._scratch.tensor
        brought = round(found[0].item()) == self._between
        return found[1:].clone() if brought else None

    def bytes_of(self, sender: int, data: bytes) -> bytes | None:
        """Rank SENDER's DATA, in steps between; None: it has left the run."""
        sent = len(data).to_bytes(8, "little") + data + bytes(len(data) % 2)
        found, end, most = b"", 8, 2 * (_SCRATCH - 1)
        while len(found) < end:  # a float32 has any two bytes' value
            part = np.frombuffer(sent[len(found) : len(found) + most], "<u2")
            mine = self._run.rank == sender
            values = torch.tensor(part.astype(np.float32)) if mine else None
            brought = self.between(values)
            if brought is None:
                return None
            found += brought.numpy().astype("<u2").tobytes()
            end = 8 + int.from_bytes(found[:8], "little")
        return found[8:end]


class _Session:
    """What the script has said so far."""

    def __init__(self) -> None:
        self.optimizer: Deferred | None = None
        self.tensors: dict[str, Tensor] = {}  # to broadcast
        self.sends_state = False  # the optimizer's

    def joined(self, name: str) -> Deferred:
        if self.optimizer is None or "_run" not in self.optimizer.__dict__:
            raise wrong(
                f"{name} comes after DistributedOptimizer and "
                "broadcast_parameters"
            )
        return self.optimizer


_session = _Session()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: str = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
) -> torch.optim.Optimizer:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients.

    When the last backward pass of a step returns, each .grad is the mean. All
    ranks begin with rank 0's weights of the time of broadcast_parameters().
    GRADIENT_PREDIVIDE_FACTOR says how much of the division by size() precedes
    the sum: the mean is the same for all.
    """
    if not 0 < gradient_predivide_factor < float("inf"):
        raise wrong(
            f"gradient_predivide_factor is {gradient_predivide_factor}; "
            "allowed is a number above 0"
        )
    if compression != Compression.none:
        raise wrong('compression is fp16; write hvd.init(wire="bf16")')
    if op != Average:
        raise wrong(f"op is {op}; gradients are averaged")
    if _session.optimizer is not None:
        raise wrong("a run has one DistributedOptimizer")
    named = list(named_parameters or ()) or [
        (f"parameter.{i}.{j}", p)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    ]
    wrapper = mixed(Deferred, optimizer)
    wrapper.capstan_prepare(named, backward_passes_per_step)
    _session.optimizer = wrapper
    if _session.tensors:
        wrapper.capstan_join(_session.tensors)
    if _session.sends_state:
        broadcast_optimizer_state(wrapper)
    return wrapper


def broadcast_parameters(
    params: dict[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0
) -> None:
    """Rank 0's tensors become those of all ranks.

    PARAMS is a state_dict() or named_parameters(). Before
    DistributedOptimizer() it happens there.
    """
    _check_root(root_rank)
    found = dict(params)
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)}
    _session.tensors.update(tensors)
    if _session.optimizer is not None:
        _session.optimizer.capstan_join(_session.tensors)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0
) -> None:
    """Rank 0's state and groups become those of all ranks.

    Before DistributedOptimizer() it happens there.
    """
    _check_root(root_rank)
    if _session.optimizer is None:
        _session.sends_state = True
        return
    _session.optimizer.capstan_join(_session.tensors)
    state = broadcast_object(_session.optimizer.state_dict())
    if rank():
        _session.optimizer.load_state_dict(state)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
) -> Tensor:
    """The mean of TENSOR, of at most 1 MiB, over the ranks; or their sum.

    OP is Average or Sum; AVERAGE=False is Sum. A sum of integers is exact, one
    of floating point is computed in TENSOR's type, by rank; a mean of integers
    is rounded down.
    """
    if op not in (None, Average, Sum):
        raise wrong(f"op is {op}; allowed: Average, Sum")
    if tensor.dtype not in (*_SHORT, torch.float64, *_INTEGERS):
        raise wrong(
            f"allreduce of {tensor.dtype}; allowed: float16, bfloat16, "
            "float32, float64, uint8, int8, int16, int32, int64"
        )
    if tensor.nbytes > _MAX_BYTES:
        raise wrong(
            f"allreduce of {tensor.nbytes} bytes; allowed is {_MAX_BYTES}"
        )
    optimizer = _session.joined("allreduce")
    values = tensor.detach().cpu().contiguous().flatten()
    adds = op == Sum or average is False
    if values.dtype in _SHORT and not adds:
        found = _mean(optimizer, values)
    else:
        found = _reduced(_of_all_ranks(optimizer, values), adds)
    return found.view(tensor.shape).to(tensor)


def _mean(optimizer: Deferred, values: Tensor) -> Tensor:
    """The mean over the ranks, computed in float32."""
    means = []
    for part in values.float().split(_SCRATCH - 1):
        mean = optimizer.between(part)
        assert mean is not None  # this rank has brought values
        means.append(mean[: len(part)])
    return torch.cat(means)


def _of_all_ranks(optimizer: Deferred, values: Tensor) -> list[Tensor]:
    """VALUES of each rank that takes part, by rank."""
    own = values.view(torch.uint8).numpy().tobytes()
    found = [optimizer.bytes_of(sender, own) for sender in range(size())]
    parts = [data for data in found if data is not None]
    if any(len(data) != len(own) for data in parts):
        raise wrong(
            f"allreduce of {len(own)} bytes, and of other ranks "
            f"{', '.join(str(len(data)) for data in parts)}"
        )
    if not own:
        return [values]
    return [torch.frombuffer(bytearray(d), dtype=values.dtype) for d in parts]


def _reduced(parts: list[Tensor], adds: bool) -> Tensor:
    """The sum of PARTS in their own type, or its mean."""
    dtype = parts[0].dtype
    if dtype not in _INTEGERS:
        total = torch.stack(parts).sum(0, dtype=dtype)
        return total if adds else total / len(parts)
    exact = sum(part.numpy().astype(object) for part in parts)
    if not adds:
        exact //= len(parts)
    limits = torch.iinfo(dtype)
    if any(not limits.min <= value <= limits.max for value in exact):
        raise wrong(f"the sum of an allreduce does not fit into {dtype}")
    return torch.from_numpy(exact.astype(parts[0].numpy().dtype))


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None
) -> Any:
    """Rank 0's OBJ, which can be pickled."""
    _check_root(root_rank)
    optimizer = _session.joined("broadcast_object")
    found = optimizer.bytes_of(0, pickle.dumps(obj) if rank() == 0 else b"")
    if found is None:
        text = "broadcast_object: rank 0 has left the run"
        raise PeerLost(text, "PEER_LOST")
    return pickle.loads(found)


def _check_root(root_rank: int) -> None:
    if root_rank:
        raise wrong(f"root_rank is {root_rank}; allowed is 0")
