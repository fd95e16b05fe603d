# SPDX-License-Identifier: Apache-2.0
"""horovod.torch's optimizer, and what is broadcast for it."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import ZERO
from ..torch import torch_run
from ..torch_copies import bytes_of, of_bytes
from ..torch_rules import Adder, Own, Worker, adder_lacks, mixed
from . import calls
from .calls import Call, meet, wrong
from .names import (
    Average,
    ProcessSet,
    Sum,
    check_op,
    check_set,
    global_process_set,
    session,
)
from .torch_calls import Compression, Compressor


class _Parameters:
    """What Exchange reads of a module."""

    def __init__(
        self, named: list[tuple[str, nn.Parameter]], more: dict[str, Tensor]
    ) -> None:
        known = {p.data_ptr() for _, p in named}
        names = {name for name, _ in named}
        self._named = named
        self._more = {
            name: tensor
            for name, tensor in more.items()
            if name not in names and tensor.data_ptr() not in known
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._named)

    def parameters(self) -> list[nn.Parameter]:
        return [p for _, p in self._named]

    def named_buffers(self) -> Iterable[tuple[str, Tensor]]:
        return self._more.items()

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]:
        return ()

    def modules(self) -> list[nn.Module]:
        """Those that own the parameters: the script gives none of them."""
        own = {id(p) for _, p in self._named}
        return [
            item
            for item in gc.get_objects()
            if issubclass(type(item), nn.Module)
            and any(
                id(p) in own for p in vars(item).get("_parameters", {}).values()
            )
        ]


class Deferred(Own):
    """Joins the run when the script has its first weights."""

    def capstan_prepare(
        self, named: list[tuple[str, nn.Parameter]], passes: int
    ) -> None:
        self._named = named
        self.capstan_count(passes)

    @property
    def capstan_started(self) -> bool:
        return "_exchange" in self.__dict__

    def capstan_start(self) -> None:
        """The run's weights are in the parameters, and in what was broadcast."""
        if not self.capstan_started:
            model: Any = _Parameters(self._named, session().tensors)
            self.capstan_open(torch_run(), model, None, False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.capstan_start()
        super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.capstan_start()
        return super().step(closure)

    def synchronize(self) -> None:
        """Nothing is left to do where backward() has averaged gradients."""
        self.capstan_start()
        super().synchronize()

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.capstan_count(passes)

    def capstan_replace(self) -> None:
        """The script has written other weights into the parameters."""

    def capstan_leave(self) -> int:
        """For join()."""
        raise NotImplementedError


class Averaging(Deferred, Worker):
    """.grad is the mean over the ranks."""

    def _bring(self, has_batch: bool) -> None:
        if has_batch:
            return super()._bring(has_batch)
        self._exchange.push_none(ZERO)  # join() counts in the mean
        self._agreed.push(has_batch)

    def _average(self, has_batch: bool = True) -> None:
        super()._average(has_batch)
        session().joined = has_batch and self._agreed.mean[-1] < 1

    def capstan_leave(self) -> int:
        """Takes part in other ranks' steps until none has gradients left."""
        self.capstan_start()
        own = self._run._position().step
        while self.capstan_follow():
            pass
        steps = self._run.all_gather(np.array(own))
        return int(len(steps) - 1 - steps[::-1].argmax())


class Adding(Deferred, Adder):
    """With staleness: step() sends what this rank's gradients change."""

    def capstan_replace(self) -> None:
        if self.capstan_started:
            self.capstan_loads()

    def capstan_leave(self) -> int:
        raise wrong(
            "join() with strategy.staleness: leave it out, as no rank waits "
            "for another's steps: where its data is over, its script ends"
        )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """OPTIMIZER, which from now on applies the mean of the ranks' gradients.

    When the last backward pass of a step returns, each .grad is the mean. The
    run starts with the first zero_grad() or step(), or with the
    broadcast_parameters() before or after. With strategy.staleness .grad is
    this rank's own, and step() sends what it changes, which is added to what
    other ranks send, not averaged. GRADIENT_PREDIVIDE_FACTOR says how
    much of the division by size() precedes the sum: the mean is the same for
    all. NUM_GROUPS and GROUPS say which gradients travel together, and change
    nothing here; a sparse gradient is refused, with SPARSE_AS_DENSE too.
    """
    check_set(process_set)
    if not 0 < gradient_predivide_factor < math.inf:
        raise wrong(
            f"gradient_predivide_factor is {gradient_predivide_factor}; "
            "allowed is a number above 0"
        )
    if compression is not Compression.none:
        raise wrong(
            "compression of DistributedOptimizer is fp16: leave it out, and "
            'with ps write hvd.init(wire="bf16")'
        )
    stale = session().run.is_stale
    if op == Sum:
        way = (
            "with strategy.staleness each rank's changes are added anyway"
            if stale
            else "gradients are averaged, and multiply the loss by "
            "hvd.size(), which is the same"
        )
        raise wrong(
            f"op of DistributedOptimizer is Sum: leave it out, as {way}"
        )
    check_op(op, (Average,), "DistributedOptimizer")
    if session().optimizer is not None:
        raise wrong("a run has one DistributedOptimizer")
    if stale and adder_lacks(type(optimizer)):
        raise wrong(adder_lacks(type(optimizer)))
    wrapper = mixed(Adding if stale else Averaging, optimizer)
    named = _named(optimizer, named_parameters)
    wrapper.capstan_prepare(named, backward_passes_per_step)
    session().optimizer = wrapper
    if session().tensors:
        wrapper.capstan_start()
    return wrapper


def _named(
    optimizer: torch.optim.Optimizer, named: Iterable[Any] | None
) -> list[tuple[str, nn.Parameter]]:
    """All parameters of OPTIMIZER, each with a name of its own."""
    found = list(named or ()) or [
        (f"parameter.{i}.{j}", p)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    ]
    if not all(isinstance(item, tuple) and len(item) == 2 for item in found):
        raise wrong(
            "named_parameters has what is no (name, parameter); expected is "
            "model.named_parameters()"
        )
    names = [name for name, _ in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise wrong(f"named_parameters has names twice: {', '.join(twice)}")
    return found


def broadcast_parameters(
    params: dict[str, Any] | Iterable[Any], root_rank: int = 0
) -> None:
    """Rank ROOT_RANK's tensors become those of all ranks.

    PARAMS is a state_dict(), named_parameters() or parameters(). It starts the
    run, after DistributedOptimizer() or there, with these tensors: those that
    have no parameter's name, such as the statistics of BatchNorm, are averaged
    in each step, and are in the run's checkpoints. With strategy.staleness
    parameters are not broadcast again after the start.
    """
    tensors = _tensors_of(params)
    calls.check_root(root_rank)
    shapes = [(k, str(t.dtype), tuple(t.shape)) for k, t in tensors.items()]
    call = Call("broadcast_parameters", f"from rank {root_rank}", tuple(shapes))
    with session().run._preparing(), torch.no_grad():
        meet(call)
        for tensor in tensors.values():
            _copy_from(tensor, root_rank)
    for name, tensor in tensors.items():  # of one name, those of the first
        session().tensors.setdefault(name, tensor)
    if session().optimizer is not None:
        session().optimizer.capstan_replace()
        session().optimizer.capstan_start()


def _copy_from(tensor: Tensor, root: int) -> None:
    data = session().run.broadcast(bytes_of(tensor), root)
    tensor.copy_(of_bytes(data, tuple(tensor.shape), tensor.dtype))


def _tensors_of(params: Any) -> dict[str, Tensor]:
    items = params.items() if isinstance(params, dict) else params
    found = {}
    for number, item in enumerate(items):
        name, value = item if isinstance(item, tuple) else (number, item)
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise wrong(
                f"broadcast_parameters of {name!r}, which is of type "
                f"{type(value).__name__}: broadcast_object takes others than "
                "tensors"
            )
        found[str(name)] = value
    return found


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: nn.Module | None = None,
) -> None:
    """Rank ROOT_RANK's state and groups become those of all ranks."""
    calls.check_root(root_rank)
    state = calls.broadcast_object(
        _on_host(optimizer.state_dict()), root_rank, "optimizer state"
    )
    if session().run.rank != root_rank:
        optimizer.load_state_dict(state)


def _on_host(value: Any) -> Any:
    """VALUE with its tensors in host memory, where any rank can read them."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_on_host(item) for item in value])
    return value


def join(device: int = -1) -> int:
    """Waits until all ranks have called it, as their data is over.

    Returns the rank that called it last. Until then this rank's gradients are
    zero, and it steps with the others, so that all have the same weights
    afterwards; without a DistributedOptimizer zeros are its part in
    allreduce(). It is one step of the run more.
    """
    optimizer = session().optimizer
    return calls.join() if optimizer is None else optimizer.capstan_leave()
