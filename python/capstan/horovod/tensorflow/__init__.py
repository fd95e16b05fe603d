# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow: of its modules keras is there."""

from __future__ import annotations

from typing import NoReturn

from ..names import refuse


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__") or name == "keras":
        raise AttributeError(name)  # keras is not imported yet
    refuse(
        f"tensorflow.{name}",
        "train by Keras, with capstan.horovod.tensorflow.keras",
    )
