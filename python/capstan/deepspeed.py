# SPDX-License-Identifier: Apache-2.0
"""The names of deepspeed, for scripts that were written for it.

import capstan.deepspeed as deepspeed

engine, optimizer, loader, scheduler = deepspeed.initialize(
    args, model, model_parameters=model.parameters(), training_data=data)
for x, y in loader:
    loss = criterion(engine(x), y)
    engine.backward(loss)
    engine.step()

Each rank holds the whole model, in float32; the configuration's fp16 and bf16
are torch.autocast. The optimiser runs on each rank, with the mean of the ranks'
gradients (rule "worker"); with strategy.staleness with its own, and its changes
are sent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from . import deepspeed_config as configuration
from . import run as runs
from .errors import ConfigError, Error, Failed, PeerLost
from .torch import Run, init, torch_run
from .torch_exchange import Exchange, Trained, wrong
from .torch_rules import Adder, Own, Worker, adder_lacks, mixed

__all__ = [
    "ConfigError",
    "DeepSpeedEngine",
    "Error",
    "PeerLost",
    "add_config_arguments",
    "get_accelerator",
    "init_distributed",
    "initialize",
]

# `capstan local --deepspeed_config FILE` sets it. The library refuses it, as
# other scripts than those of this module know no such file.
_VARIABLE = "CAPSTAN_DEEPSPEED_CONFIG"
_given_file = os.environ.pop(_VARIABLE, None)
_joined_keys: dict[str, Any] = {}  # of the configuration, or of the script
_STATES = "mp_rank_00_model_states.pt"  # a file of a checkpoint
_LATEST = "latest"
_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"capstan.deepspeed has no {name}; it has {', '.join(__all__)}. "
        "docs/python.md says what takes the place of others"
    )


def add_config_arguments(
    parser: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config FILE to PARSER."""
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument(
        "--deepspeed", action="store_true", help="has no effect here"
    )
    group.add_argument(
        "--deepspeed_config", metavar="FILE", help="a configuration, JSON"
    )
    return parser


class _Accelerator:
    """The device of this process."""

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def device_count(self) -> int:
        return torch.cuda.device_count() if self.is_available() else 1

    def set_device(self, index: int) -> None:
        if self.is_available():
            torch.cuda.set_device(index % self.device_count())

    def device_name(self, index: int | None = None) -> str:
        if not self.is_available():
            return "cpu"
        if index is None:
            return "cuda"
        return f"cuda:{index % self.device_count()}"

    def current_device_name(self) -> str:
        if not self.is_available():
            return "cpu"
        return self.device_name(torch.cuda.current_device())

    def communication_backend_name(self) -> str:
        return "capstan"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"capstan.deepspeed's accelerator has no {name}: write "
            "torch.cuda's, where there is a GPU"
        )


_accelerator = _Accelerator()


def get_accelerator() -> Any:
    """The GPU that torch has, else the CPU."""
    return _accelerator


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int | None = None,
    verbose: bool = True,
    timeout: Any = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
    **keys: Any,
) -> None:
    """Joins the run, whose processes the environment describes.

    KEYS are those of capstan.torch.init(), such as strategy="allreduce" or
    checkpoint="run/checkpoint". The others have no effect, but for TIMEOUT,
    which is refused.
    """
    if timeout is not None:
        raise wrong(
            "init_distributed(timeout=...): write timeouts={'step': SECONDS}"
        )
    if _is_open():
        if keys:
            raise wrong(
                f"init_distributed({', '.join(keys)}=...): the run was joined "
                "before"
            )
        return
    found = config or _given_file or _named_file()
    if found is not None:
        keys = {**configuration.run_keys(configuration.read(found)), **keys}
    run = init(**keys)
    _joined_keys.clear()
    _joined_keys.update(keys)
    # DeepSpeed sets them too, and its scripts read them.
    os.environ["RANK"] = str(run.rank)
    os.environ["WORLD_SIZE"] = str(run.size)
    os.environ["LOCAL_RANK"] = str(run.local_rank)


def _is_open() -> bool:
    return runs._current is not None and runs._current._open is not None


def _named_file() -> str | None:
    """What --deepspeed_config of the command line names."""
    for place, word in enumerate(sys.argv):
        flag, _, value = word.partition("=")
        if flag == "--deepspeed_config":
            return value or "".join(sys.argv[place + 1 : place + 2]) or None
    return None


def _config_of(args: Any, config: Any, older: Any) -> dict[str, Any]:
    """The one that the script, ARGS or `capstan local` gives."""
    named = getattr(args, "deepspeed_config", None)
    given = [f for f in (config, older, named, _given_file) if f is not None]
    if not given:
        raise configuration.refused(
            "none is given: write initialize(config=...), or "
            "--deepspeed_config FILE"
        )
    for other in given[1:]:
        if not _is_same(given[0], other):
            raise configuration.refused(
                f"{_name_of(given[0])} and {_name_of(other)} are both given: "
                "leave one out"
            )
    return configuration.read(given[0])


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) or isinstance(b, dict):
        return a == b
    return os.path.realpath(a) == os.path.realpath(b)


def _name_of(config: Any) -> str:
    return "a dictionary" if isinstance(config, dict) else str(config)


class _Engined(Own):
    """A rule whose passes and steps an engine makes."""

    capstan_engine: DeepSpeedEngine

    def _values(self) -> dict[str, float]:
        engine = self.capstan_engine
        # Float32 tells two numbers below 1024 apart in a mean over the ranks.
        done = {"the remainder of global_steps by 1024": engine.global_steps}
        done["global_steps by 1024"] = engine.global_steps // 1024
        scale = {"loss scale": engine.loss_scale()}
        return {**super()._values(), **done, **scale}

    def _check_pass(self) -> None:
        if not self.capstan_engine._in_backward:
            raise wrong("loss.backward(): write engine.backward(loss)")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not self.capstan_engine._in_step:
            raise wrong("optimizer.step(): write engine.step()")
        return super().step(closure)


class _EnginedWorker(_Engined, Worker):
    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        self._check_pass()
        super()._arrive(trained, gradients)


class _EnginedAdder(_Engined, Adder):
    def _take(self, exchange: Exchange, trained: list[Trained]) -> None:
        super()._take(exchange, trained)
        self._hooks += [self._hooked(t) for t in trained]

    def _arrive(
        self, trained: list[Trained], gradients: Sequence[Tensor | None]
    ) -> None:
        self._check_pass()


class DeepSpeedEngine:
    """A model in a run, with what the configuration says of its training.

    Names that it does not have are the model's.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        tree: dict[str, Any],
        scheduler: Any,
    ):
        self._run, self._tree = run, tree
        self._sizes = configuration.Sizes(tree, run.size)
        self._clip = float(tree.get("gradient_clipping", 0))
        self._half = _half_of(tree)
        fp16 = tree.get("fp16", {})
        self._scale = configuration.LossScale(fp16, self.fp16_enabled())
        bf16 = tree.get("bf16", tree.get("bfloat16", {}))
        self._checks = self.fp16_enabled() or (
            self.bfloat16_enabled() and bf16.get("check_overflow", False)
        )
        self._in_backward = self._in_step = False
        self._boundary: bool | None = None  # set_gradient_accumulation_…
        self._norm: float | None = None
        self._loss: Any = 0.0  # the sum over the passes of a step
        self._said_half = False
        self.global_steps = self.global_samples = 0
        self.micro_steps = self.skipped_steps = 0
        self.module = model
        self.device = torch.device(_accelerator.device_name(run.local_rank))
        model.to(self.device)
        if run.is_stale and adder_lacks(type(optimizer)):
            raise wrong(adder_lacks(type(optimizer)))
        rule = _EnginedAdder if run.is_stale else _EnginedWorker
        self.optimizer: Any = mixed(rule, optimizer)
        self.optimizer.capstan_engine = self
        self.lr_scheduler = scheduler
        self.training_dataloader: DataLoader[Any] | None = None
        self.optimizer.capstan_count(1)
        self.optimizer.capstan_open(run, model, None, False)
        run.keep(self)

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("module")
        if module is not None and not name.startswith("__"):
            with contextlib.suppress(AttributeError):
                return getattr(module, name)
        raise AttributeError(
            f"the engine of capstan.deepspeed has no {name}, and neither has "
            "the model: docs/python.md lists the engine's names"
        )

    # What it is

    @property
    def local_rank(self) -> int:
        return self._run.local_rank

    @property
    def global_rank(self) -> int:
        return self._run.rank

    @property
    def world_size(self) -> int:
        return self._run.size

    @property
    def training(self) -> bool:
        return self.module.training

    @property
    def config(self) -> dict[str, Any]:
        return self._tree

    def fp16_enabled(self) -> bool:
        return self._half is torch.float16

    def bfloat16_enabled(self) -> bool:
        return self._half is torch.bfloat16

    def train_batch_size(self) -> int:
        return self._sizes.total

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._sizes.micro

    def gradient_accumulation_steps(self) -> int:
        return self._sizes.passes

    def gradient_clipping(self) -> float:
        return self._clip

    def zero_optimization_stage(self) -> int:
        return self._tree.get("zero_optimization", {}).get("stage", 0)

    def loss_scale(self) -> float:
        return self._scale.scale

    def get_lr(self) -> list[float]:
        """The rate of each parameter group."""
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """Of the last step's mean gradients, before they were clipped; with
        strategy.staleness of this rank's.

        None before the first step, after one that was skipped first, and
        without gradient_clipping, fp16, bf16 and ZeRO.
        """
        return self._norm

    def parameters(self, recurse: bool = True) -> Iterable[nn.Parameter]:
        return self.module.parameters(recurse)

    def train(self, mode: bool = True) -> DeepSpeedEngine:
        self.module.train(mode)
        return self

    def eval(self) -> DeepSpeedEngine:
        return self.train(False)

    # A step

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self._half is None:
            return self.module(*inputs, **named)
        inputs, named = self._full(inputs), self._full(named)
        cast = torch.autocast(self.device.type, self._half)
        if not getattr(cast, "_enabled", True):
            raise wrong(
                f"torch {torch.__version__} has no autocast of "
                f"{self._half} on {self.device.type}: take a newer one"
            )
        with cast:
            return self.module(*inputs, **named)

    forward = __call__

    def _full(self, value: Any) -> Any:
        """VALUE, whose tensors of 16 bits are float32."""
        if isinstance(value, Tensor):
            if value.dtype not in (torch.float16, torch.bfloat16):
                return value
            if not self._said_half:
                self._said_half = True
                self._say(
                    f"inputs of {value.dtype} are made float32, as the weights "
                    "are: autocast rounds what it multiplies"
                )
            return value.float()
        if isinstance(value, dict):
            return {key: self._full(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self._full(item) for item in value])
        return value

    def _say(self, text: str) -> None:
        if self._run.logs and self._run.rank == 0:
            print(f"capstan: {text}", file=sys.stderr)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Does step() act after this batch?"""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._sizes.passes == 0

    def set_gradient_accumulation_boundary(
        self, is_boundary: bool | None
    ) -> None:
        """Says it for the batches from now on; None: it is counted."""
        self._boundary = is_boundary

    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
    ) -> Tensor:
        """Adds the gradients of LOSS, over the batches of a step.

        SCALE_WRT_GAS: LOSS is divided by gradient_accumulation_steps.
        """
        if loss.dim() and loss.numel() != 1:
            raise wrong("engine.backward(loss): LOSS is one number")
        part = loss / self._sizes.passes if scale_wrt_gas else loss
        acts = self.is_gradient_accumulation_boundary()
        self._loss = self._loss + part.detach()
        if acts:
            samples = self._sizes.micro * self._sizes.passes
            self._run.report(self._loss, samples)
            self._loss = 0.0
        within = contextlib.nullcontext() if acts else self._run.no_sync()
        self._in_backward = True
        try:
            with within:
                scaled = part.float() * self.loss_scale()
                scaled.backward(retain_graph=retain_graph)
        finally:
            self._in_backward = False
        return part.detach()

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Updates the weights, after the last batch of a step."""
        if self.is_gradient_accumulation_boundary():
            self._update(lr_kwargs or {})
        self.micro_steps += 1

    def _update(self, lr_kwargs: dict[str, Any]) -> None:
        self.optimizer.synchronize()  # a rank that skipped its backward()
        grads = [
            p.grad
            for group in self.optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        overflow = self._checks and not all(
            bool(grad.isfinite().all()) for grad in grads
        )
        scale = self.loss_scale()
        if not self._scale.update(overflow):
            text = (
                f"a gradient overflows at min_loss_scale {scale:g}: no scale "
                "is small enough; take bf16"
            )
            self._run.fail(text)
            raise Failed(text, "LOSS_SCALE_TOO_LOW")
        if overflow:
            self._skip(scale)
        else:
            self._unscale(grads, scale)
            self._in_step = True
            try:
                self.optimizer.step()
            finally:
                self._in_step = False
            self.optimizer.zero_grad()
            if self.lr_scheduler is not None:
                self.lr_scheduler.step(**lr_kwargs)
        self.global_steps += 1
        self.global_samples += self._sizes.total

    def _skip(self, scale: float) -> None:
        self.skipped_steps += 1
        self.optimizer.zero_grad()
        self._say(
            f"step {self.global_steps + 1} is skipped: its gradients overflow "
            f"at loss scale {scale:g}; it is {self.loss_scale():g} from now on"
        )

    def _unscale(self, grads: list[Tensor], scale: float) -> None:
        """Divides the means by the SCALE, and by what clipping asks for."""
        if not (self._clip or self._half or self.zero_optimization_stage()):
            return
        norms = [torch.linalg.vector_norm(grad) for grad in grads]
        norm = float(torch.stack(norms).norm()) / scale if norms else 0.0
        self._norm = norm
        if self._clip:
            scale *= max(1.0, (norm + 1e-6) / self._clip)
        if scale != 1.0:
            for grad in grads:
                grad.mul_(1 / scale)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has beside the weights and the optimiser."""
        scheduler = self.lr_scheduler
        found: dict[str, Any] = {key: getattr(self, key) for key in _COUNTS}
        found["loss_scale"] = self._scale.state_dict()
        found["lr_scheduler"] = scheduler and scheduler.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key in _COUNTS:
            setattr(self, key, state_dict[key])
        self._scale.load_state_dict(state_dict["loss_scale"])
        if self.lr_scheduler is not None and state_dict["lr_scheduler"]:
            self.lr_scheduler.load_state_dict(state_dict["lr_scheduler"])

    def module_state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
    ) -> bool:
        """Rank 0 writes SAVE_DIR/TAG, which load_checkpoint() of all reads.

        TAG is global_stepN if none is given. CLIENT_STATE comes back from
        load_checkpoint().
        """
        if self._run.rank:
            return True
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        folder = Path(save_dir) / name
        folder.mkdir(parents=True, exist_ok=True)
        found = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "engine": self.state_dict(),
            "client_state": dict(client_state or {}),
        }
        _write(folder / _STATES, found)
        if save_latest:
            beside = Path(save_dir) / f".{_LATEST}"
            beside.write_text(name)
            beside.replace(Path(save_dir) / _LATEST)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Reads what save_checkpoint() has written, on all ranks.

        Returns the file and its client_state; None, None: there is none in
        LOAD_DIR. TAG None: the latest.
        """
        if self._run.is_stale:
            raise wrong(
                "load_checkpoint(): with strategy.staleness other ranks change "
                "the weights meanwhile: load the model before initialize(), or "
                "go on by init_distributed(checkpoint=...)"
            )
        if self._run.position.resumed:
            raise wrong(
                "load_checkpoint(): the run goes on from its own checkpoint "
                "(init_distributed(checkpoint=...)): leave one of the two out"
            )
        if tag is None:
            latest = Path(load_dir) / _LATEST
            if not latest.exists():
                self._say(f"there is no checkpoint in {load_dir}")
                return None, None
            tag = latest.read_text().strip()
        path = Path(load_dir) / str(tag) / _STATES
        found = torch.load(
            path, map_location=self.device, weights_only=False
        )
        if "engine" not in found:
            raise wrong(f"{path} was not written by capstan.deepspeed")
        self.module.load_state_dict(found["module"], load_module_strict)
        self.optimizer._exchange.give_weights()
        if load_module_only:
            return str(path), found["client_state"]
        if load_optimizer_states:
            self.optimizer.load_state_dict(found["optimizer"])
        engine = dict(found["engine"])
        if not load_lr_scheduler_states:
            engine["lr_scheduler"] = None
        self.load_state_dict(engine)
        return str(path), found["client_state"]

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
    ) -> bool:
        """Rank 0 writes the model's state_dict(), rounded to fp16 or bf16 if
        the configuration enables one."""
        if self._run.rank == 0:
            Path(save_dir).mkdir(parents=True, exist_ok=True)
            found = {
                name: value.to(self._half)
                if self._half and value.is_floating_point()
                else value
                for name, value in self.module.state_dict().items()
            }
            _write(Path(save_dir) / save_filename, found)
        return True


def _half_of(tree: dict[str, Any]) -> torch.dtype | None:
    """The type of 16 bits that TREE enables."""
    if tree.get("fp16", {}).get("enabled"):
        return torch.float16
    bf16 = tree.get("bf16", tree.get("bfloat16", {}))
    return torch.bfloat16 if bf16.get("enabled") else None


def _write(path: Path, value: Any) -> None:
    """A reader finds the old file or the whole new one."""
    beside = path.with_name(f".{path.name}")
    torch.save(value, beside)
    with open(beside, "rb") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def _loader(
    run: Run, dataset: Any, collate_fn: Any, batch: int, tree: dict[str, Any]
) -> DataLoader[Any]:
    """A rank's batches of DATASET, of BATCH samples, in an epoch's order."""
    if isinstance(dataset, IterableDataset):
        raise wrong(
            "training_data is an IterableDataset: make a DataLoader of each "
            "rank's part"
        )
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, run.size, run.rank
    )
    return DataLoader(
        dataset,
        batch,
        sampler=sampler,
        collate_fn=collate_fn,
        pin_memory=torch.cuda.is_available(),
        drop_last=tree.get("dataloader_drop_last", False),
    )


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int | None = None,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, Any, DataLoader[Any] | None, Any]:
    """The engine, the optimiser, the data's loader and the scheduler.

    CONFIG, a file or a dictionary, or ARGS.deepspeed_config, says how MODEL is
    trained. OPTIMIZER and LR_SCHEDULER, or functions that make them, win over
    it. Joins the run unless init_distributed() has.
    """
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise wrong(f"initialize({name}=...): a rank has the whole model")
    if not isinstance(model, nn.Module):
        raise wrong("initialize(model=...): expected is a torch.nn.Module")
    tree = _config_of(args, config, config_params)
    if not _is_open():
        init_distributed(config=tree)
    events = tree.get("tensorboard", {})
    if events.get("enabled") and _joined_keys.get("tensorboard") != events:
        raise configuration.refused(
            "tensorboard: the run was joined without it: write "
            "init_distributed(config=...)"
        )
    run = torch_run()
    parameters = model_parameters
    if parameters is None:
        parameters = [p for p in model.parameters() if p.requires_grad]
    parameters = list(parameters)
    if optimizer is None:
        optimizer = configuration.optimizer(tree, parameters)
    elif not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(parameters)
    scheduler = lr_scheduler
    if scheduler is None:
        scheduler = configuration.scheduler(tree, optimizer)
    elif not hasattr(scheduler, "step"):
        scheduler = scheduler(optimizer)
    engine = DeepSpeedEngine(run, model, optimizer, tree, scheduler)
    if training_data is not None:
        engine.training_dataloader = _loader(
            run, training_data, collate_fn, engine._sizes.micro, tree
        )
    loader = engine.training_dataloader
    return engine, engine.optimizer, loader, engine.lr_scheduler
