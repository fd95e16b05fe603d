# SPDX-License-Identifier: Apache-2.0
"""Horovod's names, capstan.horovod."""

import unittest

import frameworks
from processes import Cluster

frameworks.need("torch")


class Horovod(frameworks.Framework, unittest.TestCase):
    program = "horovod_ranks.py"
    example = "horovod_mnist.py"
    example_arguments = ("--samples", "512", "--epochs", "1")

    def test_weights_may_be_read_after_the_optimizer_is_wrapped(self):
        found = self.weights(1, steps=frameworks.STEPS, wrap_first=True)
        self.assertLess(frameworks.distance(found, self.expected), 1e-5)

    def test_small_values_travel_between_steps(self):
        for ps in 1, 0:
            with Cluster(self.program, "collectives", ps, 2) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                zero, one = run.result("worker0"), run.result("worker1")
            self.assertEqual(zero, one)
            self.assertEqual(zero[:4], [[1.0] * 3, [2, 1 << 17], [0.5], 5])
            self.assertEqual(zero[4], {"text": "x" * 99999})
            self.assertIn("allowed is 1048576", zero[5])


if __name__ == "__main__":
    unittest.main()
