# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with capstan.torch."""

import unittest

import frameworks

frameworks.need("transformers")


class Transformers(
    frameworks.Framework, frameworks.Asynchronous, unittest.TestCase
):
    program = "transformers_ranks.py"
    how = "trainer"
    example = "bert_tiny.py"
    example_arguments = ("--samples", "256", "--epochs", "1")


if __name__ == "__main__":
    unittest.main()
