# SPDX-License-Identifier: Apache-2.0
"""The examples that no other file of tests runs."""

import unittest

import frameworks

frameworks.need("torch")


class Ddp(frameworks.Example, unittest.TestCase):
    example = "ddp.py"


class FashionMnist(frameworks.Example, unittest.TestCase):
    example = "fashion_mnist.py"
    example_arguments = ("--samples", "1024", "--epochs", "1")


class Linear(frameworks.Example, unittest.TestCase):
    example = "linear.py"


if __name__ == "__main__":
    unittest.main()
