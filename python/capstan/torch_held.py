# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the run reads and writes, which torch would free or
move while the run has its address."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from torch import Tensor, UntypedStorage

from .errors import ConfigError


class Held(UntypedStorage):
    """One that stays where it is. Torch has one object for a storage's memory,
    whose class this becomes."""

    name: str  # of a tensor in it

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f'tensor "{self.name}" would get other memory than the run has, by '
            "share_memory(), a queue or process of torch.multiprocessing, or "
            "resize_(): call share_memory() before DistributedOptimizer, and "
            "send copies, as of tensor.detach().clone()",
            "MODEL_INVALID",
        )

    resize_ = share_memory_ = _refuse
    _share_fd_cpu_ = _share_filename_cpu_ = _refuse


ForkingPickler.register(Held, Held._refuse)


def hold(name: str, tensor: Tensor) -> UntypedStorage:
    """TENSOR, NAME, has its memory until let_go()."""
    tensor.numpy()  # then torch's own resize_() is an error
    storage = tensor.untyped_storage()
    if type(storage) is UntypedStorage and not storage.is_shared():
        storage.__class__ = Held
        storage.name = name  # type: ignore[attr-defined]
    return storage


def let_go(storages: list[UntypedStorage]) -> None:
    """The run has them no more."""
    while storages:
        storage = storages.pop()
        if type(storage) is Held:
            storage.__class__ = UntypedStorage
