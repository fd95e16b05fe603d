# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with capstan.torch."""

import unittest

import frameworks

try:
    import transformers_ranks
except ImportError:
    frameworks.skip("transformers")


class Transformers(frameworks.Framework, unittest.TestCase):
    program = "transformers_ranks.py"
    example = "bert_tiny.py"
    example_arguments = ("--samples", "256", "--epochs", "1")

    def expected(self):
        net = transformers_ranks.network()
        optimizer = transformers_ranks.sgd(net)
        data = transformers_ranks.dataset()
        transformers_ranks.trainer_of(
            net, optimizer, data, frameworks.STEPS, 1, save_strategy="no"
        ).train()
        return transformers_ranks.weights(net)


if __name__ == "__main__":
    unittest.main()
