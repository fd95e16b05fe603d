# SPDX-License-Identifier: Apache-2.0
"""Horovod's names, capstan.horovod."""

import signal
import unittest

import frameworks
from processes import Cluster

frameworks.need("torch")

import horovod_ranks as ranks  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402


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

    def test_collectives_come_also_before_the_optimizer(self):
        for ps in 1, 0:
            with Cluster(self.program, "early", ps, 2) as run:
                ended = set(run.wait().values())
                self.assertEqual(ended, {0}, run.error("worker1"))
                for rank in range(2):
                    rows, objects, *rest = run.result(f"worker{rank}")
                    self.assertEqual(rows, [[0, 1], [0, 1], [2, 3]])
                    self.assertEqual(objects, [{"r": 0}, {"r": 1}])
                    self.assertEqual(rest[:3], [[1] * 3, [rank] * 3, [1] * 3])
                    self.assertIn("more than their first", rest[3])
                    self.assertEqual(rest[4], 1 << 20)

    def test_a_sum_or_mean_is_exact_in_every_type_or_refused(self):
        for ps, workers in (1, 2), (0, 2), (1, 3):
            cluster = Cluster(self.program, "dtypes", ps, workers)
            with self.subTest(ps=ps, workers=workers), cluster as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                for rank in range(workers):
                    self.check_dtypes(run.result(f"worker{rank}"), workers)

    def test_a_rank_that_is_gone_is_left_out_of_sums(self):
        with Cluster(self.program, "left", 1, 3) as run:
            expected = {"ps0": 0, "worker0": 0, "worker2": 0}
            expected["worker1"] = -signal.SIGKILL
            self.assertEqual(run.wait(), expected, run.error("worker0"))
            for rank in 0, 2:
                self.assertEqual(run.result(f"worker{rank}"), [2, 4, 4, 2])

    def test_a_predivide_factor_is_a_number_above_0(self):
        wrong = ranks.hvd.ConfigError
        for factor in 0.0, -1.0, float("inf"), float("nan"):
            with self.assertRaisesRegex(wrong, "_predivide_factor is"):
                ranks.hvd.DistributedOptimizer(
                    ranks.sgd(ranks.network()), gradient_predivide_factor=factor
                )

    def check_dtypes(self, result, workers):
        for dtype, (total, mean) in result["found"].items():
            parts = [ranks.numbers(dtype, rank) for rank in range(workers)]
            if dtype in ranks.INTEGERS:
                exact = sum(np.array(p.tolist(), object) for p in parts)
                self.assertEqual(total, exact.tolist(), dtype)
                self.assertEqual(mean, (exact // workers).tolist(), dtype)
                continue
            kind = getattr(torch, dtype)
            exact = sum(p.double() for p in parts)
            accuracy = 2 * workers * torch.finfo(kind).eps
            scale = sum(p.double().abs() for p in parts)
            for values, expected in (total, exact), (mean, exact / workers):
                error = torch.tensor(values, dtype=torch.double) - expected
                close = error.abs() <= accuracy * scale
                self.assertTrue(close.all(), dtype)
        small, large, boolean, complex = result["refused"]
        self.assertIn("does not fit into torch.uint8", small)
        self.assertIn("does not fit into torch.int64", large)
        self.assertIn("torch.bool; allowed", boolean)
        self.assertIn("torch.complex64; allowed", complex)


if __name__ == "__main__":
    unittest.main()
