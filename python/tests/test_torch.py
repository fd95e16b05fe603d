# SPDX-License-Identifier: Apache-2.0
"""capstan.torch against plain torch; processes are started for real."""

import inspect
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import numpy as np

try:
    import torch
    import torch_ranks
    from torch import nn
except ImportError:
    raise unittest.SkipTest("torch is not installed") from None

from processes import (
    DEADLINE,
    SETTINGS,
    TESTS,
    Cluster,
    Local,
    check_adopted,
    check_complete,
    values_of,
)

from capstan.torch import Run


CLUSTERS = {"ps": (1, 2), "all-reduce": (0, 2)}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
# Arguments of optimizers that are on or off.
FLAGS = [
    *("nesterov", "maximize", "amsgrad", "centered", "decoupled_weight_decay"),
    *("foreach", "fused", "capturable", "differentiable"),
]
ADAM = {"optimizer": "AdamW", "settings": {"lr": 0.01, "weight_decay": 0.1}}


def fuses():
    """Does this torch fuse the rules of the CPU?"""
    try:
        torch.optim.Adam([torch.zeros(1, requires_grad=True)], fused=True)
    except RuntimeError:
        return False
    return True


HAS_SCALER = unittest.skipUnless(
    hasattr(torch.amp, "GradScaler"), "this torch scales on GPUs only"
)


def ranks(name, ps, workers=2, **arguments):
    return Cluster("torch_ranks.py", name, ps, workers, **arguments)


def load(state):
    return {k: torch.tensor(v) for k, v in state.items()}


def distance(found, expected):
    a, b = (
        torch.cat([v.flatten().float() for v in load(s).values()])
        for s in (found, expected)
    )
    return float((a - b).norm() / b.norm())


def reference(
    first,
    steps,
    model="mlp",
    optimizer="SGD",
    settings=SGD,
    decay=False,
    split=False,
    clip=None,
    toggles=(),
):
    """One process: the parts of two ranks, gradients and buffers averaged."""
    nets = [torch_ranks.model_of(model, 0) for _ in range(2)]
    for net in nets:
        net.load_state_dict(load(first))
    rule = torch_ranks.optimizer_of(optimizer, nets[0], settings, split)
    scheduler = torch.optim.lr_scheduler.StepLR(rule, 5) if decay else None
    x, y = torch_ranks.data(steps)
    share = torch_ranks.BATCH // 2
    for step in range(steps):
        for rank, net in enumerate(nets):
            torch_ranks.toggle(net, step, toggles)
            if model == "branches":
                net.branch = (step + rank) % 2
            rows = slice(rank * share, (rank + 1) * share)
            net.zero_grad()
            nn.functional.cross_entropy(
                net(x[step, rows]), y[step, rows]
            ).backward()
        for a, b in zip(nets[0].parameters(), nets[1].parameters()):
            found = [p.grad for p in (a, b) if p.grad is not None]
            a.grad = sum(found) / 2 if found else None
        if clip:
            nn.utils.clip_grad_norm_(nets[0].parameters(), clip)
        rule.step()
        if scheduler:
            scheduler.step()
        with torch.no_grad():
            for a, b in zip(nets[0].parameters(), nets[1].parameters()):
                b.copy_(a)
            for a, b in zip(nets[0].buffers(), nets[1].buffers()):
                if a.is_floating_point():
                    a.copy_((a + b) / 2)
                b.copy_(a)
        for net in nets if model == "taught" else ():
            net.teach()
    return {k: v.tolist() for k, v in nets[0].state_dict().items()}


class Equality(unittest.TestCase):
    def check(
        self, steps=200, bound=1e-5, clusters=CLUSTERS, waits=0, **arguments
    ):
        """Both ranks end as plain torch does. WAITS: of the host for late GPUs
        in a step, fewer than these."""
        for name, (ps, workers) in clusters.items():
            with (
                self.subTest(name),
                ranks("train", ps, workers, steps=steps, **arguments) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                zero, one = run.result("worker0"), run.result("worker1")
                self.assertEqual(zero["last"], one["last"])
                known = ("model", "optimizer", "settings", "decay", "clip")
                known += ("toggles",)
                used = {k: v for k, v in arguments.items() if k in known}
                if "own_clip" in arguments:
                    used["clip"] = arguments["own_clip"]
                expected = reference(zero["first"], steps, **used)
                self.assertLess(distance(zero["last"], expected), bound)
                if waits:
                    self.assertLess(zero["waits"], waits)

    def test_mlp(self):
        self.check()

    def test_copies_of_gpus_are_awaited_and_at_once(self):
        """The GPUs are as late as they may be."""
        for model, rule, gpus, waits in (
            ("norm", "worker", 1, 12),  # of 6 gradients, and 4 in all others
            ("norm", "server", 2, 14),
            ("tied", "worker", 2, 12),
            ("branches", "server", 1, 12),
        ):
            with self.subTest(model=model, rule=rule, gpus=gpus):
                self.check(
                    steps=20,
                    clusters={"ps": CLUSTERS["ps"]},
                    model=model,
                    rule=rule,
                    gpus=gpus,
                    waits=waits,
                )

    def test_gradients_that_leave_within_the_pass(self):
        """As those of models that are no single message."""
        keys = {"hooks": True, "steps": 40}
        for rule in "server", "worker":
            self.check(rule=rule, passes=2, set_to_none=False, **keys)
            self.check(rule=rule, model="branches", **keys)
        self.check(rule="worker", own_clip=0.2, **keys)
        self.check(lazy=True, model="norm", **keys)

    def test_tied_weights(self):
        self.check(model="tied")

    def test_batch_norm(self):
        self.check(model="norm")

    def test_scripted_modules(self):
        for rule in "server", "worker":
            self.check(steps=20, model="scripted", rule=rule)

    def test_frozen_parameters(self):
        self.check(model="frozen")

    def test_parameters_that_are_frozen_later_keep_weights_and_state(self):
        names = "0.weight", "0.bias"
        toggles = [
            (step, n, trains)
            for step, trains in ((5, False), (12, True))
            for n in names
        ]
        for rule in "server", "worker":
            self.check(steps=20, rule=rule, toggles=toggles)

    def test_parameters_that_train_later_by_rule_worker(self):
        """First one of those that train goes on, then none of them."""
        toggles = [(5, "0.weight", True), (5, "2.weight", False)]
        toggles += [(12, n, False) for n in ("0.bias", "2.bias")]
        adam = {"optimizer": "Adam", "settings": {"lr": 0.01}}
        for optimizer, bound in (({}, 1e-5), (adam, 5e-4)):
            self.check(
                steps=20,
                rule="auto",
                bound=bound,
                model="frozen",
                frozen="trained",
                toggles=toggles,
                own_clip=0.2,
                **optimizer,
            )

    def test_a_generator_and_a_discriminator_take_turns(self):
        net, optimizer = torch_ranks.gan_of(SGD)
        torch_ranks.gan_steps(net, optimizer, 20)
        expected = {k: v.tolist() for k, v in net.state_dict().items()}
        for name, (ps, workers) in CLUSTERS.items():
            with (
                self.subTest(name),
                ranks("gan", ps, workers, steps=20, settings=SGD) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                for worker in "worker0", "worker1":
                    found = run.result(worker)
                    self.assertLess(distance(found, expected), 1e-5)

    def test_buffers_that_are_assigned_anew(self):
        for rule in "server", "worker":
            self.check(model="running", steps=20, rule=rule)

    def test_buffers_of_other_types(self):
        """They are rank 0's, or averaged, and a resumed run has them."""
        for rule in "server", "worker":
            folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
            keys = {"model": "typed", "steps": 12, "rule": rule}
            self.check(**keys)
            results = []
            for until in 6, 12:
                more = {**keys, "until": until, "checkpoint": folder.name}
                with ranks("train", 1, **more) as run:
                    found = set(run.wait().values())
                    self.assertEqual(found, {0}, run.error("worker1"))
                    results.append(run.result("worker1"))
            self.assertEqual(results[0]["last"], results[1]["first"])
            self.assertEqual(results[1]["last"]["count"], 12)
            folder.cleanup()

    def test_buffers_that_no_step_changes_keep_their_bits(self):
        stale = {"strategy": {"staleness": "inf"}}
        for ps, workers, keys in (1, 3, {}), (1, 3, stale), (0, 2, {}):
            with (
                self.subTest(ps=ps, **keys),
                ranks("constant", ps, workers, **keys) as run,
            ):
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                self.assertEqual(run.result("worker0"), [True])

    def test_a_buffer_that_a_step_leaves_by_chance_is_averaged(self):
        with ranks("chance", 1) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in "worker0", "worker1":
                for mean in run.result(rank):
                    self.assertAlmostEqual(mean, 0.95, 6)

    def test_what_the_run_does_not_carry_is_named(self):
        with ranks("local", 0, 1) as run:
            self.assertEqual(run.wait(), {"worker0": 0}, run.error("worker0"))
            text = '"base" of torch.float16 and 1 more, which the run does not'
            self.assertIn(text, run.error("worker0"))

    def test_copies_of_the_optimiser_go_on_by_themselves(self):
        for rule in "server", "worker":
            with self.subTest(rule), ranks("copies", 1, rule=rule) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                for own, plain in run.result("worker1"):
                    self.assertLess(distance(own, plain), 1e-4)

    def test_what_is_kept_is_as_before_a_step_of_small_gradients(self):
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        with folder, ranks("keeps", 1, steps=6, checkpoint=folder.name) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker1")
            )
            found = run.result("worker1")
            self.assertGreater(len(found), 2)
            self.assertEqual([n for n, _ in found], [n for _, n in found])

    def test_weights_that_are_others_for_a_backward_pass(self):
        for ps in 1, 0:
            with self.subTest(ps=ps), ranks("adversarial", ps, steps=6) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                self.assertEqual(run.result("worker0"), [])
                self.assertEqual(run.results("worker0"), run.results("worker1"))

    def test_a_checkpoint_has_no_weights_of_a_backward_pass(self):
        """Of such a script that sends in backward() none is made."""
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        where = {"dir": folder.name, "every_steps": 3}
        keys = {"steps": 5, "checkpoint": where}
        with folder:
            with ranks("adversarial", 1, **keys) as run:
                self.assertNotIn(0, run.wait().values())
                text = "the checkpoint of step 3 has those of the backward"
                self.assertIn(text, run.error("worker0"))
            shutil.rmtree(folder.name)
            with ranks("adversarial", 1, syncs=False, **keys) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                states = run.results("worker0")
            shutil.rmtree(Path(folder.name, "step-000000005"))
            with ranks("adversarial", 1, **{**keys, "steps": 0}) as run:
                run.wait()
                self.assertEqual(run.results("worker1")[0], states[3])

    def test_no_checkpoint_is_taken_within_a_step(self):
        """By passes of SAM, and by closures of LBFGS; the run's last may be."""
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        sharp = "sharp", "as by first_step() of SAM, and the checkpoint of step 3"
        closures = "closures", "the checkpoint of step 3 has weights within a"
        settings = {"sharp": {}, "closures": {"lr": 0.5, "max_iter": 4}}
        with folder:
            for name, text in sharp, closures:
                keys = {"steps": 4, **settings[name]}
                where = {"dir": f"{folder.name}/{name}", "every_steps": 3}
                with ranks(name, 1, checkpoint=where, **keys) as run:
                    self.assertNotIn(0, run.wait().values())
                    self.assertIn(text, run.error("worker0"))
                where["every_steps"] = 1 << 20
                where["dir"] += "-last"
                with ranks(name, 1, checkpoint=where, **keys) as run:
                    found = set(run.wait().values())
                    self.assertEqual(found, {0}, run.error("worker1"))
                    if name == "sharp":
                        self.assertLess(run.result("worker0"), 1e-5)

    def test_buffers_that_are_assigned_anew_and_held_elsewhere(self):
        for ps, rule in (1, "server"), (0, "worker"):
            keys = {"steps": 4, "rule": rule}
            with self.subTest(ps=ps, **keys), ranks("anew", ps, **keys) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                for rank in 0, 1:
                    worker = f"worker{rank}"
                    for step, found in enumerate(run.results(worker), 1):
                        expected = [[step + 0.5] * 4, [rank + step] * 4]
                        expected += [[-1] * 4, [rank] * 4, [rank] * (step + 1)]
                        self.assertEqual(found, expected)
                    told = run.error(worker).split('"memory" was assigned')
                    self.assertEqual(len(told), 2, run.error(worker))

    def test_frozen_weights_that_the_script_writes(self):
        for rule in "server", "worker":
            self.check(model="taught", steps=20, rule=rule)
        late = {"gpus": 1, "clusters": {"ps": CLUSTERS["ps"]}}
        self.check(model="taught", steps=20, rule="worker", **late)

    def test_writes_past_autograd_into_frozen_weights_stay(self):
        for ps, rule, gpus in (1, "server", 0), (0, "worker", 0), (1, "worker", 1):
            keys = {"steps": 9, "rule": rule, "gpus": gpus}
            with self.subTest(ps=ps, **keys), ranks("own_writes", ps, **keys) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                for worker in "worker0", "worker1":
                    self.assertEqual(run.result(worker), [True] * 10)

    def test_an_optimiser_that_follows_the_loss(self):
        """It is that of all samples, on each rank."""
        settings = {"lr": 0.5, "max_iter": 4}
        for more in {}, {"line_search_fn": "strong_wolfe"}:
            keys = {"steps": 2, **settings, **more}
            with self.subTest(**more), ranks("closures", 1, **keys) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                zero, one = run.result("worker0"), run.result("worker1")
            self.assertEqual(zero, one)
            net = torch_ranks.model_of("mlp", 0)
            net.load_state_dict(load(zero["first"]))
            made = torch.optim.LBFGS(net.parameters(), **settings, **more)
            torch_ranks.closures_steps(net, made, 2, slice(None))
            expected = torch_ranks.state(net)
            self.assertLess(distance(zero["last"], expected), 1e-4)

    def test_unused_parameters(self):
        self.check(model="branches", steps=40)

    def test_reentrant_checkpoints(self):
        self.check(model="nested01", steps=20, rule="server")
        self.check(model="nested012", steps=20, rule="server")
        self.check(model="nested01", steps=20, rule="worker", own_clip=0.2)
        for model, rule in (
            ("nested012", "worker"),
            ("nested001", "server"),
            ("nested001", "worker"),
        ):
            self.check(model=model, steps=20, rule=rule)
        for model, rule in (
            ("nested01", "server"),
            ("nested012", "server"),
            ("nested01", "worker"),
        ):
            self.check(model=model, steps=20, rule=rule, hooks=True)

    def test_accumulation(self):
        self.check(steps=20, passes=2)

    def test_passes_that_the_optimiser_counts(self):
        """A step() is a step of the run, also where it comes early."""
        keys = {"rule": "auto", "steps": 20, "passes": 4, "counts": True}
        short = {"short": [3, 4, 19]}
        for more in {"own_clip": 0.2}, short, {**short, "own_clip": 0.2}:
            for set_to_none in True, False:
                self.check(set_to_none=set_to_none, **keys, **more)

    def test_a_run_of_counted_passes_goes_on_at_a_step(self):
        """As plain torch, with saves within what were steps of passes."""
        keys = {"rule": "worker", "passes": 2, "counts": True}
        for ps, workers in CLUSTERS.values():
            folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
            with folder:
                keys["checkpoint"] = {"dir": folder.name, "every_steps": 3}
                results = []
                for until in 7, 20:
                    more = {"steps": 20, "until": until, **keys}
                    with ranks("train", ps, workers, **more) as run:
                        found = set(run.wait().values())
                        self.assertEqual(found, {0}, run.error("worker1"))
                        results.append(run.result("worker1"))
                first, last = results
                self.assertEqual(first["last"], last["first"])
                expected = reference(first["first"], 20)
                self.assertLess(distance(last["last"], expected), 1e-5)

    def test_a_pass_that_fails_is_taken_again(self):
        for hooks in False, True:
            keys = {"steps": 8, "hooks": hooks}
            with self.subTest(**keys), ranks("retries", 1, **keys) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                self.assertLess(run.result("worker0"), 1e-5)

    def test_a_step_of_a_pass_that_failed(self):
        """With the gradients that it had, or of another in its place."""
        for ps, then, keys in (
            (0, "reads", {"lazy": True}),
            (1, "reads", {"lazy": True}),
            (1, "steps", {"rule": "worker"}),
            (0, "again", {}),
            (1, "again", {"rule": "worker"}),
        ):
            keys["then"] = then
            with self.subTest(ps=ps, **keys), ranks("failing", ps, **keys) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                self.assertLess(run.result("worker0"), 1e-5)

    def test_zero_grad_to_zero(self):
        self.check(steps=20, set_to_none=False)

    def test_lazy(self):
        self.check(steps=20, lazy=True)

    def test_lazy_batch_norm_and_zero_grad(self):
        self.check(steps=20, lazy=True, model="norm", set_to_none=False)

    def test_copies_of_a_lazy_model_have_the_weights_of_the_last_step(self):
        with ranks("lazy_copies", 1, workers=1, steps=12) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            self.assertEqual(run.result("worker0"), [True] * 25)

    def test_clipping_by_the_run(self):
        self.check(steps=40, clip=0.2)

    def test_rule_worker(self):
        for model in "tied", "norm", "branches", "detached":
            self.check(steps=40, rule="worker", model=model, own_clip=0.2)
        nadam = {"optimizer": "NAdam", "settings": {"lr": 0.01}}
        self.check(steps=40, rule="worker", bound=5e-4, **nadam)

    def test_rules_of_the_ps(self):
        adam = {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.02}
        rules = {
            "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
            "Adam": {**adam, "amsgrad": True},
            "AdamW": adam,
            "Adagrad": {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.02},
            "RMSprop": {"lr": 0.005, "momentum": 0.5, "centered": True},
        }
        cases = [
            {"optimizer": name, "settings": settings, "steps": steps, **more}
            for name, settings in rules.items()
            for steps, more in (
                (1, {}),
                (60, {"decay": True}),
                (20, {"split": name != "RMSprop"}),
            )
        ]
        with ranks("several", 0, 1, cases=cases) as run:
            self.assertEqual(run.wait(), {"worker0": 0}, run.error("worker0"))
            results = run.results("worker0")
        for case, found in zip(cases, results, strict=True):
            with self.subTest(**case):
                bound = 1e-5 if case["steps"] == 1 else 5e-4
                expected = reference(found["first"], **case)
                self.assertLess(distance(found["last"], expected), bound)

    def test_each_argument_is_understood_or_refused_by_name(self):
        values = {
            "lr": torch.tensor(0.02).item(),
            "momentum": 0.7,
            "dampening": 0.3,
            "weight_decay": 0.2,
            "betas": [0.5, 0.7],
            "eps": 0.01,
            "alpha": 0.6,
            "lr_decay": 0.2,
            "initial_accumulator_value": 0.3,
            **dict.fromkeys(FLAGS, True),
        }
        bases = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5}}
        cases = []
        for kind in "SGD", "Adam", "AdamW", "Adagrad", "RMSprop":
            names = inspect.signature(getattr(torch.optim, kind)).parameters
            base = {"lr": 0.01, "weight_decay": 0.1, **bases.get(kind, {})}
            for name in names.keys() - {"params", *([] if fuses() else ["fused"])}:
                settings = {**base, name: values[name]}
                case = {"optimizer": kind, "settings": settings, "steps": 4}
                cases.append((name, case))
        with ranks("arguments", 0, 1, cases=[c for _, c in cases]) as run:
            run.wait()
            results = run.results("worker0")
        for (name, case), found in zip(cases, results, strict=True):
            with self.subTest(argument=name, **case):
                if name in ("capturable", "differentiable"):
                    text = f"{case['optimizer']}'s {name}=True"
                    self.assertIn(text, found["refused"])
                    continue
                expected = reference(found["first"], **case)
                self.assertLess(distance(found["last"], expected), 1e-5)

    def test_a_scheduler_that_was_made_before(self):
        for rule in "server", "worker":
            self.check(steps=20, rule=rule, decay="before")

    def test_the_state_is_that_of_plain_torch(self):
        rms = {"lr": 0.005, "momentum": 0.5, "centered": True}
        cases = [
            {"optimizer": "SGD", "settings": {"lr": 0.1}},
            {"optimizer": "SGD", "settings": SGD, "split": True},
            {**ADAM, "split": True},
            {"optimizer": "Adam", "settings": {"lr": 0.01, "amsgrad": True}},
            {"optimizer": "Adagrad", "settings": {"lr": 0.05}},
            {"optimizer": "RMSprop", "settings": rms},
            {**ADAM, "model": "formats"},
            {
                "optimizer": "Adam",
                "settings": {"lr": 0.01, "betas": [0.8, 0.9]},
                "betas": [0.4, 0.7],
                "dtype": "float64",
            },
        ]
        twice = [{**case, "runs": 2} for case in cases]  # the second loads it
        clusters = [(0, twice), *((1, [case]) for case in cases)]
        for ps, run_of in clusters:
            with ranks("several_states", ps, cases=run_of) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                for worker in "worker0", "worker1":
                    found = run.results(worker)
                    for case, apart in zip(run_of, found, strict=True):
                        with self.subTest(ps=ps, **case):
                            self.assertLess(max(apart), 1e-5)

    def check_rare(self, steps, ps, cases, workers=2):
        """CASES of `rare`; returns the optimiser's counts of the last."""
        with ranks("several_rare", ps, workers, cases=cases) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            results = run.results("worker0")
        for case, result in zip(cases, results, strict=True):
            with self.subTest(ps=ps, **case):
                self.assertLess(max(result["apart"]), 1e-5)
        self.assertEqual(case["steps"], steps)
        return results[-1]["steps"]

    def test_an_optimiser_counts_the_steps_of_each_parameter(self):
        adam = {"lr": 0.01, "betas": [0.8, 0.9]}
        dampened = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
        cases = [
            {"optimizer": name, "settings": settings, "steps": 14}
            for name, settings in (
                ("SGD", dampened),
                ("RMSprop", {"lr": 0.005, "momentum": 0.5}),
                ("Adagrad", {"lr": 0.01, "lr_decay": 0.1}),
                ("AdamW", {**adam, "weight_decay": 0.1, "amsgrad": True}),
                ("Adam", {**adam, "weight_decay": 0.02}),
            )
        ]
        counts = [14, 14, 7, 7, 7, 7, 5, 5]
        self.assertEqual(self.check_rare(14, 0, cases), counts)
        for case in cases[0], cases[2], cases[4]:
            self.check_rare(14, 1, [case])
        self.assertEqual(self.check_rare(14, 3, cases[-1:]), counts)
        alone = {**cases[-1], "strategy": {"staleness": "inf"}}
        self.assertEqual(self.check_rare(14, 1, [alone], 1), counts)

    def test_a_resumed_run_goes_on_with_the_counts(self):
        settings = {"lr": 0.01, "betas": [0.8, 0.9]}
        for path in ((1, 3), (0, 1), (2, 0)):
            folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
            with folder:
                case = {
                    "optimizer": "Adam",
                    "settings": settings,
                    "checkpoint": folder.name,
                }
                for ps, steps in zip(path, (7, 14), strict=True):
                    counts = self.check_rare(
                        steps, ps, [{**case, "steps": steps}]
                    )
                self.assertEqual(counts, [14, 14, 7, 7, 7, 7, 5, 5])

    def test_memory_that_is_shared_before_and_after_the_run(self):
        for rule in "server", "worker":
            with ranks("sent", 1, rule=rule) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                self.assertTrue(run.result("worker1"))

    def test_memory_formats(self):
        """channels_last, transposed, parts of a matrix; as of one rank only;
        gradients in another order than their parameters."""
        swapped = {"gradients": "swapped", "set_to_none": False}
        for rule, more in itertools.product(("server", "worker"), ({}, swapped)):
            with self.subTest(rule=rule, **more):
                self.check(steps=20, rule=rule, model="formats", **more)
        self.check(steps=20, rule="server", model="either", lazy=True)
        self.check(steps=20, rule="worker", model="row_major", **swapped)

    def test_a_run_goes_on_with_the_model_in_other_memory_formats(self):
        settings = {"lr": 0.01, "eps": 1e-3, "fused": fuses()}
        adam = {"optimizer": "Adam", "settings": settings}
        models = "channels_last", "row_major", "channels_last"
        for rule, ps in itertools.product(("server", "worker"), (1, 0)):
            folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
            with folder, self.subTest(rule=rule, ps=ps):
                keys = {**adam, "rule": rule, "checkpoint": folder.name}
                results = []
                for model, until in zip(models, (6, 12, 20)):
                    more = {"model": model, "until": until, **keys}
                    with ranks("train", ps, steps=20, **more) as run:
                        found = set(run.wait().values())
                        self.assertEqual(found, {0}, run.error("worker1"))
                        results.append(run.result("worker1"))
                for before, after in itertools.pairwise(results):
                    self.assertEqual(before["last"], after["first"])
                first = results[0]["first"]
                expected = reference(first, 20, models[0], **adam)
                self.assertLess(distance(results[-1]["last"], expected), 1e-5)

    def test_two_ps(self):
        self.check(steps=20, clusters={"two": (2, 2)})


# Optimisers, and their arguments, that a rank may have of its own.
OWN = [
    ("SGD", {"lr": 0.05}),
    ("SGD", SGD),
    ("Adam", {"lr": 0.01}),
    ("AdamW", ADAM["settings"]),
    ("Adadelta", {"lr": 1.0}),
    ("Lamb", {"lr": 0.01}),
    ("Muon", {"lr": 0.01}),
]


class Uneven(unittest.TestCase):
    """run.join()"""

    def plain(self, counts, epochs, kind="Adam", rests=False, **keys):
        net = torch_ranks.uneven_net()
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)
        for epoch in range(epochs):
            for step in range(max(counts)):
                optimizer.zero_grad()
                torch_ranks.uneven_rate(optimizer, step, rests)
                ranks = [r for r, count in enumerate(counts) if step < count]
                for rank in ranks:
                    loss = torch_ranks.uneven_loss(net, 100 * epoch + step, rank)
                    (loss / len(ranks)).backward()
                optimizer.step()
            yield torch_ranks.state(net)

    def test_ranks_may_have_different_numbers_of_batches(self):
        for ps, counts in (1, [3, 7]), (0, [6, 2, 0]), (1, [4, 4]):
            self.check(ps, counts)

    def test_an_optimiser_of_the_ps_takes_the_ranks_with_a_batch(self):
        """RESTS: in a step of those no weight changes, and they go on."""
        for ps, counts, more in (
            (1, [3, 7], {}),
            (2, [6, 2, 0], {"kind": "SGD"}),
            (1, [7, 3], {"kind": "SGD", "rests": True}),
            (0, [7, 3], {"kind": "SGD", "rests": True}),
            (0, [2, 0, 6], {"kind": "RMSprop"}),
            (1, [7, 3], {"lazy": True, "rests": True}),
            (0, [3, 6], {"lazy": True}),
        ):
            self.check(ps, counts, rule="server", **more)

    def check(self, ps, counts, **more):
        keys = {"counts": counts, "epochs": 2, **more}
        expected = list(self.plain(**keys))
        with (
            self.subTest(ps=ps, **keys),
            ranks("uneven", ps, len(counts), **keys) as run,
        ):
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )
            for rank in range(len(counts)):
                found = run.result(f"worker{rank}")
                for epoch, (weights, step) in enumerate(found, 1):
                    self.assertEqual(step, epoch * (max(counts) + 1))
                    self.assertLess(
                        distance(weights, expected[epoch - 1]), 1e-5
                    )

    def test_with_staleness_no_rank_waits(self):
        keys = {"counts": [3, 7], "epochs": 2, "strategy": {"staleness": "inf"}}
        with ranks("uneven", 1, 2, **keys) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))

    def test_what_would_differ_is_an_error_by_name(self):
        for more, text in (
            ({"rule": "server", "skips": True}, "a step without a gradient"),
            ({"decays": True}, "the number of its batches"),
            ({"clips": True}, "gradients were changed after the mean"),
        ):
            with ranks("uneven", 1, 2, counts=[3, 7], epochs=1, **more) as run:
                self.assertNotIn(0, run.wait().values())
                errors = run.error("worker0") + run.error("worker1")
                self.assertIn(text, errors)


class Staleness(unittest.TestCase):
    """Ranks send when they are ready."""

    def check(self, optimizer, settings, bounds=(1, 4, "inf"), **more):
        """One trainer ends as plain torch does, with each staleness."""
        keys = {"optimizer": optimizer, "settings": settings, "steps": 200}
        for staleness in bounds:
            keys.update(strategy={"staleness": staleness}, **more)
            with self.subTest(**keys), ranks("changes", 1, 1, **keys) as run:
                self.assertEqual(run.wait()["worker0"], 0, run.error("worker0"))
                found = run.result("worker0")
                self.assertLess(found["distance"], 1e-6)
                if more.get("habit") == "skips":
                    self.assertEqual(found["updates"], 199)

    def refused(self, code, *texts, optimizer="SGD", settings=SGD, **more):
        """One trainer ends with CODE, and TEXTS on standard error."""
        keys = {"optimizer": optimizer, "settings": settings, "steps": 200}
        keys.update(strategy={"staleness": "inf"}, **more)
        with self.subTest(**keys), ranks("changes", 1, 1, **keys) as run:
            self.assertEqual(run.wait()["worker0"], code, run.error("worker0"))
            for text in texts:
                self.assertIn(text, run.error("worker0"))

    def test_one_trainer_with_an_optimiser_of_its_own_is_plain_torch(self):
        bounds = itertools.cycle((1, 4, "inf"))
        for optimizer, settings in OWN:
            if hasattr(torch.optim, optimizer) or optimizer == "Lamb":
                self.check(optimizer, settings, [next(bounds)])

    def test_one_trainer_with_an_optimiser_of_the_ps_is_plain_torch(self):
        """Its own clipping, and the passes that it adds up, are sent."""
        for optimizer, settings in ("SGD", SGD), ("AdamW", ADAM["settings"]):
            self.check(optimizer, settings, rule="server")

    def test_one_trainer_whose_weights_are_elsewhere_is_plain_torch(self):
        """On late GPUs, and in other orders than the run has them."""
        for rule in "worker", "server":
            self.check("SGD", SGD, ["inf"], rule=rule, model="formats")
            self.check("SGD", SGD, [4], rule=rule, model="tied", gpus=2)

    @HAS_SCALER
    def test_a_step_that_a_scaler_leaves_out_is_no_step_of_the_run(self):
        for rule in "worker", "server":
            more = {"rule": rule, "habit": "scales", "bad": 20}
            self.check("SGD", SGD, ["inf"], **more)

    def test_changes_that_are_not_finite_end_the_run_with_a_name(self):
        for rule in "worker", "server":
            self.refused(1, '"1.0.weight"', "NaN", rule=rule, bad=20)

    def test_steps_that_are_not_finite_are_left_out_if_the_job_says_so(self):
        for rule in "worker", "server":
            keys = {"rule": rule, "bad": 20, "habit": "skips"}
            self.check("SGD", SGD, [4], **keys)
            self.check("Adam", ADAM["settings"], ["inf"], **keys)

    def test_weights_that_are_loaded_later_are_refused(self):
        """Those that the run has brought are not."""
        self.refused(2, '"1.0.weight" was loaded after', habit="loads")

    def test_optimisers_that_keep_a_copy_of_the_weights_are_refused(self):
        for name in "Lookahead", "Slow":
            text = f"{name} keeps a copy of the weights"
            self.refused(2, text, optimizer=name, settings={"lr": 0.1})

    def test_a_last_step_without_gradients_brings_what_all_have_sent(self):
        for rule in "server", "worker":
            with ranks("last", 1, rule=rule, steps=30) as run:
                self.assertEqual(set(run.wait().values()), {0})
                workers = "worker0", "worker1"
                (zero, all_0), (one, all_1) = map(run.result, workers)
                self.assertEqual(all_0, all_1)
                self.assertNotEqual(zero, one)

    def test_whole_numbers_sum_exactly_whoever_is_killed(self):
        for staleness, workers in (4, 2), ("inf", 3):
            folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
            keys = {"staleness": staleness, "checkpoint": folder.name}
            keys.update(steps=1000, seconds=0.02)
            with (
                folder,
                self.subTest(staleness),
                ranks("count", 1, workers, **keys) as run,
            ):
                for step in 20, 10:
                    run.wait_for("worker1", f"step {step}")
                    run.processes["worker1"].kill()
                    run.processes["worker1"].wait()
                    run.restart("worker1", **keys)
                found = run.wait()
                self.assertEqual(set(found.values()), {0}, run.error("worker0"))
                for process in run.processes:
                    run.restart(process, **keys)
                self.assertEqual(run.wait(), found, run.error("worker0"))
                weights, step, _ = run.result("worker0")
                self.assertGreaterEqual(step, 1000)
                self.assertEqual(weights, [step])

    def test_each_rank_goes_on_with_its_own_state(self):
        """After all have ended; then by itself, from the newest checkpoint;
        then without staleness, from rank 0's; and with it again."""
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        where = {"dir": folder.name, "every_steps": 200}
        keys = {"staleness": "inf", "checkpoint": where, "seconds": 0.05}
        def check(names, text):
            for name in names:
                run.wait_for(name, "step 0")
                self.assertIn(text, run.error(name))
            return [run.results(name)[0][2][0] for name in names]

        def again(**more):
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            done = [run.path(f"{n}.out").read_text().count("step") for n in both]
            for process in run.processes:
                run.restart(process, **{**keys, **more})
            return done

        both = "worker0", "worker1"
        with folder, ranks("count", 1, 2, steps=100, **keys) as run:
            done = again(steps=400)
            self.assertEqual(check(both, "with its own state"), done)
            run.wait_for("worker1", "step 60")
            run.processes["worker1"].kill()
            run.processes["worker1"].wait()
            run.restart("worker1", steps=400, **keys)
            (found,) = check(both[1:], "rank 1 goes on with its own state")
            self.assertGreater(found, done[1])
            done = again(steps=420, staleness=0)
            zero, one = check(both, "")
            self.assertEqual(zero, one)
            again(steps=440)
            check(both[1:], "rank 1 goes on with the state of rank 0")
            self.assertEqual(set(run.wait().values()), {0})


    def test_a_rank_goes_on_without_a_state_where_no_checkpoint_is(self):
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        where = {"dir": folder.name, "every_steps": 1 << 20}
        keys = {"staleness": "inf", "checkpoint": where, "seconds": 0.02}
        with folder, ranks("count", 1, 2, steps=400, **keys) as run:
            run.wait_for("worker1", "step 20")
            run.processes["worker1"].kill()
            run.processes["worker1"].wait()
            run.restart("worker1", steps=400, **keys)
            run.wait_for("worker1", "step 0")
            text = "Count of rank 1 goes on without a state"
            self.assertIn(text, run.error("worker1"))
            _, step, own = run.results("worker1")[0]
            self.assertGreaterEqual(step, 20)
            self.assertEqual(own, [])
            self.assertEqual(set(run.wait().values()), {0})


class Shards(unittest.TestCase):
    def test_ranks_share_each_epoch(self):
        for keys in (
            {"num_workers": 0},
            {"num_workers": 2},
            {"strategy": {"staleness": "inf"}},
        ):
            with self.subTest(**keys), ranks("shard", 1, **keys) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                zero, one = run.result("worker0"), run.result("worker1")
                self.assertTrue(zero["isinstance"])
                for a, b in zip(zero["seen"], one["seen"]):
                    self.assertEqual(len(a), len(b))
                    self.assertEqual(set(a) | set(b), set(range(21)))
                self.assertNotEqual(zero["seen"][0], zero["seen"][1])

    def test_a_loop_goes_on_after_a_batch_that_fails(self):
        with ranks("shard", 1, num_workers=2, broken=[8, 9]) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            for rank in range(2):
                for seen in run.result(f"worker{rank}")["seen"]:
                    self.assertEqual(seen[:3], [rank, 2 + rank, 4 + rank])
                    self.assertEqual(seen[3:5], [12 + rank, 14 + rank])

    def test_workers_of_a_loader_may_stay(self):
        with ranks("persistent", 1, epochs=3) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            (zero, many), (one, _) = map(run.result, ("worker0", "worker1"))
        self.assertEqual(many, 2)
        for epoch in map(sorted, map(sum, zip(zero, one), [[]] * 3)):
            self.assertEqual(epoch, list(range(20)))

    def test_an_evaluation_is_no_part_of_the_epoch(self):
        """Two loaders are in step, and resumed so; each loop of epochs goes on
        where the one before ended."""
        for apart in True, False:
            with self.subTest(apart), ranks("evaluates", 1, apart=apart) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                whole = run.result("worker1")
                self.assertEqual([epoch for epoch, _, _ in whole], [0, 1, 2])
                for _, trained, evaluated in whole:
                    self.assertEqual(len(trained), 24)
                    self.assertEqual(evaluated, [4] * 3)
                folder = str(run.path("checkpoint"))
                where = {"dir": folder, "every_steps": 9}
                keys = {"apart": apart, "checkpoint": where}
                with ranks("evaluates", 1, steps=10, **keys) as part:
                    found = set(part.wait().values())
                    self.assertEqual(found, {0}, part.error("worker0"))
                    first, begun = part.result("worker1")
                self.assertEqual(first, whole[0])
                self.assertEqual(begun[1], whole[1][1][:16])
                self.assertEqual(begun[2][0], 4)
                shutil.rmtree(Path(folder, "step-000000010"))
                with ranks("evaluates", 1, **keys) as part:
                    found = set(part.wait().values())
                    self.assertEqual(found, {0}, part.error("worker0"))
                    goes_on, last = part.result("worker1")
                self.assertEqual(goes_on[1], whole[1][1][12:])
                self.assertEqual(goes_on[2], [4] * 2)
                self.assertEqual(last, whole[2])

    def test_shares_of_a_dataset_have_the_same_length(self):
        ranks = [SimpleNamespace(rank=rank, size=2) for rank in range(2)]
        shares = [list(Run.part(rank, list("abcde"))) for rank in ranks]
        self.assertIs(Run.share, Run.part)  # its older name
        self.assertEqual(shares, [list("ace"), list("bda")])

    def test_a_late_rank_goes_on_with_the_present_batch(self):
        batches, epochs = 20, 5
        total = batches * epochs
        cases = [
            {},
            {"num_workers": 2},
            {"lazy": True},
            {"loop": "stream"},
            {"loop": "steps"},
        ]
        for case in cases:
            arguments = {"batches": batches, "epochs": epochs, **case}
            run = ranks("backed", 1, 3, **arguments)
            with self.subTest(**case), run:
                summary = run.path("summary.json")
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker2")
                )
                found = [run.result(f"worker{rank}") for rank in range(3)]
                late = json.loads(summary.read_text())["late"]
                for rank, (taken, wrong, step, sums) in enumerate(found):
                    self.assertEqual((wrong, step), (0, total))
                    own = int(sums) >> 8 * rank & 255
                    missed = late[rank]["missed"]
                    self.assertEqual(taken + missed, total)
                    self.assertEqual(own, taken - late[rank]["late"])
                    self.assertEqual(sums, found[0][3])
                self.assertGreaterEqual(late[2]["missed"], batches)
                sums = int(found[0][3])
                parts = [sums >> 8 * rank & 255 for rank in range(3)]
                self.assertEqual(sum(parts), 2 * total)

    @HAS_SCALER
    def test_statistics_and_a_scaler_go_with_backup_workers(self):
        epochs = 8
        with ranks("backed_norm", 1, 3, epochs=epochs) as run:
            status = set(run.wait().values())
            self.assertEqual(status, {0}, run.error("worker0"))
            found = [run.result(f"worker{rank}") for rank in range(3)]
            for step, updates, weights in found:
                self.assertEqual(step, 10 * epochs)
                self.assertIn(updates, range(9 * epochs, 10 * epochs + 1))
                values = [v.flatten() for v in load(weights).values()]
                self.assertTrue(torch.cat(values).isfinite().all())
                for name, value in weights.items():  # a rank's own else
                    if name != "1.num_batches_tracked":
                        self.assertEqual(value, found[0][2][name])

    def test_a_backup_worker_that_dies_joins_in_the_present_batch(self):
        arguments = {"batches": 20, "epochs": 5}
        with ranks("backed", 1, 3, dies=True, **arguments) as run:
            run.processes["worker2"].wait(DEADLINE)
            run.restart("worker2", **arguments)
            run.wait_for("worker2", "ps 0: over", "err")
            run.path("back").touch()  # it joins a step that is to come
            status = set(run.wait().values())
            self.assertEqual(status, {0}, run.error("worker2"))
            found = [run.result(f"worker{rank}") for rank in range(3)]
            for _, wrong, step, sums in found:
                self.assertEqual((wrong, step), (0, 100))
                self.assertEqual(sums, found[0][3])
            parts = [int(found[0][3]) >> 8 * rank & 255 for rank in range(3)]
            self.assertEqual(sum(parts), 200)

    def test_a_run_that_rank_0_was_late_in_is_resumed(self):
        arguments = {"batches": 20, "epochs": 5, "late": 0}
        checkpoint = {"dir": "checkpoint", "every_epochs": 1}
        arguments["checkpoint"] = checkpoint
        with ranks("backed", 1, 3, steps=50, **arguments) as run:
            for end in 50, 100:
                status = set(run.wait().values())
                self.assertEqual(status, {0}, run.error("worker0"))
                found = [run.result(f"worker{rank}") for rank in range(3)]
                for _, wrong, step, sums in found:
                    self.assertEqual((wrong, step), (0, end))
                    self.assertEqual(sums, found[0][3])
                parts = [int(found[0][3]) >> 8 * rank & 255 for rank in range(3)]
                self.assertEqual(sum(parts), 2 * end)
                for process in run.processes if end == 50 else ():
                    run.restart(process, **arguments)

    def test_what_does_not_go_with_backup_workers_is_named(self):
        texts = {
            "alone": "take run.steps, or with capstan.torch run.epochs",
            "counts": "take run.steps, or with capstan.torch run.epochs",
            "worker": "with optimizer None",
            "keeps": "leave run.keep out",
            "meets": "SyncBatchNorm",
            "accumulates": "leave run.no_sync() out",
            "joins": "run.join() with strategy.backup_workers",
            "both": "two loops of run.shard train at once",
            "leaves": "was left before its end",
            "schedules": "a schedule that counts its calls",
            "epochs": None,
            "follows": None,
        }
        for habit, text in texts.items():
            with self.subTest(habit=habit):
                with ranks("backed_wrongly", 1, 2, habit=habit) as run:
                    status = run.wait()  # the first refused ends them all
                    error = run.error("worker0") + run.error("worker1")
                    found = {status["worker0"], status["worker1"]}
                    expected = {2} if text else {0}
                    self.assertLessEqual(expected, found, error)
                    self.assertNotIn(0 if text else 2, found, error)
                    self.assertIn(text or "", error)

    def test_other_loaders_are_refused_by_name(self):
        with ranks("refused", 0, 1) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )
            found = run.result("worker0")
            names = (
                'IterableDataset by run.shard(loader, epoch, stream="part")',
                "run.shard(stream='half')",
                "run.shard(stream='whole'): allowed are",
                "takes no IterDataPipe",
                "iterator without __len__",
                "Moved that gives another order each time",
                "DistributedSampler of rank 2 of 3",
                "no Doubled, whose own __iter__ it would leave out",
                "this is run.shard(loader, 0), whose batches were trained",
            )
            self.assertEqual(len(found), len(names))
            for name, text in zip(names, found):
                self.assertIn(name, text)

    def check_sharded(self, kind, count, repeated=0):
        """Ranks take COUNT samples in an epoch, of which REPEATED are there
        twice, and end as plain torch on what they took."""
        with ranks("sharded", 1, kind=kind) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            zero, one = run.result("worker0"), run.result("worker1")
        net = torch_ranks.built("mlp", 0)
        net.load_state_dict(load(zero["first"]))
        rule = torch.optim.SGD(net.parameters(), 0.01)
        for both in zip(zero["seen"], one["seen"]):
            self.assertEqual(len(both[0]), len(both[1]))
            taken = [i for seen in both for batch in seen for i in batch]
            self.assertEqual(len(taken), count)
            if repeated is not None:
                self.assertEqual(len(set(taken)), count - repeated)
            for batches in zip(*both):
                rule.zero_grad()
                for batch in batches:
                    x = torch.tensor(batch)[:, None] / torch_ranks.SAMPLES
                    x = x.expand(-1, torch_ranks.INPUTS)
                    (net(x).square().mean() / 2).backward()
                rule.step()
        self.assertEqual(zero["last"], one["last"])
        expected = {k: v.tolist() for k, v in net.state_dict().items()}
        self.assertLess(distance(zero["last"], expected), 1e-5)
        return zero["seen"], one["seen"]

    def test_samplers_are_drawn_alike_on_all_ranks(self):
        for kind, count, repeated in (
            ("subset", 12, 1),  # 11, and the first again
            ("replacement", 22, None),
            ("distributed", 22, 0),
        ):
            with self.subTest(kind):
                zero, one = self.check_sharded(kind, count, repeated)
                if kind != "replacement":
                    self.assertNotEqual(zero[0], zero[1])
                if kind == "subset":
                    taken = {i for seen in zero + one for b in seen for i in b}
                    self.assertEqual(taken, set(range(0, 22, 2)))

    def test_a_sampler_draws_with_its_weights(self):
        zero, one = self.check_sharded("weighted", 30, None)
        self.assertNotIn(0, [i for b in zero[0] + one[0] for i in b])

    def test_ranks_have_whole_batches_of_a_batch_sampler(self):
        # Torch's own BatchSampler is its sampler: each rank has 3 batches.
        self.check_sharded("batches", 18, 0)
        zero, one = self.check_sharded("lists", 24, 3)
        self.assertEqual(zero[0][0], [0, 1, 2])
        starts = 3, 9, 15, 0
        self.assertEqual(one[0], [[i, i + 1, i + 2] for i in starts])

    def test_ranks_share_a_stream(self):
        cases = ("whole", 22), ("workers", 44), ("part", 18), ("pipe", 18)
        for kind, count in cases:
            with self.subTest(kind):
                repeated = None if kind == "workers" else 0
                self.check_sharded(kind, count, repeated)


class Alone(unittest.TestCase):
    def test_a_loop_that_never_reaches_the_run_ends_on_every_rank(self):
        for arguments in {}, {"plain": True}, {"wraps": [1]}:
            with ranks("alone", 1, steps=300, **arguments) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {1}, run.error("worker0"))
                for process in run.processes:
                    text = "100 steps of SGD after init(), and none has met"
                    self.assertIn(text, run.error(process))
                self.assertEqual(run.result("worker0"), [99])

    def test_an_optimiser_beside_the_runs_is_named(self):
        stale = {"strategy": {"staleness": 4}}
        same = "of Adagrad with the run's parameters, and none has met"
        turns = "of Adagrad in turns with the run's"
        for steps, code, last, text, arguments in (
            (300, 1, 99, "100 steps " + same, {"same": True, **stale}),
            (20, 1, 19, "20 steps " + same, {"same": True, **stale}),
            (300, 1, 100, "100 steps " + turns, {}),
            (300, 1, 100, "100 steps " + turns, stale),
            (20, 0, 19, "warning: 19 steps " + turns, {}),
            (110, 0, 109, "by rule server", {"local": True}),
        ):
            with (
                self.subTest(text, **arguments),
                ranks("beside", 1, steps=steps, **arguments) as run,
            ):
                found = set(run.wait().values())
                self.assertEqual(found, {code}, run.error("worker0"))
                self.assertIn(text, run.error("worker0"))
                (reached,) = run.result("worker0")
                self.assertLessEqual(reached, last)  # the other may be first
                if not code:
                    self.assertEqual(reached, last)
                found = run.error("worker0")
                self.assertEqual("in turns" in text, "in turns" in found)

    def test_fewer_steps_before_the_run_are_the_scripts_own(self):
        with ranks("alone", 1, steps=99) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))


class Spawned(unittest.TestCase):
    """A script that starts its ranks by torch.multiprocessing.spawn()."""

    def results(self, **arguments):
        ranks = str(TESTS / "torch_ranks.py")
        done = subprocess.run(
            [sys.executable, ranks, "spawns", json.dumps(arguments)],
            env={**os.environ, **SETTINGS},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return [v for line in done.stdout.splitlines() for v in values_of(line)]

    def test_its_ranks_end_as_plain_torch(self):
        for ps in 1, 0:
            with self.subTest(ps=ps):
                keys = {"name": "train", "rule": "worker", "steps": 20}
                zero, one = self.results(ps=ps, size=2 + ps, **keys)
                self.assertEqual(zero, one)
                expected = reference(zero["first"], 20)
                self.assertLess(distance(zero["last"], expected), 1e-5)

    def test_one_rank_with_staleness_ends_as_plain_torch(self):
        keys = {"name": "changes", "optimizer": "SGD", "settings": SGD}
        keys.update(steps=50, strategy={"staleness": "inf"})
        (found,) = self.results(ps=1, size=2, **keys)
        self.assertLess(found["distance"], 1e-6)


class Compiled(unittest.TestCase):
    def check(self, ps, workers, **keys):
        with (
            self.subTest(ps=ps, **keys),
            ranks("compiled", ps, workers, steps=9, **keys) as run,
        ):
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            for rank in range(workers):
                self.assertLess(distance(*run.result(f"worker{rank}")), 1e-5)

    def test_what_is_compiled_meets_the_run_as_what_is_not(self):
        """The model, the backward pass, and a whole step of the optimiser."""
        stale = {"strategy": {"staleness": "inf"}}
        for ps, workers, rule, more in (
            (1, 2, "worker", {}),
            (0, 2, "server", {}),
            (1, 1, "worker", stale),
        ):
            self.check(ps, workers, rule=rule, backend="eager", **more)

    @unittest.skipUnless(shutil.which("c++"), "there is no compiler")
    def test_what_is_compiled_by_the_default_backend(self):
        self.check(0, 1, rule="server", backend="inductor")


class Resuming(unittest.TestCase):
    def test_a_resumed_run_goes_on_within_its_epoch(self):
        with ranks("shard", 1) as whole:  # an epoch has 4 steps
            whole.wait()
            epochs = whole.result("worker1")["seen"]
            folder = str(whole.path("checkpoint"))
            for steps, expected in (
                (5, [epochs[0], epochs[1][:3]]),
                (8, [epochs[1][3:]]),
            ):
                keys = {"steps": steps, "checkpoint": folder}
                with ranks("shard", 1, **keys) as run:
                    found = set(run.wait().values())
                    self.assertEqual(found, {0}, run.error("worker0"))
                    seen = run.result("worker1")["seen"]
                    self.assertEqual(seen, expected)

    def test_each_kind_of_order_goes_on_within_its_epoch(self):
        for kind in ("weighted", "lists", "distributed", "whole", "workers"):
            with self.subTest(kind), ranks("sharded", 1, kind=kind) as whole:
                whole.wait()
                expected = whole.result("worker1")
                first, second = expected["seen"]
                folder = str(whole.path("checkpoint"))
                at = len(first) + 2
                for steps, seen in (
                    (at, [first, second[:2]]),
                    (len(first) * 2, [second[2:]]),
                ):
                    keys = {"steps": steps, "checkpoint": folder, "kind": kind}
                    with ranks("sharded", 1, **keys) as run:
                        found = set(run.wait().values())
                        self.assertEqual(found, {0}, run.error("worker0"))
                        result = run.result("worker1")
                        self.assertEqual(result["seen"], seen)
                self.assertEqual(result["last"], expected["last"])

    def test_a_model_goes_on_in_other_wrappers_by_the_same_names(self):
        modules, parts = ("0", "1", "2", "module"), ("bias", "weight")
        names = [f"{m}.{p}" for m in modules for p in parts]
        buffers = "num_batches_tracked", "running_mean", "running_var"
        names += [f"1.{b}" for b in buffers]
        with tempfile.TemporaryDirectory(prefix="capstan-python-") as folder:
            last = None
            for steps, how in enumerate(
                ("compiled", "plain", "parallel", "part"), 2
            ):
                keys = {"steps": steps, "checkpoint": folder}
                with ranks("wrapped_as", 0, 1, how=how, **keys) as run:
                    found = run.wait()
                    self.assertEqual(
                        found, {"worker0": 0}, run.error("worker0")
                    )
                    first, then = run.results("worker0")
                self.assertIn(last, (None, first))
                self.assertNotEqual(first, then)
                last = then
                manifest = Path(folder, f"step-{steps:09}/manifest.json")
                saved = json.loads(manifest.read_text())["parameters"]
                found = sorted(p["name"] for p in saved)
                self.assertEqual(found, sorted(names))

    def test_a_complete_run_takes_no_step_when_started_again(self):
        for rule in "server", "worker":
            check_complete(self, "torch_ranks.py", 1, rule=rule)

    def test_a_step_without_a_gradient_saves_what_is_kept(self):
        """The gradients of the others are 4, and that one moves nothing."""
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        where = {"dir": folder.name, "every_steps": 1}
        with folder, ranks("idle", 1, steps=4, checkpoint=where) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            momentum = 0.9 * (0.9 * 4 + 4) + 4
            for values in run.result("worker1"):
                for value in np.ravel(values):
                    self.assertAlmostEqual(value, momentum, places=5)

    def test_a_run_that_keeps_its_state_ends_with_the_same_bits(self):
        for rule, ps in itertools.product(("server", "worker"), (1, 0)):
            with (
                self.subTest(rule=rule, ps=ps),
                ranks("resumable", ps, rule=rule, steps=15) as whole,
            ):
                whole.wait()
                expected = whole.result("worker1")
                folder = str(whole.path("checkpoint"))
                for steps in 8, 15:  # an epoch has 6
                    keys = {"rule": rule, "steps": steps, "checkpoint": folder}
                    with ranks("resumable", ps, **keys) as run:
                        found = set(run.wait().values())
                        self.assertEqual(found, {0}, run.error("worker0"))
                        last = run.result("worker1")
                self.assertEqual(last, expected)


KILLS = int(os.environ.get("CAPSTAN_TEST_KILLS", "3"))


class Rewinds(unittest.TestCase):
    def test_a_script_goes_back_with_its_run(self):
        sets = ["checkpoint.every_steps=40"]
        keys = {"epochs": 8 + 3 * KILLS, "pause": 0.002}
        cases = (1 + -(-KILLS // 4), KILLS), (0, -(-KILLS // 10))
        for rule, (ps, kills) in itertools.product(("server", "worker"), cases):
            with self.subTest(rule=rule, ps=ps):
                whole = Local(
                    "torch_ranks.py", "rewound", min(ps, 2), 0, sets,
                    rule=rule, **keys,
                )
                self.assertEqual(whole.status, 0, whole.log)
                killed = Local(
                    "torch_ranks.py", "rewound", ps, kills, sets, rule=rule,
                    **keys,
                )
                self.assertEqual(killed.status, 0, killed.log)
                self.assertIn(f"went back {kills} time", killed.log)
                self.assertEqual(sorted(whole.results), sorted(killed.results))

    def test_it_goes_back_to_copies_in_memory(self):
        sets = ["checkpoint=null", "strategy.replicas=1", "strategy.buddy_steps=20"]
        keys = {"epochs": 60, "pause": 0.003}
        drill = "--kill-every", "3", "--kill", "ps"
        for rule in "server", "worker":
            with self.subTest(rule=rule):
                whole, killed = (
                    Local(
                        "torch_ranks.py", "rewound", 2, 0, sets, flags, rule=rule,
                        **keys,
                    )
                    for flags in ((), drill)
                )
                self.assertEqual((whole.status, killed.status), (0, 0), killed.log)
                self.assertIn("resuming from the copies in memory", killed.log)
                self.assertEqual(sorted(whole.results), sorted(killed.results))

    def test_it_trains_on_without_a_chief_that_coordinates(self):
        for keys in {}, {"rule": "worker"}, {"keeps": False, "own": True}:
            keys = {"epochs": 40, "pause": 0.003, **keys}
            with self.subTest(**keys):
                check_adopted(self, "torch_ranks.py", "led_rewound", **keys)

    def test_a_script_that_cannot_ends_and_says_so_at_its_start(self):
        for keys in {"keeps": False}, {"own": True}:
            with self.subTest(**keys):
                run = Local(
                    "torch_ranks.py", "rewound", 2, 1,
                    ["checkpoint.every_steps=100"], epochs=100, pause=0.01,
                    **keys,
                )
                self.assertEqual(run.status, 138, run.log)
                said = run.log.index("does not go back in place")
                self.assertLess(said, run.log.index("chief: checkpoint /"))


class Joining(unittest.TestCase):
    def test_a_rank_that_joins_takes_the_steps_of_the_others(self):
        with ranks("joining", 1, 2, chief=1) as run:
            late = run.processes["worker1"]
            self.assertEqual(late.wait(60), -signal.SIGKILL)
            run.restart("worker1")
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            whole = run.result("worker0")["seen"]
            part = run.result("worker1")
            self.assertEqual(whole, [e for e in range(12) for _ in range(8)])
            self.assertTrue(part["joined"])
            self.assertNotIn("has not asked where", run.error("worker1"))
            self.assertEqual(part["seen"], whole[-len(part["seen"]) :])

    def test_a_rank_that_joins_by_another_rule_is_turned_away_alone(self):
        with ranks("joining", 1, 2, chief=1) as run:
            late = run.processes["worker1"]
            self.assertEqual(late.wait(60), -signal.SIGKILL)
            run.restart("worker1", rule="worker")
            expected = {"chief0": 0, "ps0": 0, "worker0": 0, "worker1": 2}
            self.assertEqual(run.wait(), expected)
            found = run.error("worker1")
            self.assertIn("the chief dismissed this process", found)
            self.assertIn("has the optimizer None with 1 groups", found)


class Errors(unittest.TestCase):
    def check(self, text, name="train", own=2, ps=1, **arguments):
        """OWN None: every rank fails, with 2 unless it is told of another's
        failure before."""
        with ranks(name, ps, **arguments) as run:
            found = run.wait()
            if own is None:
                self.assertIn(2, found.values())
                self.assertLessEqual(set(found.values()), {1, 2})
            else:
                self.assertEqual(found["worker1"], own, run.error("worker1"))
            self.assertNotIn(0, found.values())
            for process in run.processes:
                self.assertIn(text, run.error(process))

    def test_a_changed_gradient(self):
        for hooks in False, True:
            text = "was changed after backward()"
            self.check(text, steps=9, do="clip", hooks=hooks)

    def test_a_parameter_that_was_frozen_at_the_start(self):
        for rule in "server", "worker":
            with self.subTest(rule), ranks("thaws", 1, rule=rule) as run:
                self.assertEqual(run.wait()["worker1"], 2)
                self.assertEqual(run.result("worker1"), [3, 0])
                for process in run.processes:
                    found = run.error(process)
                    self.assertIn('"0.weight" was frozen at Distr', found)
                    self.assertIn("init(frozen='trained')", found)

    def test_what_trains_later_by_rule_server(self):
        keys = {"frozen": "trained", "rule": "server"}
        with ranks("train", 1, 1, steps=9, **keys) as run:
            self.assertEqual(run.wait()["worker0"], 2)
            self.assertIn("init(frozen='trained') takes", run.error("worker0"))

    def test_a_gradient_that_is_written_while_it_is_sent(self):
        text = "was changed after step(), and with lazy=True"
        self.check(text, steps=9, do="zero_later", lazy=True)

    def test_weights_that_a_pass_reads_once_the_next_may_be_in_them(self):
        keys = {"steps": 3, "model": "detached", "hooks": True}
        with ranks("train", 1, **keys) as run:
            found = run.wait()
            self.assertEqual(found["worker1"], 1, run.error("worker1"))
            told = run.error("worker0") + run.error("worker1")
        self.assertIn("modified by an inplace operation", told)
        self.assertIn("takes backward() in run.no_sync(), and", told)

    def test_a_gradient_that_is_dropped(self):
        self.check("was changed after backward()", steps=9, do="drop")

    def test_weights_that_are_written_past_autograd(self):
        """An element within 128 steps, a parameter in 4, all at once."""
        for ps, what, of, steps, keys in (
            (1, "element", "1.weight", 128, {}),
            (0, "element", "2.weight", 128, {"how": "numpy"}),
            (0, "parameter", "0.bias", 4, {}),
            (1, "parameter", "2.weight", 4, {"how": "numpy"}),
            (1, "clamp", "", 1, {}),
            (0, "parameter", "1.weight", 128, {"where": "step"}),
            (1, "gradients", "", 1, {"where": "step"}),
            (0, "gradients", "", 1, {"where": "step"}),
            (1, "gradients", "", 99, {"where": "step", "how": "columns"}),
        ):
            keys = {"where": "backward", "what": what, "of": of, **keys}
            with self.subTest(ps=ps, **keys), ranks("writes", ps, **keys) as run:
                self.assertEqual(
                    run.wait()["worker1"], 2, run.error("worker1")
                )
                self.assertLessEqual(run.result("worker1"), steps)
                for process in run.processes:
                    found = run.error(process)
                    self.assertRegex(found, f'"{of or ".*"}" was changed')
                    self.assertIn("rule='worker'", found)
                    told = "the gradient of" in found
                    self.assertEqual(told, what == "gradients", found)

    def test_other_rates_by_rule_worker(self):
        text = "the ranks' optimisers differ: lr of group 0 is"
        self.check(text, own=1, steps=9, do="rate", rule="worker")

    def test_weights_of_a_rank_alone_by_rule_worker(self):
        for ps in 1, 0:
            text = "the ranks' weights differ: the sizes in a part of \""
            keys = {"do": "write", "rule": "worker"}
            self.check(text, own=1, steps=9, ps=ps, **keys)

    def test_groups_that_hold_other_parameters_later(self):
        text = "in optimizer.param_groups have changed since"
        for do, rule in (
            ("take_out", "server"),
            ("put_in", "server"),
            ("put_in", "worker"),
        ):
            more = "; to stop some" if rule == "server" else "\n"
            here = f"{text} DistributedOptimizer: add them before it{more}"
            with self.subTest(do, rule=rule):
                self.check(here, steps=9, do=do, rule=rule)

    def test_a_state_that_the_ps_have(self):
        for do in "clear_state", "set_state", "read_state", "use_state":
            with self.subTest(do):
                text = "by rule server the optimiser's state is on the ps"
                self.check(text, steps=9, do=do)
        self.check(text, steps=9, do="zero_state", **ADAM)
        text = "or a copy of the optimiser, between backward() and step()"
        self.check(text, steps=9, do="copy_optimizer")

    def test_a_checkpoint_with_other_numbers_of_the_optimiser(self):
        """As those of older packages, it names what to do."""
        folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        with folder:
            keys = {"rule": "worker", "checkpoint": folder.name}
            with ranks("train", 1, steps=3, **keys) as run:
                self.assertEqual(set(run.wait().values()), {0})
            text = "it was written by an older capstan.torch or capstan.keras"
            self.check(text, own=None, steps=6, **ADAM, **keys)

    def test_other_rules(self):
        self.check("has the optimizer None with 1 groups", "other_rule")

    def test_a_second_backward_pass(self):
        for hooks in False, True:
            text = "has a second gradient in this step"
            self.check(text, steps=9, do="again", hooks=hooks)
        for passes, counts, hooks in (1, False, False), (2, True, True):
            keys = {"rule": "worker", "passes": passes, "counts": counts}
            keys["hooks"] = hooks
            text = "(..., backward_passes_per_step=) how many"
            self.check(text, steps=9, do="again", **keys)
        keys = {"passes": 2, "counts": True, "steps": 9}
        early = {"rule": "worker", "short": [3], "do": "clip"}
        self.check("optimizer.synchronize() before", **keys, **early)
        self.check("is of rule 'worker'", own=None, **keys, rule="server")

    def test_what_else_follows_a_pass_that_failed(self):
        text = "has sent gradients of step 4, and optimizer.step() has not"
        for then, ps, keys in (
            ("waits", 0, {}),
            ("waits", 1, {"clip": 1.0}),
            ("ends", 0, {"rule": "worker"}),
            ("goes on", 1, {"clip": 1.0}),
        ):
            with self.subTest(then=then, ps=ps):
                self.check(text, "failing", None, ps=ps, then=then, **keys)

    def test_reentrant_checkpoints_that_take_a_step_apart(self):
        cases = ("nested012", "worker"), ("nested001", "server")
        for model, rule in (*cases, ("nested001", "worker")):
            keys = {"model": model, "rule": rule, "hooks": True}
            with self.subTest(**keys):
                self.check("use_reentrant", own=None, steps=9, **keys)

    def test_a_replaced_parameter(self):
        self.check("has other memory than at the start", steps=9, do="replace")
        for do, rule, ps in (
            ("share", "server", 1),
            ("share", "worker", 0),
            ("send", "server", 0),
            ("resize", "server", 1),
        ):
            keys = {"do": do, "rule": rule, "ps": ps, "model": "norm"}
            with self.subTest(**keys):
                text = '" would get other memory than the run has'
                self.check(text, steps=9, **keys)
        for rule in "server", "worker":
            with self.subTest(rule):
                text = 'parameter "0.weight" is another than at the start'
                self.check(text, steps=9, do="assign", rule=rule)

    def test_what_there_is_in_place_of_a_process_group(self):
        for call in "barrier", "all_reduce", "init", "ddp", "own":
            with (
                self.subTest(call),
                ranks("without_group", 0, 1, call=call) as run,
            ):
                self.assertEqual(run.wait(), {"worker0": 1})
                found = run.error("worker0")
                self.assertIn("Error: ", found)  # torch's own
                self.assertEqual(
                    found.count("capstan: this run has no process group"),
                    call != "own",
                    found,
                )

    def test_calls_of_a_script_that_do_not_fit_its_run(self):
        for call, code, text in (
            ("size", 2, "(world_size=3) in a run of 1 trainers"),
            ("rank", 2, "(rank=1) in a run of 1 trainers"),
            ("ddp", 2, "the model is in DistributedDataParallel"),
            ("barrier", 2, "a store in backend capstan"),
            ("before", 2, "a process group is there already"),
            ("none", 1, "raise KeyError(\"a script's own error\")"),
        ):
            with (
                self.subTest(call),
                ranks("wrong_group", 0, 1, call=call) as run,
            ):
                self.assertEqual(run.wait(), {"worker0": code})
                self.assertIn(text, run.error("worker0"))
                if call == "before":  # and it stays
                    self.assertEqual(run.result("worker0"), "gloo")
                    self.assertIn("are not the run's", run.error("worker0"))

    def test_modules_that_meet_other_ranks_themselves(self):
        for how, text in (
            ("ddp", "the model is in DistributedDataParallel"),
            ("stale", "the model has SyncBatchNorm"),
            ("synchronous", ""),
        ):
            with self.subTest(how), ranks("meets", 1, 2, how=how) as run:
                found = run.wait()["worker0"]
                self.assertEqual(found, 2 if text else 0)
                self.assertIn(text, run.error("worker0"))

    def test_float64(self):
        self.check("torch.float64; expected is a dense tensor", "double")

    def test_elements_that_share_memory(self):
        for how, text in (
            ("expanded", 'elements of tensor "2.bias" share memory'),
            ("windows", 'elements of tensor "more" share memory'),
            ("buffer", 'elements of tensor "more" share memory'),
            ("gradient", 'elements of the gradient of tensor "2.bias" share'),
            ("two", 'tensors "a" and "b" share memory'),
            ("lazy", 'tensor "more.weight" is of a lazy module'),
        ):
            with self.subTest(how), ranks("shared", 0, 1, how=how) as run:
                self.assertEqual(run.wait(), {"worker0": 2})
                self.assertIn(text, run.error("worker0"))

    def test_an_optimiser_without_a_rule_on_the_ps(self):
        self.check("rule server knows SGD", "unknown_rule")

    def test_a_state_that_is_loaded_too_late(self):
        for keys in {}, {"strategy": {"staleness": "inf"}}:
            text = "load it before DistributedOptimizer"
            self.check(text, "loads_state", **keys)

    def test_a_state_in_parts(self):
        zero = {"zero_optimization": {"stage": 1}}
        text = "a part of the state"
        self.check(text, "states", own=None, ps=0, **ADAM, **zero)

    def test_weights_that_are_loaded_too_late(self):
        self.check("load weights before", "loads_late")

    def test_a_script_without_a_distributed_optimizer(self):
        self.check("wrap the optimiser in DistributedOptimizer", "forgets")

    def test_a_second_optimiser(self):
        self.check("say in init(optimizers=)", "two_optimizers")

    def test_steps_that_a_rank_cannot_leave_out_by_itself(self):
        text = "on_nan \"skip\" takes rule 'server' or strategy.staleness"
        keys = {"rule": "worker", "on_nan": "skip"}
        self.check(text, own=None, steps=9, **keys)

    @HAS_SCALER
    def test_a_scaler_that_was_not_told(self):
        self.check("was not told of the scaler", "unknown_scaler")


@HAS_SCALER
class Scaling(unittest.TestCase):
    def test_an_overflow_of_one_rank_changes_nothing(self):
        hows = {"rule": "server"}, {"rule": "worker"}, {"skips": True}
        for (ps, workers), how in itertools.product(CLUSTERS.values(), hows):
            with (
                self.subTest(ps=ps, **how),
                ranks("overflow", ps, workers, **how) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                zero, one = run.result("worker0"), run.result("worker1")
                self.assertEqual(zero, one)
                self.assertNotEqual(zero[0], zero[1])
                self.assertEqual(zero[1], zero[2])
                self.assertNotEqual(zero[2], zero[3])


class Costs(unittest.TestCase):
    def test_gradients_and_weights_are_not_copied(self):
        with ranks("passes", 1) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )
            result = run.result("worker0")
            plain, shared = result["operations"]
            self.assertEqual(plain, shared)
            self.assertFalse(result["moved"])


class Killed(unittest.TestCase):
    def test_sigterm_at_all_leaves_a_checkpoint(self):
        asynchronous = {"strategy": {"type": "ps", "staleness": "inf"}}
        for rule, ps, chief, more in (
            ("worker", 1, 0, {}),
            ("worker", 1, 1, {}),
            ("worker", 0, 0, {}),
            ("server", 1, 1, {}),
            ("server", 1, 1, asynchronous),
        ):
            arguments = {"rule": rule, "seconds": 0.1, **more}
            with (
                self.subTest(ps=ps, chief=chief, **arguments),
                ranks("sleeping", ps, 2, chief=chief, **arguments) as run,
            ):
                run.wait_for("worker0", "step")  # each has kept something
                run.wait_for("worker1", "step")
                for process in reversed(run.processes.values()):
                    process.send_signal(signal.SIGTERM)
                lead = "chief0" if chief else "worker0"
                self.assertLessEqual(
                    set(run.wait().values()), {138, 143}, run.error(lead)
                )
                saved = list(run.path("checkpoint").glob("step-*/manifest*"))
                self.assertEqual(len(saved), 1, run.error(lead))
                kept = json.loads(saved[0].read_text())["kept"]
                self.assertGreaterEqual(len(kept), 2, run.error(lead))

    def test_a_restart_does_not_wait_for_the_orphans_of_a_kill(self):
        with ranks("sleeping", 0, 1, seconds=0.5) as run:
            run.wait_for("worker0", "step")
            run.processes["worker0"].send_signal(signal.SIGKILL)
            run.processes["worker0"].wait()
            run.restart("worker0", seconds=0, samples=64)
            self.assertEqual(run.wait(), {"worker0": 0}, run.error("worker0"))


class Distributed(unittest.TestCase):
    def test_a_script_that_averages_by_hand_trains_with_the_others(self):
        for ps in 1, 0:
            run = Cluster("torch_ranks.py", "by_hand", ps, 2)
            with self.subTest(ps=ps), run:
                ended = set(run.wait().values())
                self.assertEqual(ended, {0}, run.error("worker0"))
                for rank in range(2):
                    found = run.result(f"worker{rank}")
                    self.assertEqual(found, [[0.5], [0.5]])

    def test_the_calls_of_torch_distributed(self):
        for ps in 1, 0:
            run = Cluster("torch_ranks.py", "distributed", ps, 2, with_ps=ps)
            with self.subTest(ps=ps), run:
                ended = set(run.wait().values())
                self.assertEqual(ended, {0}, run.error("worker0"))
                for rank in range(2):
                    found, expected, refused = run.result(f"worker{rank}")
                    self.assertEqual(found, expected)
                    self.assertIn("send in backend capstan", refused[0])
                    self.assertIn("allowed are sum, mean", refused[1])
                told = run.error("worker0")
                self.assertIn("init_process_group(nccl): the default", told)
                self.assertIn("are the default group already", told)

    def test_tensors_of_a_gpu_go_by_a_copy(self):
        with Cluster("torch_ranks.py", "late_collectives", 0, 2) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(2):
                found = run.result(f"worker{rank}")
                self.assertEqual(found, [True] * 6)

    def test_the_default_group_opens_no_port_before_a_collective(self):
        with Cluster("torch_ranks.py", "group_ports", 1, 2) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(2):
                found = run.result(f"worker{rank}")
                backend, *training, after, is_there = found
                self.assertEqual(backend, "capstan")
                self.assertEqual(len(set(training)), 1, training)
                self.assertGreater(after, training[0])
                self.assertFalse(is_there)

    def test_calls_that_are_not_carried_are_refused_by_name(self):
        names = {
            "recv of any": "recv in",
            "isend": "send in",
            "irecv": "recv in",
            "send_object_list": "send in",
            "recv_object_list": "recv in",
            "new_group": "new_group([0]) in",
            "new_subgroups": "new_group([0]) in",
            "new_subgroups_by_enumeration": "new_group([0]) in",
            "set_timeout": "set_timeout, as timeouts.step",
            "op BAND": "a reduction of torch.int64",
            "op BOR": "a reduction of torch.int64",
            "op BXOR": "a reduction of torch.int64",
            "op PREMUL_SUM": "a reduction of torch.float32",
            "init_device_mesh": "new_group([0]) in",
        }
        with Cluster("torch_ranks.py", "refused_calls", 0, 2) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(2):
                found, unknown = run.result(f"worker{rank}")
                self.assertEqual(unknown, [])
                for name, text in found.items():
                    with self.subTest(name):
                        expected = names.get(name, f"{name} in")
                        self.assertIn(f"ConfigError: {expected}", text)


if __name__ == "__main__":
    unittest.main()
