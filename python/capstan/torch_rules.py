# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer's two rules, each mixed into the optimiser's class."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .agreed import Agreed
from .run import EMPTY, VOID
from .torch_copies import like
from .torch_exchange import Exchange, Trained, sums_of, wrong
from .torch_passes import Passes, is_within

if TYPE_CHECKING:
    from .torch import Run

_ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
# The optimisers of the ps, and the keys of their parameter groups.
SERVER_RULES: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: tuple(
        ["lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"]
    ),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.Adagrad: tuple(
        [
            "lr",
            "lr_decay",
            "weight_decay",
            "initial_accumulator_value",
            "eps",
            "maximize",
        ]
    ),
    torch.optim.RMSprop: tuple(
        [
            "lr",
            "alpha",
            "eps",
            "weight_decay",
            "momentum",
            "centered",
            "maximize",
        ]
    ),
}
# The state of each beside "step", and of which groups.
_STATES: dict[type, list[tuple[str, Callable[[dict[str, Any]], Any]]]] = {
    torch.optim.SGD: [("momentum_buffer", lambda g: g["momentum"])],
    torch.optim.Adagrad: [("sum", lambda g: True)],
    torch.optim.RMSprop: [
        ("square_avg", lambda g: True),
        ("momentum_buffer", lambda g: g["momentum"]),
        ("grad_avg", lambda g: g["centered"]),
    ],
    torch.optim.Adam: [
        ("exp_avg", lambda g: True),
        ("exp_avg_sq", lambda g: True),
        ("max_exp_avg_sq", lambda g: g["amsgrad"]),
    ],
}
_STATES[torch.optim.AdamW] = _STATES[torch.optim.Adam]
_DECOUPLED = "decoupled_weight_decay"  # Adam's: AdamW's rule
# Arguments of constructors that say how torch computes a step, not what.
_HOW = ("foreach", "fused")


def _server_rule(kind: type, group: dict[str, Any]) -> str:
    """The ps's name of the rule of KIND's GROUP."""
    if not issubclass(kind, (torch.optim.Adam, torch.optim.AdamW)):
        return kind.__name__
    decoupled = group.get(_DECOUPLED, kind is torch.optim.AdamW)
    return "AdamW" if decoupled else "Adam"


def server_lacks(kind: type, groups: list[dict[str, Any]]) -> str:
    """What the ps would not do as KIND does with GROUPS; "": nothing."""
    if kind not in SERVER_RULES:
        names = ", ".join(known.__name__ for known in SERVER_RULES)
        return f"rule server knows {names}; not {kind.__name__}"
    if len({_server_rule(kind, group) for group in groups}) > 1:
        return f"rule server knows no groups that differ in {_DECOUPLED}"
    known = ("params", *SERVER_RULES[kind], *_HOW, _DECOUPLED)
    for name, argument in inspect.signature(kind).parameters.items():
        for group in groups if name not in known else ():
            if group.get(name, argument.default) != argument.default:
                return (
                    f"rule server does not know {kind.__name__}'s "
                    f"{name}={group[name]!r}: leave it out, or take "
                    "DistributedOptimizer(..., rule='worker')"
                )
    return ""


class Rule(torch.optim.Optimizer):
    """What both rules share."""

    _kind: type  # the optimiser's own class
    _opt_called: bool
    _hooks: list[Any] = []
    _held: list[set[int]] = []  # by group: identities of its parameters
    _trained: list[Trained]  # the optimiser's own parameters
    _leave_out = ""  # how a script does that with some

    def capstan_open(
        self, run: Run, model: nn.Module, scaler: Any, lazy: bool
    ) -> None:
        """Joins the run with MODEL, whose weights are then the run's."""
        self._run, self._scaler, self._lazy = run, scaler, lazy
        run.optimizer = self
        groups = [group["params"] for group in self.param_groups]
        exchange = run.exchange = Exchange(
            run,
            model,
            groups,
            in_place=not isinstance(self, Worker),
            adds=isinstance(self, Adder),
        )
        self._take(exchange, exchange.trained)
        self._start()
        self._exchange.start()

    def _take(self, exchange: Exchange, trained: list[Trained]) -> None:
        self._exchange, self._trained = exchange, trained
        self._held = self._groups_hold()
        if self._run.is_stale:  # step() sends
            return
        if exchange.is_small:
            self._hooks = [Passes(trained, self._arrive, self._end_seen)]
        else:
            self._hooks = [self._hooked(t) for t in trained]

    def _hooked(self, t: Trained) -> Any:
        def arrive(parameter: Tensor) -> None:
            self._arrive([t], [parameter.grad])

        trains = t.parameter.requires_grad
        t.parameter.requires_grad_(True)  # else a hook is refused
        hook = t.parameter.register_post_accumulate_grad_hook(
            self._exchange.in_turns(arrive)
        )
        t.parameter.requires_grad_(trains)
        return hook

    def capstan_close(self) -> None:
        """The model may be in another run."""
        for hook in self._hooks:
            hook.remove()

    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        """A backward pass has given TRAINED these GRADIENTS."""
        raise NotImplementedError

    def _end_seen(self) -> None:
        """That of a backward pass, by Passes."""

    def _start(self) -> None:
        raise NotImplementedError

    def capstan_follow(self) -> bool:
        """Takes a step without a batch. Did other ranks have one?"""
        raise NotImplementedError

    def _check_groups(self) -> None:
        """Raises ConfigError if a group has a parameter that the run does not
        train in it."""
        groups = self._groups_hold()
        if groups != self._held and not self._may_hold(groups):
            raise wrong(
                "the parameters in optimizer.param_groups have changed since "
                f"DistributedOptimizer: add them before it{self._leave_out}"
            )

    def _groups_hold(self) -> list[set[int]]:
        return [set(map(id, group["params"])) for group in self.param_groups]

    def _may_hold(self, groups: list[set[int]]) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is of the optimiser's own class, and in no run."""
        return object.__new__, (self._kind,), self.__getstate__()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "_exchange" in self.__dict__:
            raise wrong("add parameter groups before DistributedOptimizer")
        super().add_param_group(param_group)


@functools.cache
def _leave_uncompiled() -> None:
    """torch.compile traces nothing of this package, whose calls have effects
    that a trace would repeat or lose."""
    try:
        from torch._dynamo import skipfiles as rules  # of older torch
    except ImportError:
        from torch._dynamo import trace_rules as rules
    rules.add(__package__)


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Has OPTIMIZER taken steps, or loaded a state with some?"""
    states = [state for _, state in optimizer.state.items()]
    return any(float(state.get("step", 1)) > 0 for state in states if state)


def mixed(rule: type[Rule], optimizer: torch.optim.Optimizer) -> Any:
    """OPTIMIZER, now of RULE and its own class: schedulers go on with it."""
    kind = type(optimizer)
    if issubclass(kind, Rule):
        raise wrong("the optimiser was in a run before: make another")
    _leave_uncompiled()
    step = optimizer.__dict__.pop("step", None)
    by_scheduler = "_wrapped_by_lr_sched", "_with_counter"  # of older torch
    if step and not any(hasattr(step, mark) for mark in by_scheduler):
        raise wrong(
            "optimizer.step was replaced before DistributedOptimizer: replace "
            "it afterwards"
        )
    mixed: Any = optimizer
    # The step() of other rules calls KIND's, which calls the hooks.
    rule.step.hooked = not issubclass(rule, Server)  # type: ignore[attr-defined]
    made: Any = type(kind.__name__, (rule, kind), {"_kind": kind})
    mixed.__class__ = made
    mixed.__setstate__(optimizer.__dict__)
    made.step._wrapped_by_lr_sched = True  # it sets _opt_called itself
    return mixed


def _without_tensors(value: Any) -> Any:
    """A group's VALUE as it is now: scripts change tensors and lists in place."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, (tuple, list)):
        return tuple([_without_tensors(v) for v in value])
    return value


_ON_THE_PS = (
    "by rule server the optimiser's state is on the ps: read it by "
    "optimizer.state_dict(); a script that changes it takes "
    "DistributedOptimizer(..., rule='worker')"
)


# Packages that look through the state of any optimiser, of which there is none,
# such as to move it to another device.
_LOOKING = (
    "torch",
    "capstan",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
    "transformers",
)


def _refused(*_: Any, **__: Any) -> Any:
    raise wrong(_ON_THE_PS)


def _of_libraries(name: str) -> Any:
    """The dict's method NAME, which scripts are refused."""
    method = getattr(dict, name)

    def read(self: _OnThePs, *arguments: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] not in _LOOKING:
            raise wrong(_ON_THE_PS)
        return method(self, *arguments)

    return read


class _OnThePs(dict[Tensor, dict[str, Any]]):
    """What optimizer.state is by rule server: without any."""

    __missing__ = __contains__ = __setitem__ = __delitem__ = _refused
    clear = pop = popitem = setdefault = update = _refused
    __iter__, __len__ = _of_libraries("__iter__"), _of_libraries("__len__")
    keys, items = _of_libraries("keys"), _of_libraries("items")
    values, get = _of_libraries("values"), _of_libraries("get")


class Server(Rule):
    """The ps apply the optimiser's rule; step() brings the new weights."""

    _leave_out = (
        "; to stop some, set requires_grad to False, or take "
        "DistributedOptimizer(..., rule='worker')"
    )
    _step_supports_amp_scaling = True  # GradScaler leaves infinities to step()
    _sent: list[dict[str, float]] = []  # what the run knows of the groups,
    _set: list[tuple[Any, ...]] = []  # and the values that it was made of
    _name: str  # of the ps's rule
    # With staleness the last state_dict()'s state, and the count of steps then.
    _told: tuple[dict[Any, Any], int] = {}, -1

    def _start(self) -> None:
        self._name = _server_rule(self._kind, self.param_groups[0])
        self._run.set_optimizer(self._name)
        self._forget_state()  # Adagrad's first, which is the ps's
        self._send_groups()
        if self._lazy:
            self._wait_in_modules(self._exchange.model)

    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        exchange = self._exchange
        if self._run.syncs and (exchange.num_pushed or self._may_push()):
            exchange.push(trained, gradients)

    def _may_push(self) -> bool:
        """Does backward() send this step's gradients, of which this is the
        first?"""
        if self._scaler is not None or self._run.skips:
            return False  # step() looks at all first
        if not self._exchange.may_push():
            return False
        self._send_groups()
        return True

    def _groups(self) -> list[dict[str, float]]:
        """The parameter groups' values, as capstan_set takes them."""
        found = []
        for group in self.param_groups:
            values = {k: group[k] for k in SERVER_RULES[self._kind]}
            if "betas" in values:
                values["beta1"], values["beta2"] = values.pop("betas")
            found.append({k: float(v) for k, v in values.items()})
        return found

    def _send_groups(self) -> None:
        """Tells the run which rates and other values have changed."""
        if not self._groups_changed():
            return
        for group in self.param_groups:
            if _server_rule(self._kind, group) != self._name:
                raise wrong(f"{_DECOUPLED} was changed after the start")
        if self._sent:
            self._run._check_schedule()
        groups = self._groups()
        for number, group in enumerate(groups):
            sent = self._sent[number] if self._sent else {}
            for key, value in group.items():
                if sent.get(key) != value:
                    self._run.set_group(number, key, value)
        self._sent, self._set = groups, self._values()

    def _values(self) -> list[tuple[Any, ...]]:
        keys = (*SERVER_RULES[self._kind], _DECOUPLED)
        return [
            tuple([_without_tensors(g.get(k)) for k in keys])
            for g in self.param_groups
        ]

    def _groups_changed(self) -> bool:
        return self._values() != self._set

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Ends the step; the model then has the new weights."""
        self._opt_called = True  # for schedulers
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        sent = self._run._tables or not self._run.is_stale  # in backward()
        if not sent and self._overflows():
            return loss
        self._push_rest()
        if self._lazy:
            self._exchange.lend()
        self._exchange.end_step()
        if self._lazy and not self._run.ended:
            self._exchange.wait_buffers()
        else:
            self._exchange.wait()
        return loss

    def _push_rest(self) -> None:
        if not self._exchange.num_pushed:
            self._send_groups()
        elif self._set and self._groups_changed():
            raise wrong(
                "a parameter group was changed between backward() and step()"
            )
        # GradScaler.step sets both.
        scale = getattr(self, "grad_scale", None)
        scales = getattr(self, "found_inf", None) is not None
        if scales and self._scaler is None and not self._run.is_stale:
            raise wrong("DistributedOptimizer was not told of the scaler")
        if self._overflows():
            return self._exchange.push_void()
        if scale is not None:
            for t in self._exchange.trained:
                if t.parameter.grad is not None:
                    t.parameter.grad.div_(scale)
        stale = self._run.is_stale
        if stale or self._run.skips:
            if not self._exchange.check_gradients():
                return self._exchange.push_void()
        if not stale and self._run.joins and not self._exchange.has_batch():
            raise wrong(
                "a step without a gradient in run.join(), which is how a rank "
                "says that its batches are over: with rule 'server' give it a "
                "loss of 0, or take rule 'worker'"
            )
        self._exchange.push_rest()

    def capstan_follow(self) -> bool:
        """Takes a step without a batch. Did other ranks have one?"""
        super().zero_grad()
        self._send_groups()
        self._exchange.push_none(EMPTY)
        self._exchange.end_step()
        self._exchange.wait()
        return self._run.had_batch()

    def _overflows(self) -> bool:
        """Has GradScaler.step found an infinity?"""
        infinite = getattr(self, "found_inf", None)
        return infinite is not None and bool(infinite.item())

    def state_dict(self) -> dict[str, Any]:
        """As the optimiser's own, with the state that the ps have now."""
        told = self._with_state(super().state_dict)
        if self._run.is_stale:
            self._told = copy.deepcopy(told["state"]), self._run._count
        return told

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of, with the state that the ps have now."""
        return self._with_state(super().__getstate__)

    def _with_state(self, tell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._exchange.num_pushed:
            raise wrong(
                "state_dict(), or a copy of the optimiser, between backward() "
                "and step()"
            )
        try:
            self._fetch_state()
            return tell()
        finally:
            self._forget_state()

    @property
    def state(self) -> Any:
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        raise wrong(_ON_THE_PS)

    def _forget_state(self) -> None:
        self.__dict__["state"] = _OnThePs()

    def _fetch_state(self) -> None:
        """Sets self.state."""
        self._exchange.wait()
        self.__dict__["state"] = {}
        of_parameter = {t.parameter: t for t in self._exchange.trained}
        for group in self.param_groups:
            keys = [key for key, has in _STATES[self._kind] if has(group)]
            for parameter in group["params"]:
                t = of_parameter.get(parameter)
                if t and keys:
                    self._fetch_state_of(t, keys)

    def _fetch_state_of(self, t: Trained, keys: list[str]) -> None:
        """Only Adagrad has a state before the parameter's first gradient."""
        one = torch.empty((), dtype=torch.float32, device="cpu")
        step = self._fetch(t, "step", one)
        if not step and self._kind is not torch.optim.Adagrad:
            return
        state = self.state.setdefault(t.parameter, {})
        if self._kind is not torch.optim.SGD:
            state["step"] = step
        for key in keys:
            floats = self._fetch(t, key, torch.empty_like(t.values))
            state[key] = like(t.parameter, floats)

    def _fetch(self, t: Trained, key: str, floats: Tensor) -> Tensor:
        if not self._run._state(t.number, key, floats.data_ptr()):
            raise wrong(
                "with zero_optimization each rank has a part of the "
                "state, which state_dict() does not gather: "
                "init(checkpoint=...) saves it"
            )
        return floats

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the parameter groups; a state but that of the ps is refused.

        With staleness that is what state_dict() has returned since this rank's
        last step, as other ranks' pushes have changed it meanwhile.
        """
        state, (told, count) = state_dict["state"], self._told
        has_any = any(state.values())
        if has_any and count != self._run._count:
            told = self.state_dict()["state"]
        if has_any and not _alike(state, told):
            raise wrong(
                f"{self._kind.__name__}'s state is on the ps, which continue "
                "by init(checkpoint=...): else load it before "
                "DistributedOptimizer, which then takes rule 'worker'"
            )
        super().load_state_dict(state_dict)
        self._forget_state()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._lazy and not set_to_none:
            self._exchange.wait()  # messages read the gradients
        super().zero_grad(set_to_none)

    def _wait_in_modules(self, model: nn.Module) -> None:
        """A module that owns parameters waits for its whole subtree."""
        of_parameter = {t.parameter: t for t in self._exchange.trained}
        for module in model.modules():
            found = [of_parameter.get(p) for p in module.parameters()]
            waits = _Waits(self._exchange, [t for t in found if t])
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_pre_hook(waits)
            # Before the weights, in whose order a copy is made.
            state = dict(module.__dict__)
            module.__dict__.clear()
            module.__dict__.update(_capstan_waits=waits, **state)
        model.register_state_dict_pre_hook(_Waits(self._exchange))


def _alike(a: Any, b: Any) -> bool:
    """Are the two states equal?"""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in a)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a.cpu(), b.cpu())
    return bool(a == b)


class _Waits:
    """A hook that waits for a module's weights of the last step. Who copies or
    pickles it has waited too, and the copy waits for nothing."""

    def __init__(
        self,
        exchange: Exchange | None = None,
        trained: list[Trained] | None = None,
    ) -> None:
        self._exchange, self._trained = exchange, trained

    def __call__(self, module: nn.Module, *_: Any) -> None:
        trains = module.training and torch.is_grad_enabled()
        if self._exchange is not None:
            self._exchange.wait_to_read(self._trained if trains else None)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._exchange is not None:
            self._exchange.wait_to_read(None)
        return _Waits, ()


def _numbers(value: Any) -> list[float]:
    """Those in a value of a parameter group."""
    if isinstance(value, (bool, int, float)):
        return [float(value)]
    if isinstance(value, Tensor) and value.numel() == 1:
        return [value.item()]
    if isinstance(value, (list, tuple)) and len(value) < 9:
        return [v for item in value for v in _numbers(item)]
    return []


def _accumulates() -> bool:
    """Is this a backward pass of accelerate's before the last of a step?"""
    accelerate = sys.modules.get("accelerate.state")
    return (
        accelerate is not None
        and not accelerate.GradientState().sync_gradients
    )


def at_end_of_pass(name: str, function: Callable[[], None]) -> None:
    """Calls FUNCTION at the end of the backward pass that gives NAME's gradient.

    The end of a pass that has begun another in a node is out of reach here.
    """
    if is_within():
        raise wrong(
            f'the gradient of "{name}", the first of the step, is of a '
            "backward pass within another, whose end rule worker does not "
            "see: take checkpoint(..., use_reentrant=False), with "
            "transformers gradient_checkpointing_kwargs="
            "{'use_reentrant': False}"
        )
    torch.autograd.Variable._execution_engine.queue_callback(function)


_MEAN = "_capstan_mean"  # set in a gradient that is one


class Own(Rule):
    """Each rank applies the optimiser itself."""

    _passes = _left = 1  # backward passes of a step, and those before its end
    _agreed: Agreed  # also with staleness: checkpoints are alike

    def capstan_count(self, passes: int) -> None:
        """PASSES backward passes, whose gradients are added, make a step."""
        if not isinstance(passes, int) or passes < 1:
            raise wrong(
                f"backward_passes_per_step is {passes!r}; allowed is an "
                "integer, at least 1"
            )
        self._passes = self._left = passes

    def capstan_open(
        self, run: Run, model: nn.Module, scaler: Any, lazy: bool
    ) -> None:
        super().capstan_open(run, model, scaler, lazy)
        self._agreed.look()
        run._share(self)
        run._meets_in_steps |= issubclass(self._kind, torch.optim.LBFGS)

    def _start(self) -> None:
        self._run.set_optimizer("None")
        weights = self._exchange.host_weights()
        self._agreed = Agreed(self._run, self._values, weights)

    def _values(self) -> dict[str, float]:
        """The groups' numbers, of the keys that were there at the start."""
        return {
            f"{key} of group {number}" + "'" * place: value
            for number, group in enumerate(self.param_groups)
            for key, values in group.items()
            if key != "params"
            for place, value in enumerate(_numbers(values))
        }

    def _may_hold(self, groups: list[set[int]]) -> bool:
        """Each rank may leave parameters out of its own steps."""
        return set[int]().union(*groups) <= set[int]().union(*self._held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What was saved in another memory format takes the parameter's.

        Torch's fused rules read all tensors in the order of one.
        """
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            for key, value in state.items():
                if (
                    isinstance(value, Tensor)
                    and value.shape == parameter.shape
                    and value.stride() != parameter.stride()
                ):
                    state[key] = like(parameter, value)

    def synchronize(self) -> None:
        """For scripts that call it before they clip."""


class _Loads:
    """A hook that tells when a module's weights are loaded. A copy of it tells
    nothing."""

    def __init__(self, adder: Adder | None = None) -> None:
        self._adder = adder

    def __call__(self, *_: Any) -> None:
        if self._adder is not None:
            self._adder.capstan_loads()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Loads, ()


# Words in the names of optimisers that go on from weights of their own.
_COPIERS = "lookahead", "schedulefree", "schedule_free"


def adder_lacks(kind: type) -> str:
    """Why KIND does not work with staleness; "": it does."""
    names = [base.__name__.lower() for base in kind.__mro__]
    if any(word in name for word in _COPIERS for name in names):
        return _keeps_weights(kind.__name__)
    return ""


def _keeps_weights(name: str) -> str:
    return (
        f"{name} keeps a copy of the weights, which lacks what other ranks "
        "add: with strategy.staleness take the optimiser within it, or "
        "another; or set strategy.staleness to 0"
    )


class Adder(Own):
    """With staleness: each step() sends what the optimiser, and the script
    since the last, have added to the weights that the run had brought."""

    _has_loaded = False  # weights, since the last step()

    def _take(self, exchange: Exchange, trained: list[Trained]) -> None:
        super()._take(exchange, trained)
        loads = _Loads(self)
        self._hooks = [
            module._register_load_state_dict_pre_hook(loads)
            for module in exchange.model.modules()
        ]
        self._unseen = list(trained)

    def capstan_loads(self) -> None:
        """The script loads weights into the model."""
        self._has_loaded = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the optimiser; the model then has the run's weights."""
        self._opt_called = True  # for schedulers
        self._check_groups()
        if self._run.ended:
            self._run._leave()
        if self._has_loaded:
            self._check_loaded()
        self._run._save_kept()  # of the last step, before the state changes
        skips, loss = self._run.skips and closure is None, None
        if skips and not self._exchange.check_gradients():
            self._exchange.push_void()
            self._agreed.skip(VOID)
        else:
            loss = super().step() if closure is None else super().step(closure)
            self._unseen = [t for t in self._unseen if not self._see_state(t)]
            self._exchange.push_changes()
            self._agreed.skip()
        self._exchange.end_step()
        self._exchange.wait()
        return loss

    def _check_loaded(self) -> None:
        self._has_loaded = False
        for t in self._trained:
            if not t.is_as_arrived(t.parameter):
                raise wrong(
                    f'parameter "{t.name}" was loaded after '
                    "DistributedOptimizer: with strategy.staleness the run "
                    "would add the difference to what other ranks have "
                    "changed: load weights before DistributedOptimizer"
                )

    def _see_state(self, t: Trained) -> bool:
        """Raises ConfigError if the first state of T has the weights in it.

        Weights that are all the same may be in it by chance.
        """
        state, weights = self.state.get(t.parameter), t.parameter.detach()
        if not state:
            return False
        if weights.numel() > 1 and bool((weights != weights.flatten()[0]).any()):
            for value in state.values():
                if isinstance(value, Tensor) and value.shape == weights.shape:
                    if t.is_as_arrived(value) or torch.equal(value, weights):
                        raise wrong(_keeps_weights(self._kind.__name__))
        return True


class Worker(Own):
    """When the last backward pass of a step returns, .grad is the mean over
    the ranks."""

    _averaged = False  # since the last step()
    _queued = False  # _end_pass() is, at the end of a backward pass,
    _queued_in = -1  # which is this task of autograd's
    _versions: list[int | None] = []  # of the gradients of passes so far
    _of_means: list[int | None] = []  # of the gradients as they were averaged
    _weights_after: list[int] = []  # of the last step, where a rank may follow
    _writes = False  # were they other weights at the next mean?
    _at_mean: list[int] = []  # of the last, where a checkpoint takes the next
    _evaluated = 0  # closures of the present step()

    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        if self._averaged:
            self._begin_anew(trained[0])
        if not self._queued or self._has_failed():  # the pass's first
            if not self._run.syncs or _accumulates():
                return
            if not self._exchange.is_small:
                at_end_of_pass(trained[0].name, self._end_pass)
            self._queued = True
            self._queued_in = torch._C._current_graph_task_id()
        if self._left == 1 and self._exchange.may_push():
            self._exchange.push(trained, gradients)

    def _has_failed(self) -> bool:
        """Has the pass ended otherwise, as for want of memory?"""
        task = torch._C._current_graph_task_id()
        return task != self._queued_in and not is_within()

    def _end_seen(self) -> None:
        if self._queued:
            self._end_pass()

    def _begin_anew(self, t: Trained) -> None:
        """A pass after the mean, and before step(): that may be left out."""
        grads = [t.parameter.grad for t in self._trained]
        if any([getattr(grad, _MEAN, False) for grad in grads]):
            raise wrong(
                f'the gradient of "{t.name}" comes after the mean over the '
                f"ranks, in a step of {self._passes} backward passes: say in "
                "DistributedOptimizer(..., backward_passes_per_step=) how many "
                "it has, or do those before the last in run.no_sync(); a "
                "script that leaves step() out calls optimizer.zero_grad()"
            )
        if self._at_mean and self._at_mean != sums_of(self._trained):
            raise wrong(
                "weights were changed after the mean over the ranks, without "
                "optimizer.step(), as by first_step() of SAM, and the "
                f"checkpoint of step {self._run.position.step} would have them: "
                "leave init(checkpoint=...) out, or write the change as the "
                "optimiser's step()"
            )
        self._averaged, self._left = False, self._passes

    def _mark(self, is_mean: bool) -> None:
        for grad in [t.parameter.grad for t in self._trained]:
            if grad is not None:
                setattr(grad, _MEAN, is_mean)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if not set_to_none:
            self._mark(False)
        if not self._averaged:
            self._left = self._passes

    def _end_pass(self) -> None:
        self._queued = False
        self._left -= 1
        if not self._left:
            return self._average()
        self._versions = self._grad_versions()

    def _grad_versions(self) -> list[int | None]:
        grads = [t.parameter.grad for t in self._trained]
        return [None if grad is None else grad._version for grad in grads]

    def _check_local(self) -> None:
        """step() comes before the last pass: nothing has seen the mean."""
        done = self._passes - self._left
        if done and self._versions != self._grad_versions():
            raise wrong(
                f"gradients were changed after {done} of {self._passes} "
                "backward passes, before the mean over the ranks: call "
                "optimizer.synchronize() before what changes them"
            )

    def _average(self, has_batch: bool = True) -> None:
        """The end of the last backward pass of a step."""
        before, found = self._weights_after, self._sums()
        self._writes = bool(before and found) and before != found
        self._bring(has_batch)
        self._exchange.end_step()
        self._exchange.wait()
        self._check_agreed()
        self._averaged = True
        self._at_mean = sums_of(self._trained) if self._run._is_due() else []
        self._mark(True)
        if self._agreed.is_followed():
            self._of_means = self._grad_versions()

    def _sums(self) -> list[int]:
        """Others once the weights are; none where no rank may follow."""
        if not self._run.joins and not self._agreed.is_followed():
            return []
        return sums_of(self._trained)

    def _check_followed(self) -> None:
        """A rank without a batch takes this step with the mean as it came."""
        if not self._agreed.is_followed():
            return
        what = ""
        if self._writes:
            what = "weights were changed between two steps"
        if self._of_means != self._grad_versions():
            what = "gradients were changed after the mean over the ranks"
        if what:
            raise wrong(
                f"{what}, and a rank in join() takes the step without that, so "
                "that its weights would differ: take rule 'server' with "
                "init(clip=...) for clipping, or as many batches on all ranks"
            )

    def _check_agreed(self) -> None:
        self._agreed.check()

    def _bring(self, has_batch: bool) -> None:
        """Pushes what is left to push of this rank's part in the step."""
        self._exchange.push_rest()
        self._agreed.push(has_batch)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the means to this rank's weights."""
        self._opt_called = True  # for schedulers
        self._check_groups()
        self._evaluated = 0
        if closure is None:
            self._take_part()
            loss = super().step()
        else:
            self._exchange.see_saved()
            loss = super().step(lambda: self._closed(closure))
        if not self._run._is_back:
            self._exchange.give_weights()
            self._agreed.look()
        self._weights_after = self._sums()
        return loss

    def _closed(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._evaluated += 1
        self._take_part()
        if not issubclass(self._kind, torch.optim.LBFGS) or self._run.size == 1:
            return loss
        # It chooses its steps by the loss, and a rank's is of its own samples.
        mean = float(self._run.all_reduce(np.array(float(loss)), "mean"))
        if isinstance(loss, Tensor):
            return torch.full_like(loss.detach(), mean)
        return type(loss)(mean) if isinstance(loss, np.floating) else mean

    def capstan_follow(self) -> bool:
        """Takes a step without a batch. Did other ranks have one?"""
        self.zero_grad()
        with torch.no_grad():
            self._average(has_batch=False)
        if had := self._agreed.has_batches():
            self.step()
        else:
            self._weights_after = []
        self._averaged = False
        self.zero_grad()
        return had

    def synchronize(self) -> None:
        """Waits for the means in a step without its last backward pass.

        That has done it otherwise. A script that clips calls it first; else
        step() calls it, after the script's clipping.
        """
        if not self._averaged:
            with torch.no_grad():
                self._average()

    def _take_part(self) -> None:
        if not self._averaged:
            self._check_local()
        self.synchronize()
        within = self._evaluated > 1
        self._exchange.check_saved(self._kind.__name__ if within else "")
        self._check_followed()
        self._averaged, self._left = False, self._passes
        if self._run._is_back:  # no means have come
            super().zero_grad()
