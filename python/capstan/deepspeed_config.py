# SPDX-License-Identifier: Apache-2.0
"""A configuration of DeepSpeed, for a script's model (docs/job.md)."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import _library
from .errors import ConfigError

# Keys of the run, which init_distributed() takes.
_RUN_KEYS = ("tensorboard", "steps_per_print")
# Keys of a job that DeepSpeed does not have.
_JOB_KEYS = (
    "chief",
    "compare",
    "data",
    "defaults",
    "device",
    "devices",
    "epochs",
    "export",
    "init",
    "metrics",
    "mlflow",
    "model",
    "on_nan",
    "scale_lr",
    "seed",
    "steps",
    "steps_per_epoch",
    "strategy",
    "threads",
    "tf32",
    "timeouts",
    "wire",
    "workers",
)
# What a model of the job would need, so that `capstan schema` checks the rest.
_MODEL = {
    "model": {"type": "mlp", "layers": [2, 2]},
    "data": {"format": "idx", "train": ["images", "labels"]},
    "steps": 1,
}
_SIZES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
_ADAMS = ("adam", "adamw")
_TORCH_OPTIMIZERS = {
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
_TORCH_SCHEDULERS = (
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "MultiStepLR",
    "PolynomialLR",
    "StepLR",
)


def refused(text: str) -> ConfigError:
    return ConfigError(f"DeepSpeed's configuration: {text}", "JOB_INVALID")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose keys occur once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise refused(f'the key "{twice}" occurs twice: write it once')
    return found


def read(config: str | os.PathLike[str] | dict[str, Any]) -> dict[str, Any]:
    """CONFIG, a file or what is in one, without mistakes."""
    tree = config
    if not isinstance(tree, dict):
        try:
            text = Path(tree).read_text()
            tree = json.loads(text, object_pairs_hook=_once)
        except (OSError, ValueError) as error:
            raise refused(f"{config}: {error}") from error
    if not isinstance(tree, dict):
        raise refused(f"{config}: expected is a JSON object")
    tree = json.loads(json.dumps(tree))
    for key in tree:
        if key in _JOB_KEYS:
            raise refused(
                f"{key}: not a key of DeepSpeed: give it to "
                f"init_distributed({key}=...)"
            )
    _refuse_auto("", tree)
    _check(tree)
    return tree


def _refuse_auto(path: str, value: Any) -> None:
    if value == "auto":
        raise refused(
            f'{path}: found "auto", which transformers replaces: write a '
            "value"
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_auto(f"{path}.{key}" if path else key, item)


def _program() -> str:
    """The program that was installed with the library."""
    library = Path(_library.capstan._name)
    if len(library.parts) > 1:  # else the dynamic linker has found it
        folder = library.resolve().parent
        for path in folder / "capstan", folder.parent / "bin" / "capstan":
            if path.is_file():
                return str(path)
    found = shutil.which("capstan")
    if not found:
        raise refused(
            "there is no program capstan beside the library, which checks it: "
            "put it into PATH"
        )
    return found


def _check(tree: dict[str, Any]) -> None:
    """Raises ConfigError for keys and values that a job refuses."""
    with tempfile.TemporaryDirectory(prefix="capstan-deepspeed-") as folder:
        path = Path(folder) / "deepspeed.json"
        path.write_text(json.dumps({**tree, **_MODEL}))
        done = subprocess.run(
            [_program(), "schema", str(path)],
            capture_output=True,
            text=True,
            cwd=folder,
        )
    if done.returncode:
        text = done.stderr[done.stderr.find("error: ") + len("error: ") :]
        raise refused(text.replace(f"{path}: ", "").strip())


def run_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """What init() takes of TREE."""
    return {key: tree[key] for key in _RUN_KEYS if key in tree}


class Sizes:
    """Samples of a step, of a rank's batch, and batches of a step."""

    def __init__(self, tree: dict[str, Any], ranks: int):
        total, micro, passes = (tree.get(key) for key in _SIZES)
        if passes is None:
            passes = total // (micro * ranks) if total and micro else 1
        if micro is None:
            micro = total // (passes * ranks)
        if total is None:
            total = micro * passes * ranks
        if total != micro * passes * ranks or not micro:
            raise refused(
                f"train_batch_size {total} is not "
                f"train_micro_batch_size_per_gpu {micro} * "
                f"gradient_accumulation_steps {passes} * {ranks} ranks"
            )
        self.total, self.micro, self.passes = total, micro, passes


def optimizer(tree: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    """What TREE names, over PARAMETERS."""
    section = tree.get("optimizer")
    if not section or "type" not in section:
        raise refused(
            "it has no optimizer: write optimizer.type, or give initialize() "
            "an optimizer"
        )
    name, given = section["type"], dict(section.get("params", {}))
    for key in "legacy_fusion", "set_grad_none", "bias_correction":
        given.pop(key, None)
    given.pop("max_grad_norm", None)  # 0
    in_torch = given.pop("torch_adam", False)
    decoupled = given.pop("adam_w_mode", True) or name.lower() == "adamw"
    if name.lower() in _ADAMS:
        kind: Any = torch.optim.AdamW if decoupled else torch.optim.Adam
        if not in_torch:
            given.setdefault("weight_decay", 0.0)
    elif name.lower() in _TORCH_OPTIMIZERS:
        kind = _TORCH_OPTIMIZERS[name.lower()]
    else:
        raise refused(
            f"optimizer.type: found {name!r}; allowed: Adam, AdamW, SGD, "
            "Adagrad, RMSprop, or give initialize() an optimizer of torch"
        )
    return kind(parameters, **given)


class Warmup:
    """The rates of DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR.

    A step is an update. The first two begin with warmup_min_lr and go to
    warmup_max_lr; the third multiplies the groups' own rates.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        name: str,
        total_num_steps: int = 0,
        warmup_min_lr: float = 0.0,
        warmup_max_lr: float = 0.001,
        warmup_min_ratio: float = 0.0,
        cos_min_ratio: float = 0.0001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ):
        if name != "WarmupLR" and not total_num_steps:
            raise refused(
                f"scheduler.params.total_num_steps: missing; {name} needs it"
            )
        self._optimizer, self._name = optimizer, name
        self._total, self._steps = total_num_steps, max(2, warmup_num_steps)
        self._low, self._high = warmup_min_lr, warmup_max_lr
        self._least, self._end = warmup_min_ratio, cos_min_ratio
        self._is_log = warmup_type.lower() == "log"
        self._own = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_batch_iteration = last_batch_iteration
        self._set()

    def _part(self) -> float:
        """Of the warm-up, 0 to 1."""
        done = self.last_batch_iteration
        if self._is_log:
            return math.log(done + 1) / math.log(self._steps)
        return done / self._steps

    def _after(self) -> float:
        """What a rate is multiplied by after the warm-up."""
        done = self.last_batch_iteration
        left = max(1, self._total - self._steps)
        if self._name == "WarmupDecayLR":
            return max(0.0, (self._total - done) / left)
        part = min(1.0, (done - self._steps + 1) / left)
        cosine = (1 + math.cos(math.pi * part)) / 2
        return max(0.0, self._end + (1 - self._end) * cosine)

    def get_lr(self) -> list[float]:
        """The groups' rates of the next update."""
        cosine = self._name == "WarmupCosineLR"
        if self.last_batch_iteration < 0:
            return [0.0 if cosine else self._low for _ in self._own]
        warms = self.last_batch_iteration < self._steps
        if cosine:
            part = self._part() if warms else 0
            ratio = self._least + part * (1 - self._least)
            if not warms:
                ratio = self._after()
            return [lr * ratio for lr in self._own]
        if warms:
            part = self._part()
        else:
            part = 1.0 if self._name == "WarmupLR" else self._after()
        return [self._low + (self._high - self._low) * part for _ in self._own]

    def get_last_lr(self) -> list[float]:
        return [float(g["lr"]) for g in self._optimizer.param_groups]

    def _set(self) -> None:
        for group, lr in zip(self._optimizer.param_groups, self.get_lr()):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """The rates are those of the next update, or of the one after
        LAST_BATCH_ITERATION + 1 updates."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_batch_iteration = state_dict["last_batch_iteration"]
        self._set()


def scheduler(tree: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """What TREE names, for OPTIMIZER; None: nothing."""
    section = tree.get("scheduler") or {}
    name = section.get("type", "none")
    given = section.get("params", {})
    for known in "WarmupLR", "WarmupDecayLR", "WarmupCosineLR":
        if name.lower() == known.lower():
            return Warmup(optimizer, known, **given)
    for known in _TORCH_SCHEDULERS:
        if name.lower() == known.lower():
            make: Callable[..., Any] = getattr(
                torch.optim.lr_scheduler, known
            )
            return make(optimizer, **given)
    if name.lower() == "none":
        return None
    names = ", ".join(_TORCH_SCHEDULERS)
    raise refused(
        f"scheduler.type: found {name!r}; allowed: WarmupLR, WarmupDecayLR, "
        f"WarmupCosineLR, {names}, or give initialize() an lr_scheduler"
    )


class LossScale:
    """What a loss is multiplied by, and how overflows change it."""

    def __init__(self, fp16: dict[str, Any], enabled: bool):
        fixed = fp16.get("loss_scale", 0)
        self.is_dynamic = enabled and not fixed
        self.scale = float(fixed or 2.0 ** fp16.get("initial_scale_power", 16))
        if not enabled:
            self.scale = 1.0
        self._window = fp16.get("loss_scale_window", 1000)
        self._hysteresis = self._left = fp16.get("hysteresis", 2)
        self._consecutive = fp16.get("consecutive_hysteresis", False)
        self._least = float(fp16.get("min_loss_scale", 1))
        self._steps = 0  # since the last overflow or doubling

    def update(self, overflow: bool) -> bool:
        """After a step. False: it overflows at the smallest scale."""
        if not self.is_dynamic:
            return True
        if overflow:
            self._steps = 0
            if self._left > 1:
                self._left -= 1
                return True
            if self.scale <= self._least:
                return False
            self.scale = max(self.scale / 2, self._least)
            return True
        self._steps += 1
        if self._consecutive:
            self._left = self._hysteresis
        if self._steps == self._window:
            self._steps, self._left = 0, self._hysteresis
            self.scale *= 2
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "steps": self._steps, "left": self._left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.is_dynamic:  # a fixed one is the configuration's
            self.scale = state_dict["scale"]
            self._steps, self._left = state_dict["steps"], state_dict["left"]
