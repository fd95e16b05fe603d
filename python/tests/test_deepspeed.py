# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's names, capstan.deepspeed."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import frameworks
from processes import DEADLINE, PROGRAM, SETTINGS, TESTS, Cluster

frameworks.need("torch")

import torch  # noqa: E402

import capstan.deepspeed as deepspeed  # noqa: E402
from capstan import deepspeed_config as configuration  # noqa: E402

ADAM = {"type": "Adam", "params": {"lr": 0.5}}


def has_fp16():
    """Has this torch an autocast of the CPU to float16?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.autocast("cpu", torch.float16)._enabled


HAS_FP16 = unittest.skipUnless(has_fp16(), "this torch has no such autocast")


class DeepSpeed(frameworks.Framework, unittest.TestCase):
    program = "deepspeed_ranks.py"
    how = "deepspeed"
    example = "deepspeed_images.py"
    example_arguments = ("--samples", "512", "--epochs", "1")
    plain_modules = {
        "deepspeed/__init__.py": "from capstan.deepspeed import *",
        "deepspeed/accelerator.py": (
            "from capstan.deepspeed import get_accelerator"
        ),
    }

    def result(self, name, ps=1, workers=1, **arguments):
        with Cluster(self.program, name, ps, workers, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            return run.result("worker0"), run.error("worker0")

    def test_zero_stages_end_as_one_process(self):
        more = {"zero_optimization": {"stage": 2, "overlap_comm": True}}
        found = self.weights(0, steps=frameworks.STEPS, more=more)
        self.assertLess(frameworks.distance(found, self.expected), 1e-5)

    def test_a_run_that_was_interrupted_counts_on(self):
        with tempfile.TemporaryDirectory() as folder:
            half = frameworks.STEPS // 2
            with self.ranks(1, steps=half, checkpoint=folder) as run:
                self.assertEqual(set(run.wait().values()), {0})
            # Its loop begins anew, with the counts of the first half.
            with self.ranks(1, steps=0, checkpoint=folder) as run:
                run.wait()
                self.assertIn(f"AssertionError: {half}", run.error("worker0"))

    @HAS_FP16
    def test_fp16_scales_the_loss(self):
        found, error = self.result("halves", enabled="fp16")
        self.assertTrue(found["moved"])
        self.assertEqual(found["scales"], [256.0] * 3 + [512.0] * 4 + [1024.0])
        self.assertEqual(found["enabled"], [True, False])
        self.assertEqual(found["kinds"], ["torch.float32"])
        self.assertEqual(found["sizes"], [16, 8, 2])
        self.assertEqual((found["steps"], found["samples"]), (8, 128))
        self.assertTrue(0 < found["norm"] < 100)
        self.assertEqual(error.count("are made float32"), 1)

    @HAS_FP16
    def test_a_scale_that_overflows_is_halved_and_the_step_skipped(self):
        found, error = self.result(
            "halves", ps=0, workers=2, enabled="fp16", scale_power=24
        )
        skipped = found["skipped"]
        self.assertGreater(skipped, 1)
        # Hysteresis: the first overflow leaves the scale.
        expected = 2.0 ** (24 - (skipped - 1))
        self.assertEqual(found["scales"][skipped - 1], expected)
        self.assertEqual(found["steps"], 8)
        self.assertIn("step 1 is skipped", error)

    @unittest.skipIf(has_fp16(), "this torch has an autocast to float16")
    def test_fp16_without_an_autocast_is_refused_by_name(self):
        keys = {"enabled": "fp16"}
        with Cluster(self.program, "halves", 0, 1, **keys) as run:
            self.assertEqual(run.wait(), {"worker0": 2})
            text = "no autocast of torch.float16 on cpu: take a newer one"
            self.assertIn(text, run.error("worker0"))

    def test_bf16_has_no_scale(self):
        found, _ = self.result("halves", enabled="bf16")
        self.assertEqual(found["scales"], [1.0] * 8)
        self.assertEqual(found["enabled"], [False, True])
        self.assertEqual(found["kinds"], ["torch.float32"])

    def test_what_goes_past_the_engine_is_refused_by_name(self):
        found, _ = self.result("refusals")
        self.assertIn("no init_inference", found["name"])
        self.assertIn("no flops_profiler", found["engine"])
        self.assertIn("write engine.step()", found["step"])
        self.assertIn("tensorboard: the run was joined", found["late"])
        self.assertIn("a dictionary and ds.json are both", found["two"])
        self.assertIn("write engine.backward(loss)", found["backward"])
        self.assertEqual(found["batch"], frameworks.BATCH)

    def test_one_rank_with_staleness_ends_as_one_process(self):
        self.check_one_stale_rank()

    def test_ranks_with_staleness_reach_the_end(self):
        keys = {"steps": frameworks.STEPS, "strategy": {"staleness": 2}}
        with self.ranks(1, **keys) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker1"))

    @HAS_FP16
    def test_a_step_that_overflows_with_staleness_is_none_of_the_run(self):
        found, error = self.result(
            "halves",
            enabled="fp16",
            scale_power=17,
            strategy={"staleness": "inf"},
        )
        skipped = found["skipped"]
        self.assertGreater(skipped, 1)
        self.assertTrue(found["moved"])
        self.assertLess(min(found["scales"]), 2.0**17)
        self.assertIn(f"chief: {8 - skipped} steps in", error)

    def test_what_staleness_does_not_allow_is_refused_by_name(self):
        found, _ = self.result("refusals", strategy={"staleness": 4})
        self.assertIn("write engine.step()", found["step"])
        self.assertIn("write engine.backward(loss)", found["backward"])
        self.assertIn("init_distributed(checkpoint=...)", found["load"])

    def test_ranks_whose_counts_differ_end_the_run(self):
        with Cluster(self.program, "differ", 1, 2) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("global_steps by 1024 is", run.error("worker0"))

    def test_a_script_may_name_the_file_of_its_flag(self):
        with Cluster(self.program, "named", 1, 2) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            self.assertEqual(run.result("worker1"), frameworks.STEPS)
            events = list(run.path("events").rglob("events.out.*"))
            self.assertTrue(events)

    def run_local(self, *command, flags=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "ds.json"
        tree = {"train_micro_batch_size_per_gpu": 3, "optimizer": ADAM}
        path.write_text(json.dumps(tree))
        return subprocess.run(
            [
                *(str(PROGRAM), "local", "--ps", "1", "--workers", "2"),
                *("--deepspeed_config", "ds.json", "--", sys.executable),
                *command,
            ],
            env={**os.environ, **SETTINGS},
            cwd=folder.name,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def test_local_hands_a_configuration_on(self):
        done = self.run_local(str(TESTS / self.program), "taken", "{}")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = sorted(json.loads(line) for line in done.stdout.splitlines())
        self.assertEqual(found, [[6, 0], [6, 1]])

    def test_a_script_of_another_kind_refuses_it(self):
        done = self.run_local("-c", "import capstan; capstan.init()")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("imports capstan.deepspeed", done.stderr)


class Configuration(unittest.TestCase):
    def refused(self, tree, text):
        whole = {"train_batch_size": 8, "optimizer": ADAM, **tree}
        with self.assertRaisesRegex(deepspeed.ConfigError, text):
            configuration.read(whole)

    def test_keys_beyond_are_refused_by_name(self):
        self.refused({"fpx": 1}, "fpx: unknown key")
        self.refused({"zero_optimization": {"stage": 3}}, "optimization.stage:")
        self.refused({"fp16": {"enabled": True, "margin": 1}}, "fp16.margin")
        self.refused({"strategy": "ps"}, "init_distributed.strategy=")
        self.refused({"elasticity": {"enabled": True}}, "elasticity.enabled:")
        self.refused({"train_batch_size": "auto"}, 'train_batch_size: found "a')
        for name in "OneCycle", "LRRangeTest":
            self.refused({"scheduler": {"type": name}}, "scheduler.type:")
        for name in "OneBitAdam", "Lamb", "Lion":
            self.refused({"optimizer": {"type": name}}, "optimizer.type:")

    def test_a_key_that_occurs_twice_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ds.json"
            path.write_text('{"train_batch_size": 1, "train_batch_size": 2}')
            with self.assertRaisesRegex(
                deepspeed.ConfigError, '"train_batch_size" occurs twice'
            ):
                configuration.read(path)

    def test_two_sizes_give_the_third(self):
        def sizes(*values):
            keys = dict(zip(configuration._SIZES, values))
            found = configuration.Sizes(
                {k: v for k, v in keys.items() if v}, 2
            )
            return found.total, found.micro, found.passes

        self.assertEqual(sizes(24, 3, 0), (24, 3, 4))
        self.assertEqual(sizes(24, 0, 4), (24, 3, 4))
        self.assertEqual(sizes(0, 3, 4), (24, 3, 4))
        self.assertEqual(sizes(24, 0, 0), (24, 12, 1))
        self.assertEqual(sizes(0, 3, 0), (6, 3, 1))
        for wrong in (7, 0, 0), (24, 5, 0), (24, 3, 3), (1, 0, 0):
            with self.assertRaisesRegex(deepspeed.ConfigError, "is not"):
                sizes(*wrong)

    def test_adam_is_adamw_unless_it_says_otherwise(self):
        parameters = [torch.nn.Parameter(torch.ones(1))]

        def made(name, **params):
            tree = {"optimizer": {"type": name, "params": params}}
            found = configuration.optimizer(tree, parameters)
            return type(found).__name__, found.defaults["weight_decay"]

        self.assertEqual(made("Adam"), ("AdamW", 0.0))
        self.assertEqual(made("adam", adam_w_mode=False), ("Adam", 0.0))
        self.assertEqual(made("AdamW", torch_adam=True), ("AdamW", 0.01))
        self.assertEqual(made("sgd", lr=0.1), ("SGD", 0))

    def rates(self, name, count, **params):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 2.0)
        tree = {"scheduler": {"type": name, "params": params}}
        scheduler = configuration.scheduler(tree, optimizer)
        found = []
        for _ in range(count):
            found += scheduler.get_last_lr()
            optimizer.step()
            scheduler.step()
        return found

    def test_rates_are_those_of_deepspeed(self):
        def near(found, expected):
            for a, b in zip(found, expected, strict=True):
                self.assertAlmostEqual(a, b)

        warm = {"warmup_num_steps": 4, "warmup_type": "linear"}
        near(
            self.rates("WarmupLR", 7, warmup_max_lr=4, **warm),
            [0, 0, 1, 2, 3, 4, 4],
        )
        near(
            self.rates(
                "WarmupDecayLR", 10, warmup_max_lr=4, total_num_steps=8, **warm
            ),
            [0, 0, 1, 2, 3, 4, 3, 2, 1, 0],
        )
        cosine = [1 + math.cos(math.pi * part / 4) for part in (1, 2, 3, 4)]
        near(
            self.rates(
                "WarmupCosineLR",
                9,
                total_num_steps=8,
                cos_min_ratio=0,
                warmup_min_ratio=0.5,
                **warm,
            ),
            [0, 1, 1.25, 1.5, 1.75, *cosine],
        )
        near(self.rates("StepLR", 4, step_size=2, gamma=0.5), [2, 2, 1, 1])


if __name__ == "__main__":
    unittest.main()
