# SPDX-License-Identifier: Apache-2.0
"""The examples that no other file of tests runs."""

import unittest

import frameworks

frameworks.need("torch")


class Ddp(frameworks.Pair, frameworks.AnyLauncher, unittest.TestCase):
    how = "ddp"
    example = "ddp.py"

    def test_the_plain_example_runs(self):
        self.run_torchrun(2, example=self.plain)


class FashionMnist(frameworks.Example, unittest.TestCase):
    example = "fashion_mnist.py"
    example_arguments = ("--samples", "1024", "--epochs", "1")


class Gan(frameworks.Example, unittest.TestCase):
    example = "gan.py"


class Linear(frameworks.Example, unittest.TestCase):
    example = "linear.py"


if __name__ == "__main__":
    unittest.main()
