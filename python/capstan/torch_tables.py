# SPDX-License-Identifier: Apache-2.0
"""Tables of the ps as modules of torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from . import tables
from .torch_copies import on_host

if TYPE_CHECKING:
    from .run import Run
    from .torch import Run as TorchRun


class EmbeddingBag(nn.Module):
    """torch.nn.EmbeddingBag over a table on the ps: any 64-bit ids.

    MODE is "sum" or "mean". RULE, INIT_RANGE and SETTINGS (admit, expire,
    max_rows) are those of Run.table(). NAME is the table's; by default the
    module's in its model. DistributedOptimizer declares the table; rows have
    no torch parameter, and their gradients leave during backward(). A copy of
    the module, also one that was saved and loaded, reads the rows that the run
    has, and trains none.
    """

    def __init__(
        self,
        embedding_dim: int,
        mode: str = "mean",
        *,
        name: str | None = None,
        rule: Mapping[str, Any] | None = None,
        init_range: float | None = None,
        **settings: int,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(f'mode is "{mode}"; allowed: sum, mean')
        self.embedding_dim, self.mode, self.name = embedding_dim, mode, name
        self._rule, self._settings = rule, settings
        self._range = (
            embedding_dim**-0.5 if init_range is None else init_range
        )
        self.table: tables.Table | None = None
        self._has_said = False  # that state_dict() has no rows

    def declare(self, run: Run, name: str) -> None:
        """Adds the table to RUN, as NAME unless it has one."""
        self.table = run.table(
            self.name or name,
            self.embedding_dim,
            self._rule,
            init_range=self._range,
            **self._settings,
        )

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.table is None:
            return
        text = (
            f'the rows of table "{self.table.name}" are not in state_dict(): '
            "they are on the ps, in all-reduce on every rank, and "
            "init(checkpoint=...) saves them"
        )
        metadata = getattr(destination, "_metadata", {})
        metadata.get(prefix[:-1], {})["rows"] = text
        if self.table.run and self.table.run.logs and not self._has_said:
            self._has_said = True
            print(f"capstan: {text}", file=sys.stderr)

    def forward(
        self,
        input: Tensor,  # as torch names it
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Bags of ids: INPUT [bags, ids], or [ids] with the OFFSETS [bags] at
        which they begin; [bags, embedding_dim]."""
        return bags([(self, input, offsets, per_sample_weights)])[0]

    def extra_repr(self) -> str:
        return f"{self.embedding_dim}, mode={self.mode}"


_Request = tuple[EmbeddingBag, Tensor, "Tensor | None", "Tensor | None"]


def bags(requests: list[_Request]) -> list[Tensor]:
    """What EmbeddingBag gives, of several in one exchange with the ps: each
    with its input, offsets and per_sample_weights."""
    asked, pins = [], False
    host = iter(on_host([part for _, *parts in requests for part in parts]))
    for bag, ids, _, weights in requests:
        if bag.table is None:
            raise RuntimeError(
                "an EmbeddingBag has no table: DistributedOptimizer, given "
                "the model, declares it"
            )
        if weights is not None and bag.mode != "sum":
            raise ValueError(
                f'per_sample_weights with mode "{bag.mode}"; they are for '
                '"sum", as in torch'
            )
        parts = [next(host) for _ in range(3)]
        asked.append((bag.table, _keys(bag.mode, _trains(weights), *parts)))
        pins = pins or not ids.is_cpu
    rows: list[Tensor] = []

    def make(shape: tuple[int, ...]) -> np.ndarray:
        rows.append(torch.empty(shape, pin_memory=pins))
        return rows[-1].numpy()

    run = asked[0][0].of_run().run if asked else None
    if run:
        tables.lookup(run, asked, make)
    return [
        _combined(request, question, values)
        for request, question, values in zip(requests, asked, rows)
    ]


def _trains(weights: Tensor | None) -> bool:
    return (
        weights is not None
        and weights.requires_grad
        and torch.is_grad_enabled()
    )


def _keys(mode: str, trains: bool, *parts: Tensor | None) -> Any:
    """PARTS: ids, offsets and weights in host memory. Ids whose weights are
    trained are looked up row by row: the weights' gradients need the rows."""
    ids, offsets, weights = (
        None if part is None else part.detach() for part in parts
    )
    assert ids is not None
    if trains:
        return ids.numpy().copy()
    return tables.Bags(
        ids.numpy(),
        mode,
        None if offsets is None else offsets.numpy(),
        None if weights is None else weights.float().numpy(),
    )


def _combined(
    request: _Request, question: tuple[tables.Table, Any], values: Tensor
) -> Tensor:
    bag, ids, offsets, weights = request
    table, keys = question
    rows = values.to(ids.device, non_blocking=True)
    if bag.training and torch.is_grad_enabled() and table.run:
        rows.requires_grad_()
        exchange = cast("TorchRun", table.run).exchange
        assert exchange is not None

        def send(host: Tensor) -> None:
            table.push(keys, host.numpy())

        rows.register_hook(
            exchange.in_turns(lambda gradient: exchange.send(gradient, send))
        )
    if isinstance(keys, tables.Bags):
        # Not the leaf: hooks of the script run before the push, and it may
        # change what it gets in place.
        return rows.clone() if rows.requires_grad else rows
    places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    return functional.embedding_bag(
        places,
        rows.view(-1, bag.embedding_dim),
        offsets,
        mode="sum",
        per_sample_weights=weights,
    )
