# SPDX-License-Identifier: Apache-2.0
"""Lightning with capstan.torch."""

import unittest

import frameworks
from processes import Cluster

frameworks.need("lightning")


class Lightning(
    frameworks.Framework, frameworks.Asynchronous, unittest.TestCase
):
    program = "lightning_ranks.py"
    how = "lightning"
    example = "lightning_mnist.py"
    example_arguments = ("--samples", "512")

    def test_a_step_without_a_loss_takes_the_other_ranks_gradients(self):
        self.weights(1, steps=4, skip=2)

    def test_batches_that_the_optimiser_counts_add_up(self):
        """With 3 an epoch of 4 ends with a step of one."""
        for batches, early in (2, False), (3, True):
            with Cluster(self.program, "plain", 0, 1, batches=batches) as plain:
                found = plain.wait()
                self.assertEqual(found, {"worker0": 0}, plain.error("worker0"))
                expected = plain.result("worker0")
            keys = {"batches": batches, "early": early}
            keys["more"] = {"backward_passes_per_step": batches}
            for ps in 1, 0:
                with self.subTest(ps=ps, **keys):
                    found = self.weights(ps, steps=frameworks.STEPS, **keys)
                    off = frameworks.distance(found, expected)
                    self.assertLess(off, 1e-5)

    def test_batches_that_nobody_counts_are_refused(self):
        """So is a clipped step of fewer, which has not seen the mean."""
        way = "backward_passes_per_step"
        counted = {"backward_passes_per_step": 3}
        for more, batches, text in (
            ({"rule": "worker"}, 2, way),
            ({"rule": "server"}, 2, way),
            (counted, 3, "optimizer.synchronize()"),
        ):
            keys = {"steps": frameworks.STEPS, "batches": batches}
            with (
                self.subTest(more=more),
                self.ranks(1, more=more, **keys) as run,
            ):
                found = run.wait()
                codes = {found["worker0"], found["worker1"]}
                self.assertIn(2, codes)
                self.assertLessEqual(codes, {1, 2})  # 1: told by the other
                for rank in "worker0", "worker1":
                    self.assertIn(text, run.error(rank))


if __name__ == "__main__":
    unittest.main()
