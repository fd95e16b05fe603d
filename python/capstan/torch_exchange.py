# SPDX-License-Identifier: Apache-2.0
"""The exchange of a torch module's parameters and buffers with a run.

A gradient is pushed from autograd's own tensor as soon as it is there, and the
new weights arrive in the parameter's own memory. The run has tensors in host
memory and row-major order: what is on a GPU or in another order, such as
channels_last, has a copy there instead, in each direction. Copies to and from
a GPU are begun all at once, and the host waits for them once.
"""

from __future__ import annotations

import functools
import math
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from ctypes import string_at
from operator import is_, ne
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import graph

from . import _library, alone
from .errors import ConfigError, Failed
from .run import EMPTY, FULL, VOID, ZERO, Contribution
from .torch_copies import (
    Copier,
    Copies,
    Send,
    copy_all,
    empty_on_host,
    host_copy,
    like,
)
from .torch_held import hold, let_go
from .torch_passes import are_seen, is_within
from .torch_tables import Rows

if TYPE_CHECKING:
    from .torch import Run


def _takes_lists() -> bool:
    """Does increment_version() take several tensors? Older ones take one."""
    try:
        graph.increment_version([])
    except RuntimeError:
        return False
    return True


_TAKES_LISTS = _takes_lists()


def _increment_versions(tensors: list[Tensor]) -> None:
    """Tells autograd that the run has written into TENSORS."""
    if _TAKES_LISTS:
        return graph.increment_version(tensors)
    for tensor in tensors:
        graph.increment_version(tensor)


def wrong(text: str) -> ConfigError:
    """A wrong call or model."""
    return ConfigError(text, "MODEL_INVALID")


# Bytes of a parameter that are compared at a time: at least these, and of large
# ones a part, so that a write of one element is found within as many steps.
_COMPARED = 1 << 12
_COMPARED_STEPS = 128
# The largest parameter is compared in each step, of as many others one, and of
# many others so many in a step: what each costs is the time of Python.
_TURNS = 4
_COMPARED_AT_ONCE = 8
# Of what the run has of a buffer, which holds each value: float32 and int64.
_CARRIED = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    **dict.fromkeys(
        [torch.bool, torch.uint8, torch.int8, torch.int16], torch.int64
    ),
    **dict.fromkeys([torch.int32, torch.int64], torch.int64),
}
# Gradients in host memory are pushed at once when they are so many bytes.
_TOGETHER = 1 << 14
ONE_MESSAGE = 1 << 16  # bytes of gradients that the library sends together


def check_memory(name: str, tensor: Tensor, part: str = "") -> None:
    """Raises ConfigError unless TENSOR is dense float32 of its own elements."""
    if tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        raise wrong(
            f'{part}tensor "{name}" is {tensor.layout} of {tensor.dtype}; '
            "expected is a dense tensor of torch.float32"
        )
    check_elements(name, tensor, part)


def check_elements(name: str, tensor: Tensor, part: str = "") -> None:
    """Raises ConfigError if elements of TENSOR have, or may have, one place."""
    if nn.parameter.is_lazy(tensor):
        raise wrong(
            f'{part}tensor "{name}" is of a lazy module, and has no values yet: '
            "call the model once before DistributedOptimizer"
        )
    if tensor.is_contiguous():
        return
    end = 0  # the last place of the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride <= end:
            raise wrong(
                f'elements of {part}tensor "{name}" share memory, with strides '
                f"{tensor.stride()} of shape {tuple(tensor.shape)}: make it by "
                "tensor.contiguous()"
            )
        end += stride * (size - 1)


_Named = list[tuple[str, Tensor]]


def check_apart(trained: _Named, others: _Named, way: str) -> None:
    """Raises ConfigError if a TRAINED tensor shares memory with another.

    WAY ends its text.
    """
    storages: dict[int, _Named] = {}
    for name, tensor in (*trained, *others):
        if tensor.dtype is torch.float32 and tensor.numel():
            address = tensor.untyped_storage().data_ptr()
            storages.setdefault(address, []).append((name, tensor))
    names = {name for name, _ in trained}
    for found in storages.values():
        if len(found) > 1:
            _check_places(found, names, way)


def _check_places(tensors: _Named, trained: set[str], way: str) -> None:
    """TENSORS of one storage, first those that are TRAINED."""
    size = tensors[0][1].untyped_storage().nbytes()
    owners = torch.zeros(size // 4, dtype=torch.int32, device="cpu")
    for number, (name, tensor) in enumerate(tensors, 1):
        shape, strides = tensor.shape, tensor.stride()
        places = owners.as_strided(shape, strides, tensor.storage_offset())
        if other := int(places.max()):
            raise wrong(
                f'tensors "{tensors[other - 1][0]}" and "{name}" share memory, '
                "and the ps would have two of them: make them one "
                f"nn.Parameter, transposed where it is used{way}"
            )
        if name in trained:
            places.fill_(number)


class Models(nn.ModuleList):
    """Those of several optimisers."""


def namer(model: nn.Module) -> Callable[[str], str]:
    """Makes of a name in MODEL that of the module in its wrappers.

    torch.compile, DataParallel and DistributedDataParallel change names, and
    other processes or runs may do without them.
    """
    if isinstance(model, Models):
        namers = [namer(m) for m in model]

        def name_in(name: str) -> str:
            number, _, rest = name.partition(".")
            return f"{number}.{namers[int(number)](rest)}"

        return name_in
    wrapped = getattr(model, "_orig_mod", model)
    parallel = nn.DataParallel, nn.parallel.DistributedDataParallel
    outer = ["module"] if isinstance(wrapped, parallel) else []

    def name_of(name: str) -> str:
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        if parts[:1] == outer:
            del parts[0]
        return ".".join(parts)

    return name_of


class Given:
    """Some of a parameter's weights as the run gave them, others at each turn.

    A script that writes by .data or NumPy changes them past autograd.
    """

    def __init__(self, parameter: Tensor, values: Tensor) -> None:
        """VALUES: where the run writes."""
        self._parameter = parameter
        self._bytes = values.numpy().reshape(-1).view(np.uint8).data
        self._copy: Tensor | None = None  # where the run has a copy
        self.is_copied = False
        self._given = self._seen = b""  # else, of the bytes at PLACE
        self._size = 0
        self._place = slice(0)
        self._changed = False
        self.is_kept = False  # in this step
        self.is_seen = False  # at the end of it, too

    def take_turns(self, turns: int) -> None:
        """The weights are kept each TURNS steps."""
        part = -(-len(self._bytes) * turns // _COMPARED_STEPS)
        self._size = max(_COMPARED, part + -part % 4)

    def keep(self, is_run_memory: bool, is_seen: bool, is_due: bool) -> None:
        """The run has given the weights. IS_SEEN: is_changed() reads them, of
        which a part is kept. IS_DUE: one is, if the run writes into them."""
        self.is_seen, self.is_copied = is_seen, not is_run_memory
        self.is_kept = is_seen or (is_due and is_run_memory)
        if self.is_copied:
            self._copy = self._parameter.detach().clone() if is_seen else None
        if self.is_copied or not self.is_kept:
            return
        first = self._place.stop
        if first >= len(self._bytes):
            first = 0
        self._place = slice(first, first + self._size)
        self._given = self._read()

    def _read(self) -> bytes:
        return self._bytes[self._place].tobytes()

    def part(self, gradient: Tensor) -> Any:
        """That of the parameter's GRADIENT where some of the weights are kept;
        of one that has a copy of them, as on a GPU, the sum of its bits."""
        if self.is_copied:
            return gradient.detach().view(torch.int32).sum()
        first = self._place.start
        end = min(self._place.stop, len(self._bytes))
        return string_at(gradient.data_ptr() + first, end - first)

    def compare(self) -> None:
        """Before the push, from which on the run may write."""
        self._changed = self._read() != self._given

    def is_changed(self) -> bool:
        """At the end of the step, before the wait."""
        if self._copy is not None:
            copy, self._copy = self._copy, None
            return not torch.equal(copy, self._parameter)
        if self.is_seen and self._given:
            self._seen = self._read()
        return self._changed

    def is_lost(self) -> bool:
        """After the wait: did is_changed() see what is not of the run?"""
        given, seen, self._seen = self._given, self._seen, b""
        if seen == given or not seen:
            return False
        brought = self._read()
        if seen == brought:
            return False
        a, b, c = (np.frombuffer(v, np.int32) for v in (given, seen, brought))
        return bool(((b != a) & (b != c)).any())


def _largest(tensor: Tensor | None) -> float:
    """The largest size of an element, or NaN if one is; 0 without any."""
    if tensor is None or not tensor.numel():
        return 0.0
    return float(torch.linalg.vector_norm(tensor.detach(), math.inf))


class Trained:
    """A parameter, and its gradient of the present step."""

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        in_place: bool,
        adds: bool,
        several: bool,
    ) -> None:
        check_memory(name, parameter)
        self.name = name
        self.parameter = parameter
        self.number = -1
        self.address = parameter.data_ptr()
        self.values = host_copy(parameter)  # the weights, for the run
        apart = adds and several  # from the run's memory
        if apart and self.values.data_ptr() == self.address:
            self.values = empty_on_host(parameter).copy_(self.values)
        self.mean = None if in_place else empty_on_host(parameter)
        self.place = -1  # in Exchange.trained
        self.sent: Any = None  # some of the gradient of this step
        self.nbytes = self.values.nbytes
        # Does the run write into the parameter itself?
        self.is_run_memory = self.values.data_ptr() == self.address
        gives = in_place and not adds
        self.given = Given(parameter, self.values) if gives else None
        # The weights as they arrived, where the script or the run may write
        # into VALUES, and then what the script has added to them.
        self.change = empty_on_host(parameter) if adds else None
        self.has_arrived_apart = self.is_run_memory or apart
        self.may_be_late = apart  # the parameter has older weights

    def read(self) -> bytes:
        """The weights, as the run has them here."""
        return string_at(self.values.data_ptr(), self.nbytes)

    def sends(self, gradient: Tensor | None) -> None:
        """The run may write new weights from now on."""
        given = self.given
        if given is None or not given.is_kept:
            return
        if self.is_run_memory:
            given.compare()
        if gradient is not None and (
            given.is_copied or (gradient.is_cpu and gradient.is_contiguous())
        ):
            self.sent = given.part(gradient)

    def sent_differs(self, gradient: Tensor) -> bool:
        """Does what is kept of what was sent differ from GRADIENT?"""
        sent, self.sent = self.sent, None
        assert self.given is not None
        return sent is not None and bool(sent != self.given.part(gradient))

    def has_arrived(self, is_seen: bool, is_due: bool, behind: bool) -> None:
        """The run's weights are in the parameter: Given.keep(). BEHIND: it
        went back."""
        given = self.given
        assert given is not None
        if given.is_seen and given.is_lost() and not behind:
            raise self.changed()
        given.keep(self.is_run_memory, is_seen, is_due)

    def is_as_arrived(self, tensor: Tensor) -> bool:
        """Is TENSOR what the run has brought?"""
        arrived = self.change if self.has_arrived_apart else self.values
        assert arrived is not None
        return torch.equal(tensor.detach().cpu(), arrived)

    def subtract(self) -> float:
        """Sets CHANGE, which has the weights where the run has a copy of what
        it brought; the largest size in it, or NaN."""
        assert self.change is not None
        if self.has_arrived_apart:
            weights = self.parameter.detach().cpu()
            torch.sub(weights, self.change, out=self.change)
        else:
            self.change.sub_(self.values)
        return _largest(self.change)

    def changed(self) -> ConfigError:
        return wrong(
            f'parameter "{self.name}" was changed by the script, and the '
            "run's weights would replace it: load weights before "
            "DistributedOptimizer, or take DistributedOptimizer(..., "
            "rule='worker')"
        )


class Sent:
    """The gradients of a step that were pushed, by their parameters."""

    def __init__(self) -> None:
        self.gradients: dict[Trained, Tensor] = {}
        self.versions: list[int] = []  # of each, when it was pushed

    def add(self, trained: list[Trained], gradients: Sequence[Tensor]) -> None:
        self.gradients.update(zip(trained, gradients))
        self.versions += [gradient._version for gradient in gradients]

    def check(self) -> None:
        """Raises ConfigError if the script has touched one."""
        gradients = list(self.gradients.values())
        own = [t.parameter.grad for t in self.gradients]
        versions = [gradient._version for gradient in gradients]
        if versions != self.versions or not all(map(is_, gradients, own)):
            seen = zip(self.gradients, gradients, own, versions, self.versions)
            for t, gradient, now, version, before in seen:
                if version != before or gradient is not now:
                    raise _gradient_changed(t)


def _gradient_changed(t: Trained) -> ConfigError:
    return wrong(
        f'the gradient of "{t.name}" was changed after backward() '
        "had sent it: clip by init(clip=...), or take "
        "DistributedOptimizer(..., rule='worker')"
    )


def _are_plain(gradients: list[Tensor]) -> bool:
    """Are all as the run takes them?"""
    return (
        all([gradient.is_cpu for gradient in gradients])
        and {gradient.dtype for gradient in gradients} == {torch.float32}
        and {gradient.layout for gradient in gradients} == {torch.strided}
        and all(map(Tensor.is_contiguous, gradients))
    )


def sums_of(trained: list[Trained]) -> list[int]:
    """Others once the weights of TRAINED are."""
    weights = [t.parameter.detach() for t in trained]
    return [int(w.view(torch.int32).sum()) for w in weights]


class Buffer:
    """A tensor of the model that has no gradient.

    PLACE: of the module that has it, the tensors by name, and the name there.
    IS_SAVED: as not persistent buffers are not, which are each rank's own once
    the module has assigned others.
    """

    def __init__(
        self,
        name: str,
        tensor: Tensor,
        kind: str,
        place: tuple[dict[str, Any], str] | None,
        is_saved: bool,
    ) -> None:
        self.name = name
        self.tensor = tensor
        self._place, self._is_saved = place, is_saved
        self.is_local = False  # the run has it no more
        self._is_new = False  # the script may have it elsewhere, too
        self._seen = self._state()  # when it was pushed
        self.kind = kind
        self.number = -1
        # Where the run writes.
        self.values = host_copy(tensor, _CARRIED[tensor.dtype])
        self.sent: Tensor | None = None  # what the run reads, until the wait
        # What it began with, while that is what this rank has: a mean of the
        # same values is another by its rounding, or infinite.
        self._constant: Tensor | None = None
        self._begun: tuple[int, ...] = ()

    def _state(self) -> tuple[int, int]:
        """It changes with what is written, but for writes by .data."""
        return self.tensor._version, self.tensor.data_ptr()

    def find(self) -> str:
        """Takes the tensor that a module has assigned in place of the last.
        Returns why it is this rank's own from now on, if that is not as it
        was before."""
        if not self._place or self._place[1] not in self._place[0]:
            return ""  # the dictionary of torch.jit has no get()
        found = self._place[0][self._place[1]]
        if found is None or found is self.tensor or self.is_local:
            return ""
        old = self.tensor
        self._leave(old)
        if not self._is_saved:
            self.is_local = True
            return ""
        if (found.shape, found.dtype) != (old.shape, old.dtype):
            self.is_local = True
            return (
                f"with {tuple(found.shape)} of {found.dtype} in place of "
                f"{tuple(old.shape)} of {old.dtype}"
            )
        if found.device != old.device:
            raise wrong(
                f'tensor "{self.name}" was assigned anew on {found.device}; '
                f"expected is {old.device}, as at the start: move the model "
                "before DistributedOptimizer"
            )
        check_elements(self.name, found)
        self.tensor, self._seen = found, (-1, -1)
        self._is_new = not isinstance(found, nn.Parameter)
        return ""

    def _leave(self, old: Tensor) -> None:
        """OLD may be the script's: the run writes into its memory no more."""
        if old.data_ptr() == self.values.data_ptr():
            old.data = old.detach().clone()

    def send(self) -> None:
        """Begins to copy the tensor to SENT."""
        if self.sent is None:
            self.sent = empty_on_host(self.tensor, self.values.dtype)
        self.sent.copy_(self.tensor.detach(), non_blocking=True)

    def begin(self) -> None:
        """The run's first values are there."""
        if self.kind == "averaged" and self._place:
            self._constant = self.values.clone()
            self._begun = self._versions()

    def _versions(self) -> tuple[int, ...]:
        """Those of its module's tensors: F.batch_norm changes none of those that
        it writes to, and the module counts its calls in another."""
        assert self._place is not None
        beside = self._place[0].values()
        return tuple(b._version for b in beside if b is not None)

    def is_constant(self) -> bool:
        """Is what was sent to be what it began with, and not by chance?"""
        if self._constant is None or self.sent is None:
            return False
        is_written = self._versions() != self._begun
        if is_written or not torch.equal(self._constant, self.sent):
            self._constant = None
        return self._constant is not None

    def has_news(self, rank: int) -> bool:
        """Does RANK bring bytes in a step with a batch?"""
        if self.kind == "averaged":
            return True  # BatchNorm does not count versions
        seen, self._seen = self._seen, self._state()
        return rank == 0 and seen != self._seen

    def arrived(self) -> None:
        """The run has written VALUES, of which a copy begins."""
        if self._is_new and self._place:
            self._is_new = False
            self.tensor = torch.empty_like(self.tensor)
            self._place[0][self._place[1]] = self.tensor
            self.tensor.copy_(self.values, non_blocking=True)
            self._seen = self._state()
        elif self.values.data_ptr() != self.tensor.data_ptr():
            was_sent = self._seen == self._state()
            self.tensor.detach().copy_(self.values, non_blocking=True)
            if was_sent:
                self._seen = self._state()


class Compared:
    """BUFFER, of which a part is compared with what was there a turn ago."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.sees = False  # what is sent for another reason
        self._flat = torch.empty(0, dtype=torch.uint8)
        self._bytes: memoryview | None = None  # in host memory
        self._hashes: dict[int, int] = {}  # of parts, by their first byte
        self._first = 0

    def part(self) -> Tensor | bytes:
        """The part whose turn it is."""
        tensor = self.buffer.tensor
        if self._flat.data_ptr() != tensor.data_ptr():
            self._flat = _flat(tensor).view(torch.uint8)
            is_host = tensor.is_cpu
            self._bytes = self._flat.numpy().data if is_host else None
        place = slice(self._first, self._first + _COMPARED)
        if self._bytes is not None:
            return self._bytes[place].tobytes()
        return self._flat[place]

    def is_known(self) -> bool:
        return self._first in self._hashes

    def see(self, part: bytes) -> bool:
        """PART is what is there. Is it other than what was?"""
        now = hash(part)
        before = self._hashes.get(self._first, now)
        self._hashes[self._first] = now
        return before != now

    def turn(self) -> None:
        first = self._first + _COMPARED
        self._first = first if first < self._flat.numel() else 0

    def forget(self) -> None:
        self._hashes.clear()


def _flat(tensor: Tensor) -> Tensor:
    """The elements, in the order of memory if they have one."""
    tensor = tensor.detach()
    places = zip(tensor.shape, tensor.stride())
    if sum((size - 1) * stride for size, stride in places) < tensor.numel():
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


class Written:
    """Finds what a script writes into those of BUFFERS that are rank 0's past
    autograd, such as by .data."""

    def __init__(self, buffers: list[Buffer]) -> None:
        own = [b for b in buffers if b.kind == "assigned" and b.values.numel()]
        self._all = {b: Compared(b) for b in own}

    def keep(self, arrived: Iterable[Buffer]) -> None:
        """The run's values are in ARRIVED."""
        found = [self._all[b] for b in arrived if b in self._all]
        for c in found:
            c.forget()
        # What autograd counts is not read from a GPU for this.
        self._see([c for c in found if c.sees or c.buffer.tensor.is_cpu])

    def found(self, among: Iterable[Buffer]) -> set[Buffer]:
        """Those of AMONG that were written since."""
        compared = [self._all[b] for b in among if b in self._all]
        found = self._see(compared)
        for c in compared:
            c.turn()
        self._see([c for c in compared if not c.is_known()])
        for c in compared:
            c.sees = True
        return found

    def _see(self, compared: list[Compared]) -> set[Buffer]:
        parts = _on_host([c.part() for c in compared])
        return {c.buffer for c, part in zip(compared, parts) if c.see(part)}


def _on_host(parts: list[Tensor | bytes]) -> list[bytes]:
    """PARTS, with one copy from each GPU."""
    of_device: dict[torch.device, list[Tensor]] = {}
    for part in parts:
        if isinstance(part, Tensor):
            of_device.setdefault(part.device, []).append(part)
    copies = {
        device: iter(torch.cat(own).cpu().split([p.numel() for p in own]))
        for device, own in of_device.items()
    }
    return [
        next(copies[part.device]).numpy().tobytes()
        if isinstance(part, Tensor)
        else part
        for part in parts
    ]


def _is_carried(tensor: Tensor, is_saved: bool) -> bool:
    """Does the run take TENSOR, that is not trained? Of other types than its
    own it takes saved buffers: what is frozen is as large as the model."""
    if not tensor.numel():
        return False
    if tensor.dtype in (torch.float32, torch.int64):
        return True
    is_frozen = isinstance(tensor, nn.Parameter)
    return is_saved and not is_frozen and tensor.dtype in _CARRIED


class Exchange:
    """A model's tensors in a run, for an optimiser with GROUPS of parameters.

    Parameters that are frozen or not the optimiser's, and buffers of integers,
    are rank 0's; buffers of floats are averaged once a step; what the run does
    not carry stays local, and is named. IN_PLACE: the run brings weights;
    else it brings gradients. ADDS: what the script adds to the weights is sent
    in place of gradients. SEVERAL optimisers take turns: what the run brings in
    a step of one leaves what autograd has of others' parameters. What is frozen
    now is not trained later, unless init() has said so.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        groups: list[list[nn.Parameter]],
        in_place: bool,
        adds: bool = False,
        several: bool = False,
    ) -> None:
        self.run = run
        self.in_place = in_place
        self._adds, self._several = adds, several
        self.model = model
        self.trained: list[Trained] = []
        self._frozen: list[tuple[str, nn.Parameter]] = []  # the optimiser's
        self._thaws = False  # they may have a gradient in this step
        self.buffers: list[Buffer] = []
        self._held: list[torch.UntypedStorage] = []  # of what is declared
        self._given: list[str] = []  # the model's names of TRAINED
        self._without: set[Trained] = set()  # that had no gradient once
        self._local: dict[str, torch.dtype] = {}  # each rank's own, by name
        # Of TRAINED, in this step, by bytes or without; what the latter were.
        self._pushed: set[Trained] = set()
        self._before: dict[Trained, bytes] = {}
        self._sent = Sent()
        self._saved: list[int] = []  # of weights that a checkpoint takes,
        self._saved_at = -1  # and the count of steps
        self._waiting: list[Trained] = []  # of these, to be sent together
        self._waiting_bytes = 0
        self._row_pass = -1  # autograd's task that sends rows, until its end
        self._has_rows = False  # sent in this step
        # Gradients that are read until the wait: version, and what was sent.
        self._lent: dict[Trained, tuple[Tensor, int, Any]] = {}
        self._random = random.Random(0)  # the script has one of its own
        # Those of which a part is compared in a step, by turns; and now.
        self._due: list[set[Trained]] = []
        self._watched: set[Trained] = set()
        self._copier = Copier()
        buffers = [buffer for _, buffer in model.named_buffers()]
        self._copies = Copies([*model.parameters(), *buffers])
        # Autograd has a thread for each GPU, and one for the CPU.
        devices = {p.device for p in model.parameters()}
        self._lock = threading.RLock() if len(devices) > 1 else None
        name_of = namer(model)
        self._owners = dict(model.named_modules())
        group_of = {p: i for i, group in enumerate(groups) for p in group}
        for given, parameter in model.named_parameters():
            name = name_of(given)
            trains = parameter.requires_grad or run.frozen == "trained"
            if parameter in group_of and trains:
                self._declare_trained(name, parameter, group_of[parameter])
                self._given.append(given)
            else:
                if parameter in group_of:
                    self._frozen.append((name, parameter))
                self._declare_buffer(given, name, parameter, "assigned")
        unknown = set(group_of).difference(model.parameters())
        if unknown:
            shapes = ", ".join(str(tuple(p.shape)) for p in unknown)
            raise wrong(
                f"the optimiser has parameters of shapes {shapes} that are "
                "not in the model"
            )
        for given, buffer in model.named_buffers():
            kind = "averaged" if buffer.is_floating_point() else "assigned"
            self._declare_buffer(given, name_of(given), buffer, kind)
        self._say_local()
        if in_place:
            self._take_turns()
            check_apart(
                [(t.name, t.parameter) for t in self.trained],
                [(b.name, b.tensor) for b in self.buffers],
                ", or take DistributedOptimizer(..., rule='worker')"
                if not run.is_stale
                else "",
            )
        self._turn = self.trained
        self._parameters = [t.parameter for t in self.trained]
        self._addresses = [p.data_ptr() for p in self._parameters]
        # Versions of the run's weights there.
        self._taken = [p._version for p in self._parameters]
        self._numbers = {t.number for t in self.trained}
        # Its gradients leave as one message, be they pushed one by one or not.
        self.is_small = (
            sum(t.nbytes for t in self.trained) <= ONE_MESSAGE
            and all(t.parameter.is_cpu for t in self.trained)
            and are_seen()
        )
        self._written = Written(self.buffers)
        for name, module in model.named_modules():
            if isinstance(module, Rows):
                module.declare(run, name_of(name))

    def host_weights(self) -> list[tuple[str, np.ndarray]]:
        """Of each parameter the name, and the weights as the run has them."""
        return [(t.name, t.values.numpy()) for t in self.trained]

    def take_turn(self, trained: list[Trained]) -> None:
        """From now on steps are of TRAINED only; others bring nothing."""
        self._turn = trained

    def _take_turns(self) -> None:
        given = [t for t in self.trained if t.given]
        if not given:
            return
        largest = max(given, key=lambda t: t.nbytes)
        turns = max(_TURNS, -(-len(given) // _COMPARED_AT_ONCE))
        self._due = [{largest, *given[i::turns]} for i in range(turns)]
        for t in given:
            assert t.given
            t.given.take_turns(1 if t is largest else turns)

    def _declare_trained(
        self, name: str, parameter: nn.Parameter, group: int
    ) -> None:
        t = Trained(name, parameter, self.in_place, self._adds, self._several)
        t.number = self._declare(name, t.values, "trained", group, t.mean)
        t.place = len(self.trained)
        self.trained.append(t)

    def _declare_buffer(
        self, given: str, name: str, tensor: Tensor, kind: str
    ) -> None:
        check_elements(name, tensor)
        module, _, own = given.rpartition(".")
        owner = self._owners.get(module)
        places = (owner._buffers, owner._parameters) if owner else ()
        place = next(((p, own) for p in places if own in p), None)
        saved = not owner or own not in owner._non_persistent_buffers_set
        if not _is_carried(tensor, saved):
            if saved:
                self._local[name] = tensor.dtype
            return
        b = Buffer(name, tensor, kind, place, saved)
        b.number = self._declare(name, b.values, kind, 0)
        self.buffers.append(b)

    def _say_local(self) -> None:
        if not self._local:
            return
        name, dtype = next(iter(self._local.items()))
        more = f" and {len(self._local) - 1} more" * (len(self._local) > 1)
        self.run._say(
            f'the model\'s "{name}" of {dtype}{more}, which the run does not '
            "carry, is each rank's own: load or make the same on all ranks, "
            "and again where the run is resumed"
        )

    def _declare(
        self,
        name: str,
        values: Tensor,
        kind: str,
        group: int,
        mean: Tensor | None = None,
    ) -> int:
        dtype = _library.DTYPES[str(values.dtype).removeprefix("torch.")]
        shape = tuple(values.shape)
        address = values.data_ptr()
        self._held += [hold(name, t) for t in (values, mean) if t is not None]
        return self.run._declare(
            name,
            address,
            shape,
            dtype,
            kind,
            group,
            (values, mean),
            None if mean is None else mean.data_ptr(),
        )

    def let_go(self) -> None:
        """The run is over, or another process's."""
        let_go(self._held)

    def start(self) -> None:
        """Waits for the run's weights, which are then in the model."""
        self.run.start()
        trained = {id(t.parameter) for t in self.trained}
        self.run._others = alone.Others(self.run, trained)
        self._take_weights(self.trained)
        self._take_buffers(self.buffers)
        for b in self.buffers:
            b.begin()

    def take_again(self) -> None:
        """The run has gone back: its weights are in the model."""
        self.run.wait()
        self._before.clear()
        # Of several optimisers' steps the loop's turn has backward passes left.
        self._take_weights(self.trained, is_seen=not self._several)
        self._take_buffers(self.buffers)

    def tensors(self) -> list[Tensor]:
        """All of the model: views outside of autograd."""
        model = self.model
        return [t.detach() for t in (*model.parameters(), *model.buffers())]

    def set_tensors(self, values: list[Tensor]) -> None:
        """Sets tensors(). What is so already stays as autograd knows it."""
        for tensor, value in zip(self.tensors(), values):
            if not torch.equal(tensor, value):
                tensor.copy_(value)
        if not self.in_place:
            self.give_weights()

    def _take_buffers(self, arrived: list[Buffer]) -> None:
        # What no rank has brought stays as the script has it.
        brought = [
            b
            for b in arrived
            if not b.is_local and self.run._has_brought(b.number)
        ]
        for b in brought:
            b.arrived()
        if brought:
            self._copies.end()
        if self.run.rank == 0:
            self._written.keep(brought)

    def settle(self) -> None:
        """The run may write: what it has brought is on the GPUs."""
        self._copies.wait()

    def _take_weights(
        self, trained: list[Trained], is_seen: bool = True
    ) -> None:
        """What no rank has moved stays as autograd knows it; so does all
        unless IS_SEEN."""
        moved = trained
        if not self._before.keys().isdisjoint(trained):
            before = {t: self._before.pop(t, b"") for t in trained}
            moved = [t for t, was in before.items() if not was or was != t.read()]
        for t in moved:
            if not t.is_run_memory:
                t.parameter.data.copy_(t.values, non_blocking=True)
        self._copies.end()
        if is_seen:
            _increment_versions([t.parameter for t in moved])
        if moved is self.trained:
            self._taken = [p._version for p in self._parameters]
        else:
            for t in moved:
                self._taken[t.place] = t.parameter._version
        if self._adds:
            for t in trained:
                if t.change is not None and t.has_arrived_apart:
                    t.change.copy_(t.values)  # to which the script adds
        elif trained and self._due:
            self._watch(trained)

    def _watch(self, arrived: list[Trained]) -> None:
        """The run's weights are in ARRIVED: of some a part is kept."""
        seen, behind = self._random.choice(arrived), self.run._is_behind()
        due = self._due[self.run._count % len(self._due)]
        some = {seen} | due | self._watched
        if len(arrived) < len(self.trained):
            some.intersection_update(arrived)
        for t in some:
            t.has_arrived(t is seen, t in due, behind)
        watched = self._watched | some
        self._watched = {t for t in watched if t.given and t.given.is_kept}

    def give_weights(self) -> None:
        """The run has the weights that the caller computed."""
        for t in self.trained:
            if not t.is_run_memory:
                t.values.copy_(t.parameter.detach(), non_blocking=True)
        self._copies.end()
        self._copies.wait()  # the run may read them before the next push

    def _take_means(self, trained: list[Trained]) -> None:
        of_mean = [(t.parameter, t.mean) for t in trained if t.mean is not None]
        grads = [(p.grad, mean) for p, mean in of_mean if p.grad is not None]
        copy_all([grad for grad, _ in grads], [mean for _, mean in grads])
        for p, mean in of_mean if len(grads) < len(of_mean) else ():
            # Has another rank a gradient?
            if p.grad is None and not mean.isnan().all():
                p.grad = like(p, mean)
        self._copies.end()

    @property
    def num_pushed(self) -> int:
        """How many of TRAINED have sent a gradient in this step."""
        return len(self._sent.gradients)

    def may_push(self) -> bool:
        """May backward() send gradients, or does step() look at all first?"""
        if not self.num_pushed:
            self._thaws = any(p.requires_grad for _, p in self._frozen)
        return not self._thaws

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise wrong(
                    f'parameter "{name}" was frozen at DistributedOptimizer '
                    "and has a gradient now, which the run does not take: set "
                    "requires_grad before DistributedOptimizer; or save the "
                    "model, end this run, and wrap the model anew in another; "
                    "or take DistributedOptimizer(..., rule='worker') and "
                    "init(frozen='trained'), which train it as torch does"
                )

    def push(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        """Sends GRADIENTS, of TRAINED, which are kept until the wait."""
        if not self.num_pushed:
            self.see_saved()
        has = [gradient for gradient in gradients if gradient is not None]
        if len(has) < len(trained) or not self._pushed.isdisjoint(trained):
            raise self._second_gradient(trained, gradients)
        self._pushed.update(trained)
        self._sent.add(trained, has)
        self._waiting += trained
        self._waiting_bytes += sum([t.nbytes for t in trained])
        is_host = trained[-1].parameter.is_cpu
        if self._waiting_bytes >= _TOGETHER or not is_host:
            self._push_waiting()

    def _second_gradient(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> ConfigError:
        name = next(
            t.name
            for t, gradient in zip(trained, gradients)
            if gradient is None or t in self._pushed
        )
        return wrong(
            f'parameter "{name}" has a second gradient in this step: '
            "optimizer.step() was left out, or a backward pass before "
            "the last is not in run.no_sync() (where a framework makes "
            "them, take rule='worker' and backward_passes_per_step=), "
            "or another optimiser took a step between: "
            "init(optimizers=2); or a backward pass failed after it had sent "
            "some: do one that may in run.no_sync(), and step() sends its "
            "gradients; or checkpoint(..., use_reentrant=True) "
            "makes passes of its own: take False"
        )

    def see_saved(self) -> None:
        """Keeps the state as it is before step(), if a checkpoint needs it."""
        run = self.run
        if run.ended:
            return
        run._save_kept()
        if self._saved_at != run._count:
            self._saved_at, self._saved = run._count, []
        if run._is_saved() and not self.in_place and not self._saved:
            self._saved = sums_of(self.trained)

    def check_saved(self, within: str = "") -> None:
        """Raises ConfigError if a checkpoint has taken weights that the script
        has put back since, as they were others for the backward pass, or those
        WITHIN a step() of that optimiser."""
        saved, self._saved = self._saved, []
        if not saved:
            return
        step = self.run.position.step - 1
        if within:
            raise wrong(
                f"the checkpoint of step {step} has weights within a step() of "
                f"{within}, which calls its closure several times: remove it, "
                "and leave checkpoint.every_steps out: those of epochs and of "
                "the run's end are between two steps"
            )
        if saved == sums_of(self.trained):
            return
        if self.run._is_behind():  # they are those that the run went back to
            return
        raise wrong(
            "weights are others in the backward pass than in step(), and the "
            f"checkpoint of step {step} has those of the backward pass: remove "
            "it, and do such passes in run.no_sync(), so that step() sends "
            "their gradients"
        )

    def _push_waiting(self) -> None:
        """Sends the gradients that wait for others."""
        waiting = self._waiting
        if not waiting:
            return
        gradients = [self._sent.gradients[t] for t in waiting]
        are_plain = _are_plain(gradients)
        if not are_plain:
            for t, gradient in zip(waiting, gradients):
                check_memory(t.name, gradient, "the gradient of ")
        self._wait_unread(waiting)
        self._waiting, self._waiting_bytes = [], 0
        for t in self._watched.intersection(waiting):
            t.sends(self._sent.gradients[t])
        if not are_plain:
            waiting, gradients = self._send_others(waiting, gradients)
        if waiting:
            numbers = [t.number for t in waiting]
            addresses = [gradient.data_ptr() for gradient in gradients]
            self._copies.wait()
            if self.in_place:
                self._give_away(waiting)
            self.run._push_tensors(numbers, addresses, gradients)

    def _give_away(self, trained: list[Trained]) -> None:
        """The run may write into TRAINED from now on: what a graph that uses
        them again would read is an error of autograd."""
        of_run = [t for t in trained if t.is_run_memory]
        _increment_versions([t.parameter for t in of_run])
        for t in of_run:
            self._taken[t.place] += 1

    def _wait_unread(self, trained: list[Trained]) -> None:
        """Waits for those of TRAINED that lazy=True has not, as nothing has
        read them."""
        pushed = self.run._pushed
        if late := [t for t in trained if t.number in pushed]:
            self.wait(late)

    def _send_others(
        self, trained: list[Trained], gradients: list[Tensor]
    ) -> tuple[list[Trained], list[Tensor]]:
        """Begins to send GRADIENTS that are on GPUs. Returns the others, as the
        run takes them."""
        host = []
        for t, gradient in zip(trained, gradients):
            if gradient.is_cpu:
                host.append((t, gradient.contiguous()))
            else:
                self.send(gradient, functools.partial(self._send, t))
        return [t for t, _ in host], [gradient for _, gradient in host]

    def in_turns(self, hook: Send) -> Send:
        """HOOK, in which one of autograd's threads is at a time."""
        lock = self._lock
        if lock is None:
            return hook

        def locked(tensor: Tensor) -> None:
            with lock:
                hook(tensor)

        return locked

    def send(self, gradient: Tensor, send: Send) -> None:
        """Calls SEND with GRADIENT in host memory, by the step's end."""
        if gradient.is_cpu:
            return send(gradient)
        self._copier.start(gradient, send)
        self._copier.send(wait=False)

    def send_rows(self, name: str, gradient: Tensor, send: Send) -> None:
        """As send(), within a backward pass, of rows of table NAME: each pass
        adds to what the step has of them."""
        task = torch._C._current_graph_task_id()
        self._has_rows = True
        if task != self._row_pass:
            if self._row_pass >= 0 and not is_within():
                raise wrong(
                    "a backward pass failed after it had sent gradients of "
                    f'rows, and another would add to them, of table "{name}": '
                    "call optimizer.step() first, or end the run"
                )
            self._row_pass = task
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_row_pass)
        self.send(gradient, send)

    def _end_row_pass(self) -> None:
        self._row_pass = -1

    def _send(self, t: Trained, sent: Tensor) -> None:
        self._copies.wait()
        self.run._push(t.number, sent.data_ptr(), t.nbytes, FULL, sent)

    def has_batch(self) -> bool:
        """Has this rank a gradient in this step?"""
        return (
            self.num_pushed > 0
            or self._has_rows
            or any(t.parameter.grad is not None for t in self._turn)
        )

    def _check_in_model(self) -> None:
        """Raises ConfigError if the model has another in place of a parameter
        that has no gradient for the first time."""
        trains = [t for t in self._turn if t.parameter.requires_grad]
        without = [t for t in trains if t.parameter.grad is None]
        new = [t for t in without if t not in self._without]
        if not new:
            return
        self._without.update(new)
        there = set(map(id, self.model.parameters()))
        names = dict(self.model.named_parameters())
        for t in new:
            if id(t.parameter) not in there and self._given[t.place] in names:
                raise wrong(
                    f'parameter "{t.name}" is another than at the start, as '
                    "after load_state_dict(assign=True), and the optimiser "
                    "would not train it: load and replace parameters before "
                    "DistributedOptimizer"
                )

    def push_rest(self) -> None:
        """Pushes what has not been pushed in this step."""
        if not self.num_pushed:
            self._check_frozen()
        has_batch = self.has_batch()
        if self.num_pushed < len(self._turn):
            self._check_in_model()
            rest = [
                t
                for t in reversed(self._turn)
                if t not in self._pushed and t.parameter.grad is not None
            ]
            if rest:
                self.push(rest, [t.parameter.grad for t in rest])
        self._push_waiting()
        self._copier.send(wait=True)
        self._push_without(ZERO if has_batch else EMPTY, EMPTY)
        self._push_buffers(has_batch)

    def push_changes(self) -> None:
        """Pushes what the script has added to the weights in this step."""
        self._check_frozen()
        self._check_in_model()
        for t in self._turn:
            if t.change is not None and not t.has_arrived_apart:
                t.change.copy_(t.parameter.detach(), non_blocking=True)
        self._copies.end()
        self._copies.wait()
        sizes = [t.subtract() for t in self._turn]
        if fault := self._not_finite(sizes, "change"):
            self._fail(fault)
        self._copier.send(wait=True)  # of rows
        sent = [t for t, size in zip(self._turn, sizes) if size][::-1]
        self._pushed.update(sent)
        if sent:
            changes = [t.change for t in sent]
            self.run._push_tensors(
                [t.number for t in sent],
                [change.data_ptr() for change in changes if change is not None],
                changes,
            )
        self._push_without(EMPTY, EMPTY)
        self._push_buffers(
            any(sizes) or any(t.parameter.grad is not None for t in self._turn)
        )

    def check_gradients(self) -> bool:
        """Fails the run if a gradient is not finite, before one is sent. False:
        the step is left out, as the job says."""
        grads = [t.parameter.grad for t in self._turn]
        fault = self._not_finite([_largest(g) for g in grads], "gradient")
        if fault and not self.run.skips:
            self._fail(fault)
        if fault and self.run.logs:
            print(f"capstan: a step is left out: {fault}", file=sys.stderr)
        return not fault

    def _not_finite(self, sizes: list[float], what: str) -> str:
        """SIZES: of TRAINED, the largest of WHAT is to be sent."""
        for t, size in zip(self._turn, sizes):
            if not math.isfinite(size):
                return f'the {what} of parameter "{t.name}" is NaN or infinite'
        return ""

    def _fail(self, fault: str) -> NoReturn:
        text = f"{fault} in a step: try a smaller rate, or clip the gradients"
        self.run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")

    def push_none(self, contribution: Contribution) -> None:
        """Pushes a step to which this rank brings no bytes."""
        self._push_without(contribution, EMPTY)
        self._push_buffers(False)

    def push_void(self) -> None:
        """Pushes a step whose gradients overflowed, of which nothing counts:
        all tensors say so."""
        self._copier.send(wait=True)  # of rows
        self._push_without(VOID, VOID)
        self._push_buffers(False, VOID)

    def _push_without(
        self, contribution: Contribution, of_frozen: Contribution
    ) -> None:
        self._copies.wait()
        if len(self._pushed) == len(self.trained):
            return
        if not self._pushed:
            self.run._save_kept()  # of the last step, before this one begins
        turn = set(self._turn)
        for t in self.trained:
            if t in self._pushed:
                continue
            self._wait_unread([t])
            t.sends(None)
            self._pushed.add(t)
            if self.in_place and not t.may_be_late:
                self._before[t] = t.read()
            if t.mean is not None:
                t.mean.fill_(torch.nan)  # stays if no rank has bytes
            brings = t.parameter.requires_grad and t in turn
            self.run.push(
                t.number, contribution=contribution if brings else of_frozen
            )

    def _find_buffers(self) -> None:
        for b in self.buffers:
            change = b.find()
            if change and self.run.logs:
                print(
                    f'capstan: the model\'s "{b.name}" was assigned anew '
                    f"{change}: it is each rank's own from now on",
                    file=sys.stderr,
                )

    def _push_buffers(
        self, has_batch: bool, without: Contribution = EMPTY
    ) -> None:
        """WITHOUT: what the others push."""
        rank = self.run.rank
        self._find_buffers()
        shared = [b for b in self.buffers if not b.is_local]
        sending = {b for b in shared if has_batch and b.has_news(rank)}
        if has_batch and rank == 0:
            others = [b for b in shared if b not in sending]
            sending |= self._written.found(others)
        for b in sending:
            b.send()
        if sending:
            self._copies.end()
        self._copies.wait()
        sending = {b for b in sending if not b.is_constant()}
        for b in self.buffers:
            if b in sending and b.sent is not None:
                address, size = b.sent.data_ptr(), b.sent.nbytes
                self.run._push(b.number, address, size, FULL, b.sent)
            else:
                self.run.push(b.number, contribution=without)

    def lend(self) -> None:
        """All is pushed. The script goes on, and the run reads gradients, of
        some a copy."""
        self._lent = {
            t: (gradient, version, t.sent)
            for (t, gradient), version in zip(
                self._sent.gradients.items(), self._sent.versions
            )
            if gradient.is_cpu and gradient.is_contiguous()
        }

    def _take_back(self, t: Trained) -> None:
        """The wait for T is over."""
        gradient, version, sent = self._lent.pop(t)
        if gradient._version != version or (
            sent is not None and t.given and sent != t.given.part(gradient)
        ):
            raise wrong(
                f'the gradient of "{t.name}" was changed after step(), and with '
                "lazy=True it is sent until its module is used again: set it to "
                "None, or call optimizer.zero_grad()"
            )

    def end_step(self) -> None:
        """All is pushed."""
        self._check_untouched()
        self._end_row_pass()
        self._has_rows = False
        self._pushed.clear()
        self._sent = Sent()
        self.run.step(*self.run.reported)
        self.run.reported = 0.0, 0, 0

    def _check_untouched(self) -> None:
        """Raises ConfigError if the script touched what the run reads."""
        addresses = [p.data_ptr() for p in self._parameters]
        if addresses != self._addresses:
            raise wrong(
                f'parameter "{self._differs(addresses, self._addresses).name}" '
                "has other memory than at the start: move or replace parameters "
                "before DistributedOptimizer"
            )
        if self.in_place and not self._adds:
            versions = [p._version for p in self._parameters]
            if versions != self._taken:
                raise self._differs(versions, self._taken).changed()
        watched = sorted(self._watched, key=lambda t: t.place)
        for t in watched:
            if t.given and t.given.is_changed():
                raise t.changed()
        self._sent.check()
        for t in watched:
            gradient = self._sent.gradients.get(t)
            if gradient is not None and t.sent_differs(gradient):
                raise _gradient_changed(t)

    def _differs(self, values: list[int], before: list[int]) -> Trained:
        """The first of TRAINED of which the values are not those BEFORE."""
        return self.trained[list(map(ne, values, before)).index(True)]

    def wait_buffers(self) -> None:
        """Waits for what the next forward pass changes."""
        for b in self.buffers:
            self.run.wait(b.number)
        self._take_buffers(self.buffers)

    def _sent_in_step(self) -> set[Trained]:
        """Those of which the run has a contribution to this step."""
        return self._pushed.difference(self._waiting)

    def check_ended(self) -> str:
        """Why this is not between two steps; "": it is."""
        if not self._sent_in_step():
            return ""
        return (
            "backward() has sent gradients of step "
            f"{self.run._position().step + 1}, and optimizer.step() has not ended "
            "it: call it first; a backward pass that may fail, or that no "
            "step() follows, stands in run.no_sync()"
        )

    def wait_to_read(self, trained: list[Trained] | None) -> None:
        """As wait(), also within a step: for what follows those before it."""
        is_within = trained is None and self._sent_in_step()
        self.wait(self.trained if is_within else trained)

    def wait(self, trained: list[Trained] | None = None) -> None:
        """Waits for weights; None: for all, and for buffers, between two steps."""
        pushed = self.run._pushed
        all_trained = self.trained if trained is None else trained
        waiting = all_trained
        if trained is None and (text := self.check_ended()):
            raise wrong(text)
        if trained is not None or not self._numbers <= pushed.keys():
            sent = self._sent_in_step()
            waiting = [
                t for t in all_trained if t.number in pushed and t not in sent
            ]
        if trained is None:
            arrived = [b for b in self.buffers if b.number in pushed]
            self.run.wait()
            self._take_buffers(arrived)
        else:
            for t in waiting:
                self.run.wait(t.number)
        for t in waiting if self._lent else ():
            if t in self._lent:
                self._take_back(t)
        if self._turn is not self.trained:
            arrived = set(waiting)
            waiting = [t for t in self._turn if t in arrived]
        if waiting and self.in_place:
            self._take_weights(waiting)
        elif waiting:
            self._take_means(waiting)
