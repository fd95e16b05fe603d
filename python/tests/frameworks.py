# SPDX-License-Identifier: Apache-2.0
"""What is promised of each framework; test_NAME.py has one class of it.

A program NAME_ranks.py has two functions that print the weights at their end:
plain(), without Capstan, and train(steps, ...), in which each rank takes
BATCH / size of each step's samples. The framework is not imported here: two
of them may not get on in one process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest
from typing import Any

import numpy as np
from processes import DEADLINE, PROGRAM, TESTS, Cluster, free_port

BATCH = 16  # of all ranks together
STEPS = 8
INPUTS, CLASSES = 8, 4
CLIP = 0.6  # smaller than the norms of some steps' gradients
EXAMPLES = TESTS.parent / "capstan" / "examples"


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Inputs (STEPS * BATCH, INPUTS) of float32, and classes."""
    random = np.random.default_rng(3)
    x = random.standard_normal((STEPS * BATCH, INPUTS), np.float32)
    return x, random.integers(CLASSES, size=len(x))


def distance(found: list[float], expected: list[float]) -> float:
    """Of weights, relative to the norm of EXPECTED."""
    a, b = np.array(found), np.array(expected)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


class ExampleCluster(Cluster):
    """An example in the roles of a cluster by TF_CONFIG."""

    def _is_fork(self, job: str) -> bool:
        return False

    def _command(self, job: str) -> list[str]:
        if job == "ps":
            return super()._command(job)
        return [sys.executable, self._program, *self._arguments["arguments"]]


class Example:
    """Runs an example by `capstan local`, and by torchrun with a ps."""

    program = "torch_ranks.py"  # of the tests
    example: str
    example_arguments: tuple[str, ...] = ()

    def test_the_last_rank_of_torchrun_is_a_ps(self) -> None:
        self.run_torchrun(3, CAPSTAN_NUM_PS="1")

    def run_torchrun(self: Any, ranks: int, **arguments: Any) -> None:
        if not importlib.util.find_spec("torch"):
            self.skipTest("torch is not installed")
        count = ["--nproc_per_node", str(ranks)]
        module = ["-m", "torch.distributed.run", *count]
        port = ["--master_port", str(free_port())]
        self.run_example([sys.executable, *module, *port], **arguments)

    def test_the_example_runs_by_capstan_local(self) -> None:
        local = ["local", "--ps", "1", "--workers", "2", "--", sys.executable]
        self.run_example([str(PROGRAM), *local])

    def run_example(
        self: Any,
        launcher: list[str],
        example: str = "",
        modules: dict[str, str] | None = None,
        **environment: str,
    ) -> None:
        """EXAMPLE: another than the class's. MODULES: of the script, beside
        those that are installed: path and text."""
        with Cluster(self.program, "", 0, 0) as folder:  # no process
            for name, text in (modules or {}).items():
                path = folder.path(f"modules/{name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run(
                [
                    *launcher,
                    str(EXAMPLES / (example or self.example)),
                    *self.example_arguments,
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{TESTS.parent}:{folder.path('modules')}",
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
                cwd=folder.folder.name,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
            )
            self.assertEqual(done.returncode, 0, done.stderr)


class AnyLauncher:
    """Also runs it under TF_CONFIG, and by torchrun without a ps."""

    def test_the_example_runs_by_tf_config(self: Any) -> None:
        with ExampleCluster(
            str(EXAMPLES / self.example),
            "",
            1,
            2,
            arguments=self.example_arguments,
        ) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))

    def test_the_example_runs_by_torchrun(self: Any) -> None:
        self.run_torchrun(2)


class Pair(Example):
    """Also runs the script that the example was before, NAME_plain.py."""

    how: str  # the pair's name for `capstan how`
    # What the plain script imports that is not installed: by Capstan's.
    plain_modules: dict[str, str] = {}

    @property
    def plain(self) -> str:
        return self.example.replace(".py", "_plain.py")

    def test_the_plain_example_runs(self) -> None:
        launcher = [sys.executable]
        if self.plain_modules:
            local = [str(PROGRAM), "local", "--ps", "1", "--workers", "2"]
            launcher = [*local, "--", sys.executable]
        self.run_example(launcher, self.plain, self.plain_modules)

    def test_how_shows_what_differs_from_the_plain_example(self: Any) -> None:
        names = self.plain, self.example
        labels = [word for name in names for word in ("--label", name)]
        paths = [str(EXAMPLES / name) for name in names]
        diff = ["diff", "-u", *labels, *paths]
        expected = subprocess.run(diff, capture_output=True, text=True).stdout
        how = [str(PROGRAM), "how", self.how]
        found = subprocess.run(how, capture_output=True, text=True, check=True)
        self.assertIn("\n+import capstan", expected)
        self.assertEqual(found.stdout, expected)


class Framework(Pair):
    """The tests of one framework."""

    expected: list[float]  # weights of one plain process, with whole batches

    @classmethod
    def setUpClass(cls) -> None:
        with Cluster(cls.program, "plain", 0, 1) as plain:
            if plain.wait() != {"worker0": 0}:
                raise RuntimeError(plain.error("worker0"))
            cls.expected = plain.result("worker0")

    def ranks(self, ps: int, **arguments: Any) -> Cluster:
        return Cluster(self.program, "train", ps, 2, **arguments)

    def weights(self: Any, ps: int, **arguments: Any) -> list[float]:
        """What both ranks end with."""
        with self.ranks(ps, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            zero, one = run.result("worker0"), run.result("worker1")
            self.assertEqual(zero, one)
            return zero

    def check_one_stale_rank(self: Any, **keys: Any) -> str:
        """It ends as one process, with whatever staleness. Returns its log."""
        keys = {"steps": STEPS, "strategy": {"staleness": "inf"}, **keys}
        with Cluster(self.program, "train", 1, 1, **keys) as run:
            self.assertEqual(run.wait()["worker0"], 0, run.error("worker0"))
            found = run.result("worker0")
            self.assertLess(distance(found, self.expected), 1e-6)
            return run.error("worker0")

    def test_a_run_by_ps_ends_as_one_process(self: Any) -> None:
        found = self.weights(1, steps=STEPS)
        self.assertLess(distance(found, self.expected), 1e-5)

    def test_a_resumed_all_reduce_run_ends_as_one_process(self: Any) -> None:
        with self.ranks(0, steps=STEPS // 2, save="saved") as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            path = str(run.path("saved"))
            found = self.weights(0, steps=STEPS, resume=path)
        self.assertLess(distance(found, self.expected), 1e-5)

    def test_a_ps_run_goes_on_without_a_killed_worker(self: Any) -> None:
        timeouts = {"peer": 5}  # seconds of silence
        with self.ranks(
            1, steps=STEPS, pause=STEPS // 2, timeouts=timeouts
        ) as run:
            run.wait_for("worker1", "pauses")
            run.processes["worker1"].kill()
            found = run.wait()
            self.assertEqual(found["worker0"], 0, run.error("worker0"))
            self.assertEqual(found["ps0"], 0, run.error("ps0"))


class Asynchronous:
    """The tests of a framework whose ranks need not wait for each other."""

    def test_one_trainer_with_staleness_ends_as_one_process(self: Any) -> None:
        """The framework clips, and adds up passes, before what is sent."""
        for rule in "auto", "worker":
            with self.subTest(rule):
                log = self.check_one_stale_rank(rule=rule)
                self.assertIn("by rule server" if rule == "auto" else "", log)

    def test_trainers_with_staleness_reach_the_end(self: Any) -> None:
        keys = {"steps": STEPS, "strategy": {"staleness": 2}}
        with self.ranks(1, **keys) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))


def need(module: str) -> None:
    """Skips a file of tests if MODULE is not installed."""
    if not importlib.util.find_spec(module):
        raise unittest.SkipTest(f"{module} is not installed")
