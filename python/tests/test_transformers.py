# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with capstan.torch."""

import tempfile
import unittest

import frameworks
from processes import Cluster

frameworks.need("transformers")


class Transformers(
    frameworks.Framework, frameworks.Asynchronous, unittest.TestCase
):
    program = "transformers_ranks.py"
    how = "trainer"
    example = "bert_tiny.py"
    example_arguments = ("--samples", "256", "--epochs", "1")

    def test_each_rank_saves_in_its_own_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            with Cluster(self.program, "saves", 1, 2, folder=folder) as run:
                self.assertEqual(set(run.wait().values()), {0})
                for rank in "worker0", "worker1":
                    self.assertIn("model.safetensors", run.result(rank))


if __name__ == "__main__":
    unittest.main()
