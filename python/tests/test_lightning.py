# SPDX-License-Identifier: Apache-2.0
"""Lightning with capstan.torch."""

import unittest

import frameworks

frameworks.need("lightning")


class Lightning(frameworks.Framework, unittest.TestCase):
    program = "lightning_ranks.py"
    example = "lightning_mnist.py"
    example_arguments = ("--samples", "512")

    def test_a_step_without_a_loss_takes_the_other_ranks_gradients(self):
        self.weights(1, steps=4, skip=2)


if __name__ == "__main__":
    unittest.main()
