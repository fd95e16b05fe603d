# SPDX-License-Identifier: Apache-2.0
"""The exchange of a torch module's parameters and buffers with a run.

A gradient is pushed from autograd's own tensor as soon as it is there, and the
new weights arrive in the parameter's own memory. A tensor on a GPU has a copy
in pinned host memory instead, in each direction.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from . import _library
from .errors import ConfigError
from .run import EMPTY, FULL, VOID, ZERO, Contribution, Run

_BUFFERS = True  # the library exchanges averaged and assigned tensors


def wrong(text: str) -> ConfigError:
    """A wrong call or model."""
    return ConfigError(text, "MODEL_INVALID")


def check_memory(name: str, tensor: Tensor) -> None:
    """Raises ConfigError unless TENSOR is float32, dense and row-major."""
    if tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        raise wrong(
            f'tensor "{name}" is {tensor.layout} of {tensor.dtype}; expected '
            "is a dense tensor of torch.float32"
        )
    if not tensor.is_contiguous():
        raise wrong(f'tensor "{name}" is not contiguous')


class Trained:
    """A parameter, and its gradient of the present step."""

    def __init__(self, name: str, parameter: nn.Parameter):
        check_memory(name, parameter)
        self.name = name
        self.parameter = parameter
        self.number = -1
        self.address = parameter.data_ptr()
        self.weights = host_copy(parameter)  # where the run writes
        self.pushed = False
        self.gradient: Tensor | None = None
        self.version = 0  # of the gradient when it was pushed

    def check_unchanged(self) -> None:
        """Raises ConfigError if the script touched what the run reads."""
        if self.parameter.data_ptr() != self.address:
            raise wrong(
                f'parameter "{self.name}" has other memory than at the start: '
                "move or replace parameters before DistributedOptimizer"
            )
        if self.gradient is not None and self.gradient._version != self.version:
            raise wrong(
                f'the gradient of "{self.name}" was changed after backward() '
                "had sent it: clip by init(clip=...), or take rule='worker'"
            )


def host_copy(tensor: Tensor) -> Tensor:
    """TENSOR itself if the run can write into it, else a pinned copy."""
    tensor = tensor.detach()
    return tensor if tensor.device.type == "cpu" else pinned(tensor)


def pinned(tensor: Tensor) -> Tensor:
    """A copy of TENSOR in pinned host memory."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor)


class Exchange:
    """What DistributedOptimizer's rules share.

    GROUPS are the optimiser's parameters by group.
    """

    def __init__(
        self, run: Run, model: nn.Module, groups: list[list[nn.Parameter]]
    ):
        self.run = run
        self.model = model
        self.trained: list[Trained] = []
        self.buffers: list[tuple[int, Tensor, Tensor, str]] = []
        group_of = {p: i for i, group in enumerate(groups) for p in group}
        rest = dict(group_of)
        for name, parameter in model.named_parameters():
            rest.pop(parameter, None)
            if parameter in group_of and parameter.requires_grad:
                self._declare(Trained(name, parameter), group_of[parameter])
            else:
                self._declare_buffer(name, parameter, "assigned")
        if rest:
            raise wrong(
                f"the optimiser has {len(rest)} parameters that the model has "
                "not"
            )
        for name, buffer in model.named_buffers():
            kind = "averaged" if buffer.is_floating_point() else "assigned"
            self._declare_buffer(name, buffer, kind)

    def _declare(self, trained: Trained, group: int) -> None:
        weights = trained.weights
        trained.number = self.run._declare(
            trained.name,
            weights.data_ptr(),
            tuple(weights.shape),
            _library.DTYPES["float32"],
            "trained",
            group,
            weights,
        )
        self.trained.append(trained)

    def _declare_buffer(self, name: str, buffer: Tensor, kind: str) -> None:
        if not _BUFFERS:
            if kind == "averaged" and not self.buffers:
                warnings.warn(
                    f'buffer "{name}" and others stay local to each rank',
                    stacklevel=4,
                )
                self.buffers.append((-1, buffer, buffer, kind))
            return
        values = host_copy(buffer)
        number = self.run._declare(
            name,
            values.data_ptr(),
            tuple(values.shape),
            _library.DTYPES[str(values.dtype).removeprefix("torch.")],
            kind,
            0,
            values,
        )
        self.buffers.append((number, buffer, values, kind))

    def start(self) -> None:
        """Waits for the run's weights, which are then in the model."""
        self.run.start()
        self._arrived(self.trained)

    def _arrived(self, trained: Iterable[Trained]) -> None:
        """Weights have been written behind autograd's back."""
        for t in trained:
            if t.weights.data_ptr() != t.address:
                t.parameter.data.copy_(t.weights, non_blocking=True)
        increment_version([t.parameter for t in trained])

    def push(self, t: Trained, gradient: Tensor) -> None:
        """Sends GRADIENT, which is kept until the wait."""
        if t.pushed:
            raise wrong(
                f'parameter "{t.name}" has a second gradient in this step: '
                "wrap every backward pass but the last in run.no_sync()"
            )
        check_memory(f"the gradient of {t.name}", gradient)
        t.pushed = True
        t.gradient, t.version = gradient, gradient._version
        sent = host_copy(gradient)
        self.run._push(t.number, sent.data_ptr(), sent.nbytes, FULL, sent)

    def push_without(self, t: Trained, contribution: Contribution) -> None:
        """Pushes no bytes for T."""
        t.pushed = True
        self.run.push(t.number, contribution=contribution)

    def push_rest(self) -> None:
        """Pushes what has not been pushed in this step."""
        has_batch = any(
            t.pushed or t.parameter.grad is not None for t in self.trained
        )
        for t in self.trained:
            if t.pushed:
                continue
            if t.parameter.grad is not None:
                self.push(t, t.parameter.grad)
            else:
                self.push_without(t, ZERO if has_batch else EMPTY)
        self._push_buffers(has_batch)

    def push_void(self) -> None:
        """Pushes a step whose gradients overflowed."""
        for t in self.trained:
            self.push_without(t, VOID)
        self._push_buffers(False)

    def _push_buffers(self, has_batch: bool) -> None:
        for number, buffer, _, kind in self.buffers if _BUFFERS else ():
            if has_batch and (kind == "averaged" or self.run.rank == 0):
                sent = buffer.detach().to("cpu", copy=True)
                self.run._push(
                    number, sent.data_ptr(), sent.nbytes, FULL, sent
                )
            else:
                self.run.push(number, contribution=EMPTY)

    def end_step(self, loss: float, samples: int, correct: int) -> None:
        """All is pushed."""
        for t in self.trained:
            t.check_unchanged()
        self.run.step(loss, samples, correct)
        for t in self.trained:
            t.pushed, t.gradient = False, None

    def wait(self, trained: list[Trained] | None = None) -> None:
        """Waits for weights; None: for all, and for the buffers."""
        if trained is None:
            trained = self.trained
            for number, buffer, values, _ in self.buffers if _BUFFERS else ():
                self.run.wait(number)
                if values.data_ptr() != buffer.data_ptr():
                    buffer.copy_(values)
        pushed = [t for t in trained if t.number in self.run._pushed]
        for t in pushed:
            self.run.wait(t.number)
        if pushed:
            self._arrived(pushed)
