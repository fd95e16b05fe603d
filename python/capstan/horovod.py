# SPDX-License-Identifier: Apache-2.0
"""The names of horovod.torch, for scripts that were written for it.

import capstan.horovod as hvd

A run has one optimizer, and rank 0 is the root of every broadcast. Steps
between those of training carry the small values of allreduce() and
broadcast_object(); all ranks call these in the same order.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import EMPTY, FULL, ConfigError
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
    "allreduce",
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
_SCRATCH = 1 << 14  # float32 values that a step between carries


def rank() -> int:
    return current().rank


def size() -> int:
    return current().size


def local_rank() -> int:
    return current().local_rank


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
        """PASSES backward passes, whose gradients are added, make a step."""
        self._named = named
        self._passes = self._left = passes
        self._in_pass = False

    def capstan_join(self, more: dict[str, Tensor]) -> None:
        """The run's weights are in the parameters, and in the tensors MORE."""
        if "_exchange" not in self.__dict__:
            model: Any = _Parameters(self._named, more)
            self.capstan_open(torch_run(), model, None, False)

    def _start(self) -> None:
        super()._start()
        values = torch.zeros(_SCRATCH)
        self._scratch = Scratch(values, "averaged")
        exchange = self._exchange
        self._scratch.number = exchange._declare(
            "capstan.between", values, "averaged", 0
        )
        exchange.buffers.append(self._scratch)

    def _hook(self, t: Any) -> Callable[[Tensor], None]:
        send = super()._hook(t)

        def push(parameter: Tensor) -> None:
            if not self._in_pass:
                self._in_pass = True
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._end_pass)
            if self._left == 1:
                send(parameter)

        return push

    def _end_pass(self) -> None:
        self._in_pass = False
        self._left = self._left - 1 or self._passes

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.capstan_join({})
        super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.capstan_join({})
        self._left = self._passes
        return super().step(closure)

    def synchronize(self) -> None:
        """Nothing is left to do where backward() has averaged gradients."""
        self.capstan_join({})
        super().synchronize()

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def between(self, values: Tensor | None) -> Tensor:
        """A step in which only VALUES, float32 of shape (n,), are averaged.

        None: this rank brings none. The mean has the shape (_SCRATCH,).
        """
        run = self._run
        for t in self._exchange.trained:
            run.push(t.number, contribution=EMPTY)
        for b in self._exchange.buffers:
            if b is self._scratch and values is not None:
                sent = torch.zeros(_SCRATCH)
                sent[: len(values)] = values
                run._push(b.number, sent.data_ptr(), sent.nbytes, FULL, sent)
            else:
                run.push(b.number, contribution=EMPTY)
        self._agreed.skip()
        run.step()
        run.wait()
        return self._scratch.tensor.clone()


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
) -> torch.optim.Optimizer:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients.

    When the last backward pass of a step returns, each .grad is the mean. All
    ranks begin with rank 0's weights of the time of broadcast_parameters().
    """
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

    It is computed in float32. OP is Average or Sum; AVERAGE=False is Sum.
    """
    values = tensor.detach().to("cpu", torch.float32).flatten()
    if values.nbytes > _MAX_BYTES:
        raise wrong(
            f"allreduce of {values.nbytes} bytes; allowed is {_MAX_BYTES}"
        )
    if op not in (None, Average, Sum):
        raise wrong(f"op is {op}; allowed: Average, Sum")
    optimizer = _session.joined("allreduce")
    parts = [optimizer.between(p)[: len(p)] for p in values.split(_SCRATCH)]
    found = torch.cat(parts)
    if op == Sum or average is False:
        found *= size()
    return found.view(tensor.shape).to(tensor)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None
) -> Any:
    """Rank 0's OBJ, which can be pickled."""
    _check_root(root_rank)
    optimizer = _session.joined("broadcast_object")
    data = pickle.dumps(obj) if rank() == 0 else b""
    sent = len(data).to_bytes(8, "little") + data
    found, end = b"", 8
    while len(found) < end:  # a byte is a float32, which any sum keeps
        part = sent[len(found) : len(found) + _SCRATCH]
        values = None if rank() else torch.tensor(list(part)).float()
        mean = optimizer.between(values)
        found += mean.to(torch.uint8).numpy().tobytes()
        end = 8 + int.from_bytes(found[:8], "little")
    return pickle.loads(found[8:end])


def _check_root(root_rank: int) -> None:
    if root_rank:
        raise wrong(f"root_rank is {root_rank}; allowed is 0")
