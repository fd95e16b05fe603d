# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for Keras, capstan.horovod.tensorflow.keras."""

import os
import subprocess
import sys
import unittest

import frameworks
import horovod_names
from processes import PROGRAM, TESTS, Cluster

frameworks.need("tensorflow")

import horovod_keras_ranks as ranks  # noqa: E402
import numpy as np  # noqa: E402


class HorovodKeras(frameworks.Example, unittest.TestCase):
    program = "horovod_keras_ranks.py"
    example = "horovod_keras_mnist.py"
    example_arguments = ("--samples=512", "--epochs=2", "--steps=8")

    def both(self, name, ps=1, workers=2, **arguments):
        """What each rank prints."""
        with Cluster(self.program, name, ps, workers, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error(f"worker{workers - 1}"))
            return [run.result(f"worker{rank}") for rank in range(workers)]

    def test_the_calls_of_horovods_example_end_as_one_process(self):
        expected = self.both("plain", 0, 1)[0]
        for ps in 1, 0:
            zero, one = self.both("train", ps)
            for name in "weights", "loaded", "told":
                self.assertEqual(zero[name], one[name], name)
            distance = frameworks.distance(zero["weights"], expected)
            self.assertLess(distance, 1e-5)
            self.assertEqual(zero["loaded"], zero["weights"])
            self.assertIn("_Exchanged", zero["class"])
            self.assertAlmostEqual(zero["rate"], ranks.RATE, 6)
            for epoch, told in enumerate(zero["told"]):
                self.assertAlmostEqual(told.pop("lr"), ranks.RATE, 6)
                own = [rank["own"][epoch] for rank in (zero, one)]
                self.assertNotEqual(own[0]["loss"], own[1]["loss"])
                for name, value in told.items():
                    mean = (own[0][name] + own[1][name]) / 2
                    self.assertAlmostEqual(value, mean, 6)

    def test_a_change_of_the_rate_scales_the_momentum(self):
        """As momentum times new rate / old rate in the step of the change."""
        for kind in "SGD", "RMSprop":
            for corrects in True, False:
                found = self.both("momentum", 0, 1, kind=kind, corrects=corrects)
                expected = moved(kind, corrects)
                self.assertAlmostEqual(found[0], expected, 5, (kind, corrects))

    def test_each_name_of_horovod_works_or_says_what_to_do(self):
        self.assertEqual(set(ranks.USES), set(horovod_names.KERAS))
        for rank, found in enumerate(self.both("names")):
            for name, value in expected_of_names(rank).items():
                with self.subTest(name, rank=rank):
                    self.check(found.pop(name), value)
            self.assertFalse(found)

    def check(self, found, value):
        if isinstance(value, str):
            self.assertRegex(found, value)
        elif isinstance(value, list) and found and isinstance(found[0], str):
            for text, pattern in zip(found, value, strict=True):
                self.check(text, pattern)
        else:
            self.assertEqual(found, value)

    def test_torch_is_not_imported(self):
        code = (
            "from capstan.horovod.tensorflow import keras as hvd; import sys; "
            "sys.exit('torch' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
            capture_output=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_callbacks_of_horovod_are_there(self):
        for name in horovod_names.KERAS_CALLBACKS:
            self.assertTrue(callable(getattr(ranks.hvd.callbacks, name)))
        for name in horovod_names.KERAS_ELASTIC:
            with self.assertRaisesRegex(RuntimeError, f"elastic.{name}"):
                getattr(ranks.hvd.elastic, name)()


def moved(kind, corrects):
    """How far the weight goes: 2 steps in each of 3 epochs."""
    rates = [0.1, 0.1, 0.2, 0.2, 0.4, 0.4]
    place = momentum = square = 0.0
    before = rates[0]
    for rate in rates:
        gradient = 1.0
        if kind == "RMSprop":
            square = 0.9 * square + 0.1
            gradient /= np.sqrt(square + 1e-7)
        keep = 0.5 * (rate / before if corrects else 1)
        momentum = keep * momentum + rate * gradient
        place -= momentum
        before = rate
    return place


def expected_of_names(rank):
    """A text is a pattern of what refuses."""
    own = [np.arange(8.0).reshape(4, 2) + 10 * r for r in (0, 1)]
    total = own[0] + own[1]
    plugins = {
        name: (PROGRAM.parent / f"capstan-{name}.so").exists()
        for name in ("gloo", "nccl", "cuda")
    }
    return {
        "Average": (total / 2).tolist(),
        "Compression": ["float32", (total / 2).tolist()],
        "DistributedOptimizer": [
            "op of DistributedOptimizer is Sum: .*multiply the loss",
            "backward_passes_per_step is 2: .*gradient_accumulation_steps=2",
            "compression .*wire",
            "gradient_predivide_factor is 0.0",
        ],
        "ProcessSet": rank == 0,
        "Sum": total.tolist(),
        "add_process_set": "refused: add_process_set",
        "allgather": np.concatenate([own[0][:1], own[1][:2]]).tolist(),
        "allreduce": 2.25,
        "broadcast": own[1].tolist(),
        "broadcast_global_variables": "BroadcastGlobalVariablesCallback",
        "callbacks": ["BestModelCheckpoint .*ModelCheckpoint", "root_rank is 1"],
        "ccl_built": False,
        "cross_rank": 0,
        "cross_size": 1,
        "cuda_built": plugins["cuda"],
        "ddl_built": False,
        "elastic": "elastic.KerasState of Horovod .*checkpoint",
        "global_process_set": 2,
        "gloo_built": plugins["gloo"],
        "gloo_enabled": True,
        "init": True,
        "is_initialized": True,
        "load_model": "legacy_opts of load_model is True",
        "local_rank": rank,
        "local_size": 2,
        "mpi_built": False,
        "mpi_enabled": False,
        "mpi_threads_supported": False,
        "nccl_built": plugins["nccl"],
        "rank": rank,
        "reducescatter": total[:3][[slice(0, 2), slice(2, 3)][rank]].tolist(),
        "remove_process_set": False,
        "rocm_built": False,
        "size": 2,
        "start_timeline": "start_timeline .*CAPSTAN_TRACE_STEPS",
        "stop_timeline": "stop_timeline .*CAPSTAN_TRACE_STEPS",
        "shutdown": [None, False],
    }


if __name__ == "__main__":
    unittest.main()
