# SPDX-License-Identifier: Apache-2.0
"""Tensors of GPUs in host memory: pinned, as copies are begun all at once and
the host waits for them once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor


def host_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """TENSOR itself if the run can write into it, else a copy, of DTYPE."""
    tensor, dtype = tensor.detach(), dtype or tensor.dtype
    if tensor.is_cpu and tensor.is_contiguous() and tensor.dtype is dtype:
        return tensor
    return empty_on_host(tensor, dtype).copy_(tensor)


def empty_on_host(
    tensor: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Row-major host memory for TENSOR, pinned if that is on a GPU."""
    return torch.empty(
        tensor.shape,
        dtype=dtype or tensor.dtype,
        device="cpu",  # scripts set others as the default
        pin_memory=not tensor.is_cpu,
    )


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """A copy of VALUES, which may be under way, on the device and in the order
    of TENSOR."""
    made = torch.empty_like(tensor.detach(), dtype=values.dtype)
    return made.copy_(values, non_blocking=True)


def copy_all(to: list[Tensor], values: list[Tensor]) -> None:
    """Copies VALUES, in one call where torch has it."""
    if to and hasattr(torch, "_foreach_copy_"):
        return torch._foreach_copy_(to, values, non_blocking=True)
    for tensor, value in zip(to, values):
        tensor.copy_(value, non_blocking=True)


Send = Callable[[Tensor], None]


class Copier:
    """Copies gradients to pinned memory, on a stream of its own of each GPU."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        # The gradient is kept until its copy is complete.
        self._copies: deque[
            tuple[Tensor, Tensor, torch.cuda.Event, Send]
        ] = deque()

    def start(self, gradient: Tensor, send: Send) -> None:
        """Begins to copy GRADIENT once the present stream has computed it, for
        SEND."""
        device = gradient.device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        copy = empty_on_host(gradient)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            copy.copy_(gradient, non_blocking=True)
            event = stream.record_event()
        self._copies.append((gradient, copy, event, send))

    def send(self, wait: bool) -> None:
        """Sends the copies that are complete; WAIT: all of them."""
        while self._copies and (wait or self._copies[0][2].query()):
            _, copy, event, send = self._copies.popleft()
            event.synchronize()
            send(copy)


class Copies:
    """What the present streams of the GPUs of TENSORS copy from and to pinned
    memory."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._devices = {t.device for t in tensors if not t.is_cpu}
        self._events: list[torch.cuda.Event] = []

    def end(self) -> None:
        """The copies that wait() waits for are begun."""
        for device in self._devices:
            stream = torch.cuda.current_stream(device)
            self._events.append(stream.record_event())

    def wait(self) -> None:
        """The host memory of the copies may be read and written."""
        for event in self._events:
            event.synchronize()
        self._events.clear()


def on_host(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """TENSORS in host memory, with one wait for those of a GPU."""
    copies = Copies(t for t in tensors if t is not None)
    found = [
        t
        if t is None or t.is_cpu
        else empty_on_host(t).copy_(t.detach(), non_blocking=True)
        for t in tensors
    ]
    copies.end()
    copies.wait()
    return found


def bytes_of(tensor: Tensor) -> np.ndarray:
    """TENSOR's bytes in row-major order, of any type and device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()


def of_bytes(
    data: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """A tensor in host memory of the bytes DATA."""
    found = torch.empty(shape, dtype=dtype, device="cpu")
    if found.numel():
        whole = found.reshape(-1).view(torch.uint8)
        whole.copy_(torch.from_numpy(data.reshape(-1)))
    return found
