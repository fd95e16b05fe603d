# SPDX-License-Identifier: Apache-2.0
"""Several DistributedOptimizers in a run, with one exchange.

A step() sends what its own parameters have, and is a step of the run: a
checkpoint may be of the state between two steps of a turn of the script's loop.
A script that goes on from it takes that turn again, from weights, buffers and
generators as at its beginning, and what it computes until the checkpoint's step
is as it was then. Those steps are left out, and with the last of them all is as
at the checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .agreed import Agreed
from .errors import Failed
from .run import EMPTY
from .torch_exchange import Exchange, Models, Trained, namer, wrong
from .torch_rules import Adder, Own, Worker
from .torch_shard import generators, set_generators
from .torch_tables import Rows

if TYPE_CHECKING:
    from .torch import Run


class Several:
    """The DistributedOptimizers of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._members: list[_Member] = []
        self._models: list[nn.Module] = []
        self._taken = 0  # steps of this turn of the loop
        self._generators: tuple[Any, ...] | None = None  # at its beginning,
        self._beginning: list[Tensor] = []  # and weights and buffers there
        self._given: list[Tensor] | None = None  # _BEGINNING of a checkpoint
        # What a turn that is taken again ends with: the generators and so on,
        # what keep() has, weights and buffers.
        self._resumed: tuple[Any, list[Any], list[Tensor]] | None = None
        self._left_out = 0  # steps of that turn still to be left out
        self._turn = -1  # number of the optimiser that steps
        self._follows = False  # steps are of other ranks' turns

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all optimisers."""
        return [group for m in self._members for group in m.param_groups]

    def add(self, member: _Member, model: nn.Module) -> None:
        """Takes MEMBER for parameters of MODEL; the last one starts the run."""
        self._check_apart(member, model)
        self._members.append(member)
        if all(model is not known for known in self._models):
            self._models.append(model)
        if len(self._members) == self._run.num_optimizers:
            self._open()

    def _check_apart(self, member: _Member, model: nn.Module) -> None:
        number, own = len(self._members), set(_parameters(member))
        for module in model.modules():
            if isinstance(module, Rows):
                raise wrong(
                    "a run of several optimisers takes no "
                    f"{type(module).__name__} on the ps, as each backward pass sends "
                    "its gradients: take one DistributedOptimizer, or "
                    "torch.nn's"
                )
        for other, before in enumerate(self._members):
            for shared in own.intersection(_parameters(before)):
                name = next(
                    (
                        name_of(name)
                        for known in (*self._models, model)
                        for name_of in [namer(known)]
                        for name, p in known.named_parameters()
                        if p is shared
                    ),
                    "",
                )
                raise wrong(
                    f'parameter "{name}" is in {before.named(other)} and '
                    f"in {member.named(number)}: each parameter has one"
                )

    def _open(self) -> None:
        run, stale, models = self._run, self._run.is_stale, self._models
        model = models[0] if len(models) == 1 else Models(models)
        groups = [group["params"] for group in self.param_groups]
        self._exchange = run.exchange = Exchange(
            run, model, groups, in_place=stale, adds=stale, several=True
        )
        run.set_optimizer("None")
        weights = self._exchange.host_weights()
        self._agreed = Agreed(run, self._values, weights)
        for m in self._members:
            own = set(_parameters(m))
            trained = [t for t in self._exchange.trained if t.parameter in own]
            m.capstan_take(self._exchange, self._agreed, trained)
        self._exchange.start()
        run._share(self)

    def _values(self) -> dict[str, float]:
        """That all ranks step the same one, and its and others' numbers."""
        found = {
            m.named(number): float(number == self._turn)
            for number, m in enumerate(self._members)
        }
        for number, m in enumerate(self._members):
            for name, value in m._values().items():
                found[f"{name} of optimizer {number}"] = value
        return found

    def check_turn(self) -> None:
        """After the step's wait. Raises Failed if ranks step different ones."""
        names = list(self._values())[: len(self._members)]
        others = [
            name
            for number, name in enumerate(names)
            if self._agreed.mean[number] > 0 and number != self._turn
        ]
        if not others or self._run._is_behind():
            return
        text = (
            f"rank {self._run.rank} takes a step of {names[self._turn]}, and "
            f"another rank one of {others[0]}: all ranks take the same steps "
            "in the same order"
        )
        self._run.fail(text)  # a framework may change what is raised
        raise Failed(text, "CALLER_FAILED")

    def take_turn(self, member: _Member) -> None:
        """The next step of the run is of MEMBER."""
        if not self._left_out and self._resumed:
            self._end_resumed()  # a step before had no step()
        self._turn = next(
            n for n, m in enumerate(self._members) if m is member
        )
        self._exchange.take_turn(member._trained)

    def capstan_follow(self) -> bool:
        """Takes a step without a batch, of the optimiser of which others take
        one. Did they?"""
        self._follows = True
        for m in self._members:
            m.zero_grad()
            m.capstan_begin_anew()
        self._exchange.push_none(EMPTY)
        self._agreed.push(has_batch=False)
        self._exchange.end_step()
        self._agreed.wait()
        if self._run._is_back or not self._agreed.has_batches():
            self._exchange.wait()
            return False
        turn = int(self._agreed.mean[: len(self._members)].argmax())
        self._members[turn].capstan_apply()
        return True

    # The turns of the script's loop

    def begin_turn(self) -> None:
        """Keeps what a turn that is taken again begins with."""
        self._follows = False
        if self._resumed and self._left_out == self._taken:
            assert self._generators
            set_generators(self._generators)
            if self._given:
                self._exchange.set_tensors(self._given)
            return
        if self._resumed:
            self._end_resumed()
        self._taken = 0
        self._generators = generators()
        if not self._run.is_stale:
            tensors = self._exchange.tensors()
            if not self._beginning:
                self._beginning = [torch.empty_like(t) for t in tensors]
            with torch.no_grad():
                for own, tensor in zip(self._beginning, tensors):
                    own.copy_(tensor)

    def leaves_out(self) -> bool:
        """Is the next step() one that the checkpoint has, or is it of a turn
        in which the run has gone back?"""
        return self._left_out > 0 or self._run._rewound

    def leave_out(self) -> None:
        """It has been left out."""
        if self._run._rewound:
            return
        self._left_out -= 1
        if not self._left_out:
            self._end_resumed()

    def end_step(self) -> None:
        """A step() has ended. Its state is kept now: what the script does
        before the next belongs to the turn that would be taken again."""
        if self._generators is not None and not self._follows:
            self._taken += 1
        if not self._run._is_back:
            self._run._save_kept()

    def added_to(self, own: dict[str, Any]) -> dict[str, Any]:
        """What a rank keeps of its own: OWN, and where it is in a turn."""
        if self._resumed:
            return self._resumed[0]
        # In join() the rank whose state_dict() is saved may be in another turn.
        differs = self._agreed.is_followed()
        return {
            **own,
            "taken": self._taken,
            "began": self._generators,
            "beginning": self._tensors_within() if differs else None,
        }

    def _tensors_within(self) -> list[Tensor] | None:
        """What a turn began with of which steps are taken."""
        within = self._taken and not self._run.is_stale
        return (self._given or self._beginning) if within else None

    def resume(self, own: dict[str, Any]) -> None:
        """The run goes on with weights that are in the model, and with OWN."""
        taken = own["taken"]
        if self._resumed or not taken:
            return
        if self._run.is_stale and self._run._joined:
            return  # other ranks are further
        self._given = own.get("beginning") or self._given
        self._taken = self._left_out = taken
        self._generators = own["began"]
        kept = [copy.deepcopy(item.state_dict()) for item in self._run._kept]
        self._resumed = own, kept, [t.clone() for t in self._exchange.tensors()]

    def _end_resumed(self) -> None:
        assert self._resumed
        own, kept, tensors = self._resumed
        self._exchange.set_tensors(tensors)
        for item, state in zip(self._run._kept, kept):
            item.load_state_dict(state)
        self._run._set_own_state(own)
        self._run._kept_batch = None
        self._resumed = self._given = None
        self._left_out = 0

    def state_dict(self) -> dict[str, Any]:
        """What is alike on all ranks; with staleness each has its own."""
        return {
            "optimizers": [m.state_dict() for m in self._members],
            "beginning": self._tensors_within(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() has returned."""
        for m, own in zip(self._members, state["optimizers"]):
            m.load_state_dict(own)
        self._given, self._resumed, self._taken = state["beginning"], None, 0

    def capstan_close(self) -> None:
        """The models may be in another run."""
        for m in self._members:
            m.capstan_close()


def _parameters(member: _Member) -> list[Tensor]:
    return [p for group in member.param_groups for p in group["params"]]


class _Member(Own):
    """One of several DistributedOptimizers."""

    _several: Several

    def capstan_apply(self) -> None:
        raise NotImplementedError

    def capstan_begin_anew(self) -> None:
        """This rank has no batch left: its weights are looked at no more."""

    def named(self, number: int) -> str:
        return f"{self._kind.__name__} (optimizer {number})"

    def capstan_open(
        self, run: Run, model: nn.Module, scaler: Any, lazy: bool
    ) -> None:
        self._run, self._scaler, self._lazy = run, scaler, lazy
        if run.optimizer is None:
            run.optimizer = Several(run)
        assert isinstance(run.optimizer, Several)
        self._several = run.optimizer
        self._several.add(self, model)

    def capstan_take(
        self, exchange: Exchange, agreed: Agreed, trained: list[Trained]
    ) -> None:
        """All are there: their EXCHANGE, of which TRAINED are its own."""
        self._agreed = agreed
        self._take(exchange, trained)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if "_exchange" not in self.__dict__:
            raise wrong(
                "a step before the last DistributedOptimizer of init("
                f"optimizers={self._run.num_optimizers})"
            )
        if self._several.leaves_out():
            self._opt_called = True  # for schedulers
            loss = None if closure is None else closure()
            self._several.leave_out()
            return loss
        self._several.take_turn(self)
        loss = super().step(closure)
        self._several.end_step()
        return loss


class InTurn(_Member, Worker):
    """step() sends the gradients of its own parameters, of whatever backward
    passes, and applies their means over the ranks."""

    _seen: dict[int, tuple[int, int]]  # by number: of the last pass's gradient

    def _take(self, exchange: Exchange, trained: list[Trained]) -> None:
        self._seen = {}
        super()._take(exchange, trained)

    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        if self._averaged:
            self._begin_anew(trained[0])
        for t, gradient in zip(trained, gradients):
            self._seen[t.number] = _mark_of(gradient)

    def _check_local(self) -> None:
        """Clipping and the like are of the mean."""
        for t in self._trained:
            grad, seen = t.parameter.grad, self._seen.get(t.number)
            changed = seen is not None and seen != _mark_of(grad)
            if changed and grad is not None and grad.any():
                raise wrong(
                    f'the gradient of "{t.name}" was changed before the mean '
                    "over the ranks: with several optimisers step() takes it, "
                    "so call optimizer.synchronize() before what changes "
                    "gradients, as clipping, or scaler.unscale_() and "
                    "scaler.step(), do"
                )

    def synchronize(self) -> None:
        """.grad of the optimiser's parameters becomes the mean over the ranks.

        A script that clips calls it first; else step() does.
        """
        if self._averaged or self._several.leaves_out():
            return
        self._check_local()
        self._several.take_turn(self)
        super().synchronize()

    def capstan_begin_anew(self) -> None:
        self._weights_after = []

    def capstan_apply(self) -> None:
        """Takes the present step of other ranks, to which this one brought no
        batch."""
        self._several.take_turn(self)
        self._exchange.wait()
        self._agreed.renew()  # with this turn
        self._check_agreed()
        self._averaged = True
        self._of_means = self._grad_versions()
        self.step()
        self.zero_grad()

    def _check_agreed(self) -> None:
        self._several.check_turn()
        super()._check_agreed()
        self._seen.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._averaged = False
        self._seen.clear()


def _mark_of(grad: Tensor | None) -> tuple[int, int]:
    """Another one after each change of GRAD."""
    return id(grad), -1 if grad is None else grad._version


class ChangeInTurn(_Member, Adder):
    """With staleness: step() sends what its own parameters have changed by."""
