# SPDX-License-Identifier: Apache-2.0
"""Tables of the ps as modules of torch."""

from __future__ import annotations

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


_CHUNK = 1 << 16  # rows that are read at once


class Rows(nn.Module):
    """What Embedding and EmbeddingBag share: a table of the run.

    NUM_EMBEDDINGS: ids are 0 to it - 1; None: any 64-bit ids. RULE, INIT_RANGE
    and SETTINGS (admit, expire, max_rows) are those of Run.table(). NAME is
    the table's; by default the module's in its model. DistributedOptimizer
    declares the table; rows have no torch parameter, and their gradients leave
    during backward(). A copy of the module, also one that was saved and
    loaded, reads the rows that the run has, and trains none.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_embeddings: int | None,
        name: str | None,
        rule: Mapping[str, Any] | None,
        init_range: float | None,
        settings: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.embedding_dim, self.num_embeddings = embedding_dim, num_embeddings
        self.name, self.frozen = name, False
        self._rule, self._settings = rule, settings
        self._range = (
            embedding_dim**-0.5 if init_range is None else init_range
        )
        self.table: tables.Table | None = None
        # Rows to begin with, and the group of the optimiser that they are of.
        self._first: tuple[Tensor, Tensor] | None = None
        self._group: tuple[dict[str, Any], dict[str, Any]] | None = None

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        *,
        ids: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """A module that begins with EMBEDDINGS [n, dim], as torch's.

        FREEZE: they are not trained. IDS [n]: theirs, of any 64-bit ids;
        None: 0 to n - 1. ARGUMENTS are those of the class.
        """
        if embeddings.dim() != 2:
            raise ValueError(
                f"embeddings have shape {tuple(embeddings.shape)}; they are "
                "[n, dim]"
            )
        count, dim = embeddings.shape
        if ids is None:
            arguments = {"num_embeddings": count, **arguments}
            ids = torch.arange(count, device="cpu")
        module = cls(dim, **arguments)
        module.frozen = freeze
        module._set_rows(ids, embeddings)
        return module

    def declare(self, run: Run, name: str) -> None:
        """Adds the table to RUN, as NAME unless it has one."""
        unused = {"type": "SGD"} if self.frozen else None
        self.table = run.table(
            self.name or name,
            self.embedding_dim,
            self._rule or unused,
            init_range=self._range,
            **self._settings,
        )
        if self._first:
            rank0 = [t.numpy() for t in self._first]
            self.table.write(*(rank0 if run.rank == 0 else ([], [])))
        self._first = None

    def _set_rows(self, ids: Tensor, rows: Tensor) -> None:
        """IDS have ROWS: from the start on, or from this step on."""
        ids, rows = (t.detach().cpu() for t in (ids, rows))
        if self.table is None:
            self._first = ids.clone(), rows.to(torch.float32, copy=True)
            return
        if self.table.run and self.table.run.is_stale:
            raise tables._wrong(
                f'rows of table "{self.table.name}" are loaded while it is '
                "trained with strategy.staleness: load them before "
                "DistributedOptimizer"
            )
        self.table.write(ids.numpy(), rows.float().numpy())

    def _trains(self) -> bool:
        """Are gradients of what is looked up now pushed?"""
        if not (self.training and torch.is_grad_enabled()) or self.frozen:
            return False
        return self.table is not None and self.table.run is not None

    def _check_group(self) -> None:
        """The table has the values that its group had at the start."""
        if not self._group:
            return
        group, values = self._group
        assert self.table is not None
        for key, value in values.items():
            if group[key] != value:
                raise tables._wrong(
                    f'{key} of the group with table "{self.table.name}" was '
                    f"changed from "
                    f"{value} to {group[key]}, which it follows with rule "
                    '"server" in the first group only'
                )

    def _all_rows(self) -> tuple[Tensor, Tensor] | None:
        """All ids and their rows; None: there is no table yet."""
        if self.table is None:
            return self._first
        table = self.table.of_run()
        most = cast("TorchRun", table.run).state_rows
        if self.num_embeddings is None:
            ids = torch.from_numpy(table.ids(most))
        else:
            ids = torch.arange(self.num_embeddings, device="cpu")
        if len(ids) > most:
            raise tables._wrong(
                f'state_dict(): table "{table.name}" has {len(ids)} rows, more '
                f"than init(state_rows={most}): `capstan ckpt export --table "
                f"{table.name}` writes those of a checkpoint"
            )
        parts = [table.lookup(part.numpy()) for part in ids.split(_CHUNK)]
        rows = np.concatenate(parts).reshape(-1, self.embedding_dim)
        return ids, torch.from_numpy(rows)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        found = self._all_rows()
        if found and self.num_embeddings is not None:
            destination[prefix + "weight"] = found[1]
        elif found:
            destination.update(
                {prefix + "ids": found[0], prefix + "rows": found[1]}
            )

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(  # type: ignore[no-untyped-call]
            *(state_dict, prefix, local_metadata, strict),
            *(missing_keys, unexpected_keys, error_msgs),
        )
        open_ids = self.num_embeddings is None
        names = [prefix + n for n in (("ids", "rows") if open_ids else ("weight",))]
        missing = [name for name in names if name not in state_dict]
        if missing:
            if strict:
                missing_keys += missing
            return
        unexpected_keys[:] = [k for k in unexpected_keys if k not in names]
        ids, rows = state_dict[names[0]], state_dict[names[-1]]
        count = len(ids) if open_ids else self.num_embeddings
        if tuple(rows.shape) != (count, self.embedding_dim):
            error_msgs.append(
                f"size mismatch for {names[-1]}: {tuple(rows.shape)}; expected "
                f"is {(count, self.embedding_dim)}"
            )
            return
        if not open_ids:
            ids = torch.arange(count, device="cpu")
        self._set_rows(ids, rows)

    def extra_repr(self) -> str:
        first = "" if self.num_embeddings is None else f"{self.num_embeddings}, "
        return f"{first}{self.embedding_dim}"


class Embedding(Rows):
    """torch.nn.Embedding over a table on the ps.

    PADDING_IDX: an id whose row is not trained. The rest is as of
    EmbeddingBag.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        num_embeddings: int | None = None,
        padding_idx: int | None = None,
        name: str | None = None,
        rule: Mapping[str, Any] | None = None,
        init_range: float | None = None,
        **settings: int,
    ) -> None:
        super().__init__(
            *(embedding_dim, num_embeddings, name, rule, init_range, settings)
        )
        self.padding_idx = padding_idx

    def forward(self, input: Tensor) -> Tensor:  # as torch names it
        """The rows of the ids INPUT, [*input.shape, embedding_dim]."""
        return bags([(self, input, None, None)])[0]


class EmbeddingBag(Rows):
    """torch.nn.EmbeddingBag over a table on the ps.

    MODE is "sum" or "mean". NUM_EMBEDDINGS: ids are 0 to it - 1; None: any
    64-bit ids. RULE, INIT_RANGE and SETTINGS (admit, expire, max_rows) are
    those of Run.table(). NAME is the table's; by default the module's in its
    model. DistributedOptimizer declares the table; rows have no torch
    parameter, and their gradients leave during backward(). A copy of the
    module, also one that was saved and loaded, reads the rows that the run
    has, and trains none.
    """

    def __init__(
        self,
        embedding_dim: int,
        mode: str = "mean",
        *,
        num_embeddings: int | None = None,
        name: str | None = None,
        rule: Mapping[str, Any] | None = None,
        init_range: float | None = None,
        **settings: int,
    ) -> None:
        super().__init__(
            *(embedding_dim, num_embeddings, name, rule, init_range, settings)
        )
        if mode not in ("sum", "mean"):
            raise ValueError(f'mode is "{mode}"; allowed: sum, mean')
        self.mode = mode

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
        return f"{super().extra_repr()}, mode={self.mode}"


_Request = tuple[Rows, Tensor, "Tensor | None", "Tensor | None"]


def bags(requests: list[_Request]) -> list[Tensor]:
    """What EmbeddingBag gives, of several in one exchange with the ps: each
    with its input, offsets and per_sample_weights; or an Embedding, with
    None for these."""
    asked, pins = [], False
    host = iter(on_host([part for _, *parts in requests for part in parts]))
    for module, ids, _, weights in requests:
        if module.table is None:
            raise RuntimeError(
                f"an {type(module).__name__} has no table: "
                "DistributedOptimizer, given the model, declares it"
            )
        parts = [next(host) for _ in range(3)]
        asked.append((module.table, _keys(module, _trains(weights), *parts)))
        pins = pins or not ids.is_cpu
    rows: list[Tensor] = []

    def make(shape: tuple[int, ...]) -> np.ndarray:
        rows.append(
            torch.empty(
                shape, dtype=torch.float32, device="cpu", pin_memory=pins
            )
        )
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


def _keys(module: Rows, trains: bool, *parts: Tensor | None) -> Any:
    """PARTS: ids, offsets and weights in host memory. Ids whose weights are
    trained are looked up row by row: the weights' gradients need the rows."""
    ids, offsets, weights = (
        None if part is None else part.detach() for part in parts
    )
    assert ids is not None
    count = module.num_embeddings
    if count is not None and ids.numel():
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= count:
            raise IndexError(
                f"ids {least} to {most} of a table with {count} rows"
            )
    if not isinstance(module, EmbeddingBag):
        return ids.numpy().copy()
    if weights is not None and module.mode != "sum":
        raise ValueError(
            f'per_sample_weights with mode "{module.mode}"; they are for '
            '"sum", as in torch'
        )
    if trains:
        return ids.numpy().copy()
    return tables.Bags(
        ids.numpy(),
        module.mode,
        None if offsets is None else offsets.numpy(),
        None if weights is None else weights.float().numpy(),
    )


def _push(module: Rows, keys: Any, gradients: np.ndarray) -> None:
    assert module.table is not None
    padding = getattr(module, "padding_idx", None)
    if padding is not None:
        trained = keys != padding
        keys, gradients = keys[trained], gradients[trained]
    module.table.push(keys, gradients)


def _combined(
    request: _Request, question: tuple[tables.Table, Any], values: Tensor
) -> Tensor:
    module, ids, offsets, weights = request
    table, keys = question
    rows = values.to(ids.device, non_blocking=True)
    if module._trains():
        module._check_group()
        rows.requires_grad_()
        exchange = cast("TorchRun", table.run).exchange
        assert exchange is not None

        def send(host: Tensor) -> None:
            _push(module, keys, host.numpy())

        rows.register_hook(
            exchange.in_turns(
                lambda gradient: exchange.send_rows(table.name, gradient, send)
            )
        )
    if isinstance(keys, tables.Bags) or not isinstance(module, EmbeddingBag):
        # Not the leaf: hooks of the script run before the push, and it may
        # change what it gets in place.
        return rows.clone() if rows.requires_grad else rows
    places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    return functional.embedding_bag(
        places,
        rows.view(-1, module.embedding_dim),
        offsets,
        mode="sum",
        per_sample_weights=weights,
    )


# Of optimisers that take sparse gradients: the ps's name, and the values of a
# group that it takes.
_SPARSE: dict[type, tuple[str, tuple[str, ...]]] = {
    torch.optim.SGD: ("SGD", ("lr", "weight_decay", "maximize")),
    torch.optim.Adagrad: (
        "Adagrad",
        (
            *("lr", "lr_decay", "weight_decay", "maximize"),
            *("initial_accumulator_value", "eps"),
        ),
    ),
    torch.optim.SparseAdam: ("Adam", ("lr", "betas", "eps", "maximize")),
}


def take_sparse(
    model: nn.Module, optimizer: torch.optim.Optimizer, is_server: bool
) -> None:
    """MODEL's nn.Embedding and nn.EmbeddingBag with sparse=True become tables,
    which begin with rank 0's rows, and leave OPTIMIZER. IS_SERVER: the ps has
    the values of its first group."""
    for name, module in list(model.named_modules()):
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            _refuse(name, module, model)
            _convert(name, module, optimizer, is_server)


def _refuse(name: str, module: Any, model: nn.Module) -> None:
    """What a table would not do as MODULE does."""
    weight = module.weight
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p is weight]
    lacks = {
        "max_norm": module.max_norm is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        f"weights of {weight.dtype}": weight.dtype != torch.float32,
        f"a weight that is {' and '.join(names)}": len(names) > 1,
    }
    if isinstance(module, nn.EmbeddingBag):
        lacks['mode="max"'] = module.mode == "max"
        lacks["include_last_offset"] = module.include_last_offset
        lacks["padding_idx"] = module.padding_idx is not None
    for what, has in lacks.items():
        if has:
            raise tables._wrong(
                f'init(tables="sparse"): "{name}" has {what}, which a table '
                "does not take: make it with sparse=False"
            )


def _convert(
    name: str, module: Any, optimizer: torch.optim.Optimizer, is_server: bool
) -> None:
    """The same object, so that what the script has of it is the table too."""
    weight = module._parameters.pop("weight")
    number = _leave(weight, optimizer)
    rule, group = None, None
    if weight.requires_grad:
        rule, group = _rule_of(name, number, optimizer, is_server)
    settings = {"name": None, "rule": rule, "init_range": 0.0}
    settings["num_embeddings"] = module.num_embeddings
    kept = module.__dict__.copy()
    if isinstance(module, nn.EmbeddingBag):
        mode = module.mode
        module.__class__ = EmbeddingBag
        EmbeddingBag.__init__(module, module.embedding_dim, mode, **settings)
    else:
        settings["padding_idx"] = module.padding_idx
        module.__class__ = Embedding
        Embedding.__init__(module, module.embedding_dim, **settings)
    for key in kept:  # hooks, and whether it trains
        if key.startswith("_") and key.endswith("hooks") or key == "training":
            module.__dict__[key] = kept[key]
    module.frozen, module._group = not weight.requires_grad, group
    module._set_rows(torch.arange(len(weight), device="cpu"), weight)


def _leave(
    weight: nn.Parameter, optimizer: torch.optim.Optimizer
) -> int | None:
    """Takes WEIGHT out of OPTIMIZER; the number of its group."""
    optimizer.state.pop(weight, None)
    found = None
    for number, group in enumerate(optimizer.param_groups):
        left = [p for p in group["params"] if p is not weight]
        found = number if len(left) < len(group["params"]) else found
        group["params"] = left
    return found


def _rule_of(
    name: str,
    number: int | None,
    optimizer: torch.optim.Optimizer,
    is_server: bool,
) -> tuple[Any, Any]:
    """The rule of the table NAME, of group NUMBER, and that with the values
    that it has. None, None: the ps's of the first group."""
    kind = next((k for k in _SPARSE if isinstance(optimizer, k)), None)
    if number is None or kind is None:
        why = "is in no group of" if number is None else "is of"
        raise tables._wrong(
            f'init(tables="sparse"): the weight of "{name}" {why} the '
            f"optimiser, {type(optimizer).__name__}; a table takes that of "
            f"{', '.join(k.__name__ for k in _SPARSE)}"
        )
    group = optimizer.param_groups[number]
    if group.get("momentum"):
        raise tables._wrong(
            f'init(tables="sparse"): the group of "{name}" has momentum '
            f"{group['momentum']}, which would move rows that no step reads: "
            "give it a group without"
        )
    if number == 0 and is_server:
        return None, None
    rule, keys = _SPARSE[kind]
    values = {key: group[key] for key in keys if key in group}
    params = {k: v for k, v in values.items() if k != "betas"}
    if "betas" in values:
        params["beta1"], params["beta2"] = values["betas"]
    return {"type": rule, "params": params}, (group, values)
