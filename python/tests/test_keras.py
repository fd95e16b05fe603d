# SPDX-License-Identifier: Apache-2.0
"""Keras over TensorFlow with capstan.keras."""

import unittest

import frameworks
from processes import Cluster

frameworks.need("keras")
frameworks.need("tensorflow")


class Keras(frameworks.Framework, unittest.TestCase):
    program = "keras_ranks.py"
    example = "keras_mnist.py"
    example_arguments = ("--samples", "512")

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

    def test_a_peer_that_is_lost_ends_an_all_reduce_run_with_138(self):
        timeouts = {"peer": 5}
        with self.ranks(0, steps=8, pause=2, timeouts=timeouts) as run:
            run.wait_for("worker1", "pauses")
            run.processes["worker1"].kill()
            self.assertEqual(run.wait()["worker0"], 138, run.error("worker0"))

    def test_a_missing_callback_is_named(self):
        with Cluster(self.program, "train", 0, 1, steps=1, start=False) as run:
            self.assertEqual(run.wait(), {"worker0": 2})
            text = "fit() needs callbacks=[capstan.keras.Callback()]"
            self.assertIn(text, run.error("worker0"))


if __name__ == "__main__":
    unittest.main()
