# SPDX-License-Identifier: Apache-2.0
"""GPUs that are the CPU and do what they are told as late as they may.

Tensors that put() names are on GPUs, and so is what is computed of them. A copy
that does not block is made when a wait, or an operation on what it writes,
needs it; pinned memory is NaN until then. So a wait that is missing shows in
what is trained. Nothing is known of who calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten


class Copy:
    """A copy on a stream, after those BEFORE it."""

    def __init__(self, to: Tensor, values: Tensor, before: list[Copy]):
        self.to, self.values, self.before = to, values, before
        self.made = False

    def make(self) -> None:
        if self.made:
            return
        self.made = True
        for copy in self.before:
            copy.make()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self.to.copy_(self.values)

    def touches(self, places: set[int]) -> bool:
        ends = self.to, self.values
        return any(storage(t) in places for t in ends if gpu_of(t) is not None)


class Event:
    def __init__(self, last: list[Copy], gpus: Gpus):
        self._last, self._gpus = last, gpus

    def query(self) -> bool:
        return all(copy.made for copy in self._last)

    def synchronize(self) -> None:
        self._gpus.waits += 1
        for copy in self._last:
            copy.make()


class Stream:
    def __init__(self, device: Any, gpus: Gpus):
        self.device, self._gpus = torch.device(device), gpus
        self.last: list[Copy] = []  # after them comes what is told next
        gpus.streams.append(self)

    def wait_stream(self, other: Stream) -> None:
        self.last = [*self.last, *other.last]

    def record_event(self) -> Event:
        return Event(list(self.last), self._gpus)

    def synchronize(self) -> None:
        self.record_event().synchronize()


def storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


def gpu_of(tensor: Tensor) -> int | None:
    return tensor.__dict__.get("_gpu")


def put(tensor: Tensor, gpu: int) -> Tensor:
    tensor.__dict__["_gpu"] = gpu
    return tensor


class Gpus(TorchFunctionMode):
    """While it is entered, they are torch.cuda's."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0  # of the host
        self.streams: list[Stream] = []
        self._copies: list[Copy] = []  # not made, perhaps
        self._present: dict[int, Stream] = {}
        self.entered: Any = None  # where it is not left

    @contextlib.contextmanager
    def are_cuda(self) -> Iterator[Gpus]:
        cuda: Any = torch.cuda
        names = "Stream", "stream", "current_stream"
        before = {name: getattr(cuda, name) for name in names}
        cuda.Stream = lambda device: Stream(device, self)
        cuda.stream, cuda.current_stream = self._using, self._current
        try:
            with self:
                yield self
        finally:
            for name, value in before.items():
                setattr(cuda, name, value)

    def _current(self, device: Any) -> Stream:
        index = torch.device(device).index
        if index not in self._present:
            self._present[index] = Stream(device, self)
        return self._present[index]

    @contextlib.contextmanager
    def _using(self, stream: Stream) -> Iterator[None]:
        before = self._current(stream.device)
        self._present[stream.device.index] = stream
        try:
            yield
        finally:
            self._present[stream.device.index] = before

    def _begin(self, to: Tensor, values: Tensor, gpu: int) -> Tensor:
        stream = self._current(f"cuda:{gpu}")
        copy = Copy(to, values, stream.last)
        stream.last = [copy]
        self._copies.append(copy)
        return to

    def _finish(self, tensors: list[Tensor]) -> None:
        """A GPU is told to use TENSORS, after what was told of them."""
        places = {storage(t) for t in tensors if gpu_of(t) is not None}
        if not places:
            return
        for copy in self._copies:
            if not copy.made and copy.touches(places):
                copy.make()
        self._copies = [copy for copy in self._copies if not copy.made]

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if function is Tensor.backward:
            return self._backward(args[0])
        tensors = [t for t in tree_flatten((args, kwargs))[0] if is_tensor(t)]
        gpus = [g for g in map(gpu_of, tensors) if g is not None]
        if name == "__get__":
            return self._attribute(function, args[0])
        if name == "copy_" and len({gpu_of(t) for t in tensors}) > 1:
            return self._copy(*tensors, gpus[0], kwargs)
        if name == "cpu":
            return self._down(args[0])
        if name == "numpy" and gpus:
            raise TypeError("a tensor on a GPU has no NumPy array")
        if name == "to" and is_cuda(args[1]):
            return self._up(args[0], args[1].index, kwargs)
        if is_cuda(kwargs.get("device")):
            gpus = [kwargs.pop("device").index]
        pinned = kwargs.pop("pin_memory", False)
        if name not in ("data_ptr", "detach", "register_hook"):
            self._finish(tensors)
        found = function(*args, **kwargs)
        if pinned:
            return found.fill_(torch.nan if found.is_floating_point() else -1)
        for made in tree_flatten(found)[0] if gpus else ():
            if is_tensor(made) and gpu_of(made) is None:
                put(made, gpus[0])
        return found

    def _backward(self, loss: Tensor) -> None:
        """Its hooks are called in this mode."""
        ones = torch.ones_like(loss)
        with self:
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,), (ones,), False, False, (),
                allow_unreachable=True, accumulate_grad=True,
            )  # fmt: skip

    def _copy(
        self, to: Tensor, values: Tensor, gpu: int, kwargs: dict[str, Any]
    ) -> Tensor:
        """Between a GPU and the host."""
        self._begin(to, values, gpu)
        if not kwargs.get("non_blocking"):
            self._current(f"cuda:{gpu}").synchronize()
        return to

    def _down(self, tensor: Tensor) -> Tensor:
        gpu = gpu_of(tensor)
        if gpu is None:
            return tensor
        self._finish([tensor])
        made = torch.empty_like(tensor)
        return self._copy(made, tensor, gpu, {})

    def _up(self, tensor: Tensor, gpu: int, kwargs: dict[str, Any]) -> Tensor:
        if gpu_of(tensor) is not None:
            return tensor
        made = put(torch.full_like(tensor, torch.nan), gpu)
        return self._copy(made, tensor, gpu, kwargs)

    def _attribute(self, function: Any, tensor: Tensor) -> Any:
        gpu = gpu_of(tensor)
        name = getattr(function.__self__, "__name__", "")
        if gpu is not None and name in ("is_cpu", "device"):
            return False if name == "is_cpu" else torch.device("cuda", gpu)
        found = function(tensor)
        if gpu is not None and is_tensor(found):
            put(found, gpu)  # .grad, .data
        return found


def enter(model: nn.Module, count: int) -> Gpus:
    """Spreads MODEL over COUNT GPUs, for the rest of this process."""
    gpus = Gpus()
    for place, module in enumerate(model.modules()):
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                put(tensor, place % count)
    gpus.entered = gpus.are_cuda()
    gpus.entered.__enter__()
    return gpus


def is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
