# SPDX-License-Identifier: Apache-2.0
"""Several DistributedOptimizers in a run, against plain torch."""

import functools
import tempfile
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is not installed") from None

from processes import Cluster, Local, check_adopted

SCRIPTS = "DCGAN", "WGAN", "ActorCritic", "TwoRules"
CLUSTERS = (1, 2), (0, 2), (2, 1)


def ranks(name, ps, workers=2, **arguments):
    return Cluster("several_ranks.py", name, ps, workers, **arguments)


@functools.cache
def plain(name):
    with ranks("plain", 0, 1, script=name) as run:
        assert run.wait() == {"worker0": 0}, run.error("worker0")
        return run.result("worker0")


def weights(state):
    return torch.cat([torch.tensor(v).double().flatten() for v in state])


def floats(found):
    """All but the counts of batches, which are rank 0's."""
    return [values for values in found[1] if isinstance(values, list)]


class Several(unittest.TestCase):
    def complete(self, run):
        self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
        return [run.result(n) for n in run.processes if "worker" in n]

    def test_scripts_equal_plain_torch(self):
        for name in SCRIPTS:
            for ps, workers in CLUSTERS:
                with (
                    self.subTest(name, ps=ps),
                    ranks("train", ps, workers, script=name) as run,
                ):
                    for found in self.complete(run):
                        self.assertEqual(found[0], plain(name)[0])

    def test_a_run_goes_on_between_two_steps_of_a_turn(self):
        """All ranks have the same batches: plain torch is what to end as."""
        for name in SCRIPTS:
            for ps, steps in ((1, 7), (0, 5)):
                folder = tempfile.TemporaryDirectory()
                keys = {"script": name, "checkpoint": folder.name}
                with (
                    folder,
                    self.subTest(name, steps=steps),
                    ranks("train", ps, steps=steps, **keys) as run,
                ):
                    self.assertEqual(set(run.wait().values()), {0})
                    for process in run.processes:
                        run.restart(process, **keys)
                    for found in self.complete(run):
                        self.assertEqual(found[0], plain(name)[0])

    def test_ranks_may_have_different_numbers_of_turns(self):
        """Those without one follow: with the same batches as far as there are
        some, all end as plain torch."""
        for name, ps, counts in (
            ("DCGAN", 1, [12, 5]),
            ("DCGAN", 0, [0, 12]),
            ("TwoRules", 1, [3, 12]),
        ):
            keys = {"script": name, "counts": counts}
            with self.subTest(name, ps=ps), ranks("uneven", ps, **keys) as run:
                for found in self.complete(run):
                    self.assertEqual(floats(found), floats(plain(name)))

    def test_a_run_goes_on_where_some_ranks_have_no_turn(self):
        """Of the rank that leads it is the one whose state is saved."""
        for name, counts, steps in (
            ("DCGAN", [3, 12], 11),
            ("DCGAN", [12, 3], 9),
        ):
            folder = tempfile.TemporaryDirectory()
            keys = {"script": name, "counts": counts, "checkpoint": folder.name}
            with (
                folder,
                self.subTest(name, counts=counts),
                ranks("uneven", 1, steps=steps, **keys) as run,
            ):
                self.assertEqual(set(run.wait().values()), {0})
                for process in run.processes:
                    run.restart(process, **keys)
                for found in self.complete(run):
                    self.assertEqual(floats(found), floats(plain(name)))

    def test_what_a_rank_without_a_turn_cannot_do_is_named(self):
        for name, text in (
            ("ActorCritic", "gradients were changed after the mean"),
            ("WGAN", "weights were changed between two steps"),
        ):
            keys = {"script": name, "counts": [12, 3]}
            with self.subTest(name), ranks("uneven", 1, **keys) as run:
                # Of the rank that finds it first, and the other is told.
                self.assertIn(2, run.wait().values())
                self.assertIn(text, run.error("worker0"))

    def test_epochs_go_on_between_two_steps_of_a_turn(self):
        """Batches, rates and what the script keeps are as undisturbed."""
        for name in "DCGAN", "WGAN":
            with ranks("epochs", 1, script=name) as run:
                whole = self.complete(run)
            for steps in 3, 14:
                folder = tempfile.TemporaryDirectory()
                keys = {"script": name, "checkpoint": folder.name}
                with (
                    folder,
                    self.subTest(name, steps=steps),
                    ranks("epochs", 1, steps=steps, **keys) as run,
                ):
                    self.assertEqual(set(run.wait().values()), {0})
                    for process in run.processes:
                        run.restart(process, **keys)
                    self.assertEqual(self.complete(run), whole)

    def test_a_run_goes_back_to_between_two_steps(self):
        """After the death of a ps, whenever it comes."""
        with ranks("epochs", 1, script="DCGAN") as run:
            whole = self.complete(run)
        run = Local(
            "several_ranks.py",
            "epochs",
            1,
            2,
            ["checkpoint.every_steps=5"],
            script="DCGAN",
            seconds=0.2,
        )
        self.assertEqual(run.status, 0, run.log)
        self.assertIn("the run goes on after step", run.log)
        self.assertCountEqual(run.results, whole)

    def test_they_train_on_without_a_chief_that_coordinates(self):
        for name in "WGAN", "TwoRules":
            with self.subTest(name):
                check_adopted(self, "several_ranks.py", "led_epochs", script=name)

    def test_with_staleness_one_rank_ends_as_plain_torch(self):
        for name in SCRIPTS:
            keys = {"script": name, "strategy": {"staleness": 4}}
            with self.subTest(name), ranks("train", 1, 1, **keys) as run:
                (found,) = self.complete(run)
                a, b = weights(found[1]), weights(plain(name)[1])
                self.assertLess(float((a - b).norm() / b.norm()), 1e-6)

    def test_with_staleness_ranks_do_not_disturb_each_other(self):
        """What a rank's graph needs stays until its own optimiser steps."""
        for name in "DCGAN", "ActorCritic":
            keys = {"script": name, "strategy": {"staleness": "inf"}}
            with self.subTest(name), ranks("train", 1, 3, **keys) as run:
                self.complete(run)

    def test_with_staleness_all_changes_count_once(self):
        folder = tempfile.TemporaryDirectory()
        keys = {"checkpoint": folder.name}
        with folder, ranks("adds", 1, 3, turns=10, **keys) as run:
            self.assertEqual(set(run.wait().values()), {0})
            for process in run.processes:
                run.restart(process, **keys)
            self.assertEqual(set(run.wait().values()), {0})
            found, steps = run.results("worker0")[0]
            self.assertEqual(found, [[30.0], [60.0]])
            self.assertEqual(steps, 90)

    def test_ranks_that_step_different_optimisers_end(self):
        for ps in 1, 0:
            with ranks("refuse", ps, what="differ") as run:
                self.assertNotIn(0, run.wait().values())
                for name in "worker0", "worker1":  # its own, or the other's
                    for number in 0, 1:
                        text = f"of Adam (optimizer {number})"
                        self.assertIn(text, run.result(name))

    def test_what_does_not_work_is_an_error_by_name(self):
        for name, part in (
            ("one more", "init(optimizers=)"),
            ("shared", '"0.weight" is in Adam (optimizer 0) and in SGD'),
            ("server", "rule 'worker'"),
            ("lazy", "lazy=True"),
            ("early", "before the last DistributedOptimizer"),
            ("table", "EmbeddingBag"),
            ("clips", "optimizer.synchronize()"),
            ("left out", "wrap 2 optimisers"),
        ):
            with (
                self.subTest(name),
                ranks("refuse", 0, 1, what=name) as run,
            ):
                self.assertEqual(run.wait(), {"worker0": 2})
                self.assertIn(part, run.result("worker0"))


if __name__ == "__main__":
    unittest.main()
