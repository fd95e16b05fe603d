# SPDX-License-Identifier: Apache-2.0
"""Keras over TensorFlow with capstan.keras."""

import os
import signal
import subprocess
import sys
import unittest

import frameworks
from processes import TESTS, Cluster, check_adopted, check_complete

frameworks.need("keras")
frameworks.need("tensorflow")


class Keras(
    frameworks.Framework, frameworks.AnyLauncher, unittest.TestCase
):
    program = "keras_ranks.py"
    how = "keras"
    example = "keras_mnist.py"
    example_arguments = ("--samples", "512", "--steps_per_epoch", "4")

    def test_statistics_are_averaged_and_frozen_weights_are_rank_0s(self):
        for ps in 1, 0:
            self.weights(ps, steps=4, norm=True)

    def test_a_run_that_goes_on_has_the_optimisers_state(self):
        with self.ranks(1, steps=4, checkpoint="run") as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            folder = str(run.path("run"))
            found = self.weights(1, steps=8, checkpoint=folder)
        self.assertLess(frameworks.distance(found, self.expected), 1e-5)

    def test_one_rank_with_staleness_ends_as_one_process(self):
        self.check_one_stale_rank()

    def test_ranks_with_staleness_go_on_from_their_states(self):
        keys = {"checkpoint": "run", "strategy": {"staleness": 2}}
        with self.cluster("epochs", count=2, **keys) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            keys["checkpoint"] = str(run.path("run"))
            with self.cluster("epochs", count=3, **keys) as rest:
                found = set(rest.wait().values())
                self.assertEqual(found, {0}, rest.error("worker1"))
                for rank in "worker0", "worker1":
                    # From the run's place, as many batches off its own.
                    taken = rest.result(rank)["iterations"]
                    self.assertLessEqual(abs(taken - 24), 2)
                    self.assertIn("its own", rest.error(rank))

    def test_what_staleness_does_not_allow_is_refused_by_name(self):
        for what, text in (
            ("scale", "take mixed_bfloat16"),
            ("ema", "ema_overwrite_frequency writes"),
            ("write", "was written between two steps"),
            ("explode", "is NaN or infinite"),
        ):
            with (
                self.subTest(what),
                Cluster(self.program, "stale", 1, 1, what=what) as run,
            ):
                self.assertNotEqual(run.wait()["worker0"], 0)
                self.assertIn(text, run.error("worker0"))

    def test_a_complete_run_takes_no_step_when_started_again(self):
        check_complete(self, self.program, 1)

    def executions(self, per, workers=2, **keys):
        """What rank 0 ends with, and its standard error."""
        keys = {"steps": 6, "per": per, **keys}
        with Cluster(self.program, "executions", 1, workers, **keys) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            return run.result("worker0"), run.error("worker0")

    def test_fit_stops_at_the_runs_end_within_a_graph_of_several_steps(self):
        stale = {"strategy": {"staleness": "inf"}, "workers": 1}
        for keys in {}, stale:
            expected, _ = self.executions(1, **keys)
            for per in 4, 3:  # 6 are a multiple of 3
                with self.subTest(per=per, **keys):
                    found, told = self.executions(per, **keys)
                    self.assertEqual(found, expected)
                    said = "is complete with step 6, and fit() stops"
                    self.assertEqual(told.count(said), per == 4, told)

    def test_a_loop_of_graphs_ends_at_the_runs_end(self):
        for keys in {}, {"strategy": {"staleness": "inf"}}:
            keys = {"steps": 6, "per": 1, "loop": True, **keys}
            with Cluster(self.program, "executions", 1, 1, **keys) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                told = run.error("worker0")
                self.assertEqual(told.count("is complete with step 6"), 1)
                self.assertNotIn("UnknownError", told)
                printed = run.path("worker0.out").read_text()
                self.assertEqual(printed, "a step\n" * 6)

    def test_a_run_goes_on_within_its_epoch(self):
        with self.cluster("epochs", count=3) as run:
            self.assertEqual(set(run.wait().values()), {0})
            whole = run.result("worker1")
            self.assertEqual(whole["step"], 24)
            folder = str(run.path("checkpoint"))
            for steps, end in (11, 11), (16, 16), (None, 24):
                keys = {"checkpoint": folder, "count": 3}
                keys.update({"steps": steps} if steps else {})
                with self.cluster("epochs", **keys) as part:
                    found = set(part.wait().values())
                    self.assertEqual(found, {0}, part.error("worker0"))
                    last = part.result("worker1")
                    self.assertEqual(last["step"], end)
                    self.assertEqual(last["iterations"], end)
        found = frameworks.distance(last["weights"], whole["weights"])
        self.assertLess(found, 1e-5)

    def test_a_worker_that_joins_goes_on_within_the_epoch(self):
        # A slow push sends what the optimiser was before its step.
        keys = {"count": 12, "die": True, "checkpoint": "run", "slow": True}
        with self.cluster("epochs", chief=1, **keys) as run:
            late = run.processes["worker1"]
            self.assertEqual(late.wait(90), -signal.SIGKILL)
            run.restart("worker1", **keys)
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            last = run.result("worker1")
            self.assertEqual(last, run.result("worker0"))

    def test_it_trains_on_without_a_chief_that_coordinates(self):
        check_adopted(self, "keras_ranks.py", "led_epochs")

    def test_other_rates_are_named_on_every_rank(self):
        with self.cluster("other_rates") as run:
            self.assertNotIn(0, run.wait().values())
            for process in run.processes:
                text = "optimisers differ: learning_rate is"
                self.assertIn(text, run.error(process))

    def test_weights_of_a_rank_alone_are_named_on_every_rank(self):
        with self.cluster("own_weights") as run:
            self.assertNotIn(0, run.wait().values())
            for process in run.processes:
                text = "the ranks' weights differ: the sizes in a part of"
                self.assertIn(text, run.error(process))

    def cluster(self, name, **arguments):
        return Cluster(self.program, name, 1, 2, **arguments)

    def test_a_peer_that_is_lost_ends_an_all_reduce_run_with_138(self):
        timeouts = {"peer": 5}
        with self.ranks(0, steps=8, pause=2, timeouts=timeouts) as run:
            run.wait_for("worker1", "pauses")
            run.processes["worker1"].kill()
            self.assertEqual(run.wait()["worker0"], 138, run.error("worker0"))

    def built_by_fit(self, kind, **arguments):
        """Of both ranks, which end alike."""
        with self.cluster("built_by_fit", kind=kind, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            zero, one = run.result("worker0"), run.result("worker1")
            own = zero.pop("own"), one.pop("own")
            if any(own):
                self.assertNotEqual(*own)
            self.assertEqual(zero, one)
            return zero

    def test_a_model_that_fit_builds_ends_as_one_process(self):
        for kind, own in (
            ("subclass", 0),
            ("subclass", 1),
            ("sequential", 0),
            ("stepped", 0),
            ("stepped", 1),
            ("scaled", 0),
        ):
            with self.subTest(kind=kind, own=own):
                steps = {"steps": frameworks.STEPS}
                found = self.built_by_fit(kind, own=bool(own), **steps)
                self.assertEqual(found["step"], frameworks.STEPS)
                distance = frameworks.distance(found["weights"], self.expected)
                self.assertLess(distance, 1e-5)
        self.built_by_fit("norm", steps=4)

    def test_a_model_that_fit_builds_goes_on_where_its_run_is(self):
        with self.cluster(
            "built_by_fit", kind="subclass", steps=4, checkpoint="run"
        ) as run:
            run.wait()
            keys = {"checkpoint": str(run.path("run")), "own": True}
            found = self.built_by_fit("subclass", steps=8, **keys)
        distance = frameworks.distance(found["weights"], self.expected)
        self.assertLess(distance, 1e-5)

    def test_a_first_step_with_weights_of_the_rank_is_refused(self):
        with self.cluster(
            "built_by_fit", kind="subclass", steps=4, eager=True
        ) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("build the model before", run.error("worker1"))

    def test_a_script_with_the_calls_of_the_tutorial(self):
        with self.cluster("tutorial", steps=frameworks.STEPS) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            for rank in "worker0", "worker1":
                for saved in run.result(rank):
                    distance = frameworks.distance(saved, self.expected)
                    self.assertLess(distance, 1e-5)

    def test_what_is_not_taken_is_named(self):
        with Cluster(self.program, "refused", 0, 1) as run:
            self.assertEqual(run.wait(), {"worker0": 0}, run.error("worker0"))
            found = run.result("worker0")
        for name, text in {
            "Estimator": "in place of an Estimator a model of Keras",
            "object": "int is no model of Keras",
            "again": "SGD is a DistributedOptimizer already",
            "legacy": "tf.keras.optimizers.legacy.Adam is not taken",
            "MirroredStrategy": "leave strategy and scope out",
            "OneDeviceStrategy": "the model's optimizer is SGD",
        }.items():
            if name in found:
                self.assertIn(text, found[name])

    def test_a_model_that_is_compiled_anew_is_refused(self):
        with Cluster(self.program, "compiled_anew", 1, 1) as run:
            self.assertEqual(run.wait()["worker0"], 0, run.error("worker0"))
            anew, unfrozen = run.result("worker0")
        self.assertIn("which a second compile() does not replace", anew)
        self.assertRegex(unfrozen, "was frozen when the run|optimizer.build")

    def test_other_backends_and_versions_are_named_by_what_is_given(self):
        for package, version, backend, text in (
            ("keras", "3.9.0", "jax", "SGD is of keras 3.9.0 over jax"),
            ("keras", "3.9.0", "torch", "set KERAS_BACKEND=tensorflow"),
            ("tf_keras", "2.14.1", "", "SGD is of tf_keras 2.14.1"),
        ):
            code = (
                "import sys, types; import capstan.keras; "
                f"k = types.ModuleType('{package}'); "
                f"k.__version__ = '{version}'; "
                f"k.backend = types.SimpleNamespace(backend=lambda: '{backend}')"
                f"; sys.modules['{package}'] = k; "
                f"SGD = type('SGD', (), {{'__module__': '{package}.src.sgd'}}); "
                "capstan.keras.DistributedOptimizer(SGD())"
            )
            self.assertIn(text, self.error_of(code))

    def test_a_missing_or_an_older_tensorflow_is_named(self):
        for found in "None", "types.SimpleNamespace(__version__='2.12.0')":
            code = f"import sys, types; sys.modules['tensorflow'] = {found}; "
            error = self.error_of(code + "import capstan.keras")
            self.assertIn("needs TensorFlow 2.15 or newer", error)

    def error_of(self, code):
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
            capture_output=True,
            text=True,
        ).stderr

    def test_a_loop_that_never_reaches_the_run_ends_on_every_rank(self):
        for how in "fit", "loop":
            with Cluster(self.program, "alone", 1, 2, steps=300, how=how) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {1}, run.error("worker0"))
                for process in run.processes:
                    text = "100 steps of SGD after init(), and none has met"
                    self.assertIn(text, run.error(process))
                self.assertEqual(run.result("worker0"), [100])

    def test_fewer_steps_before_the_run_are_the_scripts_own(self):
        with Cluster(self.program, "alone", 1, 2, steps=99, how="fit") as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("ps0"))
            self.assertEqual(run.result("worker0"), [99])

    def test_a_missing_callback_is_named(self):
        with Cluster(self.program, "train", 0, 1, steps=1, start=False) as run:
            self.assertEqual(run.wait(), {"worker0": 2})
            text = "fit() needs callbacks=[capstan.keras.Callback()]"
            self.assertIn(text, run.error("worker0"))


if __name__ == "__main__":
    unittest.main()
