# SPDX-License-Identifier: Apache-2.0
"""Horovod's names, capstan.horovod."""

import signal
import sys
import unittest

import frameworks
import horovod_names
from processes import DEADLINE, PROGRAM, Cluster

frameworks.need("torch")

import horovod_ranks as ranks  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import capstan.horovod  # noqa: E402


class Horovod(frameworks.Framework, unittest.TestCase):
    program = "horovod_ranks.py"
    how = "horovod"
    example = "horovod_mnist.py"
    example_arguments = ("--samples", "512", "--epochs", "1")
    plain_modules = {
        "horovod/__init__.py": "",
        "horovod/torch.py": "from capstan.horovod.torch import *",
    }

    def test_weights_may_be_read_after_the_optimizer_is_wrapped(self):
        found = self.weights(1, steps=frameworks.STEPS, wrap_first=True)
        self.assertLess(frameworks.distance(found, self.expected), 1e-5)

    def both(self, name, ps=1, workers=2, **arguments):
        """What each rank prints."""
        with Cluster(self.program, name, ps, workers, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error(f"worker{workers - 1}"))
            return [run.result(f"worker{rank}") for rank in range(workers)]

    def test_collectives_are_no_steps_of_the_run(self):
        for ps in 1, 0:
            zero, one = self.both("collectives", ps)
            self.assertEqual(zero, one)
            self.assertEqual(zero[:3], [[1.0] * 3, [7.0] * 3, [7.0] * 3])
            self.assertEqual(zero[3:6], [[2, 1 << 20], [0.5], 5])
            self.assertEqual(zero[6:8], [{"text": "x" * 99999}, 1])
            self.assertEqual(len(zero[8:]), 1)
            np.testing.assert_allclose(zero[8], 0.9 + 0.1 * 0.5, rtol=1e-6)

    def test_collectives_come_also_before_the_optimizer(self):
        for ps in 1, 0:
            for rank, found in enumerate(self.both("early", ps)):
                rows, objects, *rest = found
                self.assertEqual(rows, [[0, 1], [0, 1], [2, 3]])
                self.assertEqual(objects, [{"r": 0}, {"r": 1}])
                self.assertEqual(rest[:3], [[1] * 3, [rank] * 3, [1] * 3])
                self.assertEqual(rest[3], 1 << 20)

    def test_each_name_of_horovod_works_or_says_what_to_do(self):
        self.assertEqual(set(ranks.USES), set(horovod_names.TORCH))
        for rank, found in enumerate(self.both("names")):
            for name, value in expected_of_names(rank).items():
                with self.subTest(name, rank=rank):
                    if isinstance(value, str):
                        self.assertRegex(found.pop(name), value)
                    else:
                        self.assertEqual(found.pop(name), value)
            self.assertFalse(found)

    def test_the_older_import_has_the_same_names(self):
        for name in horovod_names.TORCH:
            here = getattr(ranks.hvd, name)
            self.assertIs(getattr(capstan.horovod, name), here)
        for name in horovod_names.TORCH_ELASTIC:
            with self.assertRaisesRegex(ranks.hvd.ConfigError, f"elastic.{name}"):
                getattr(ranks.hvd.elastic, name)(None)
        with self.assertRaisesRegex(ranks.hvd.ConfigError, "capstan local"):
            capstan.horovod.run(print, np=2)

    def test_calls_that_differ_are_named_on_all_ranks(self):
        zero, one = self.both("differ")
        received = zero.pop(-3), one.pop(-3)
        self.assertEqual(received, (0, 2))
        self.assertEqual(zero, one)
        texts = [
            "rank 0 calls allreduce 'metric 0' .*rank 1 .*'metric 1'",
            r"\(1, 2\).*\(2, 1\)",
            "int32.*float32",
            "Sum.*Max",
            r"allgather float32 \(..., 2\).*\(..., 3\)",
            "from rank 0.*from rank 1",
            "rank 0 calls barrier, and rank 1 allreduce",
            "'w0'.*'w1'",
            "alltoall .*1.*2",
            "root_rank is 2; allowed: 0 to 1",
            "3 rows without splits",
            r"splits of alltoall are \[2, 1\]",
            "without dimensions",
            r"process_set \[0\]",
            "'step', which is of type int",
            "allreduce of float; expected is a dense tensor",
            "reducescatter of list",
            "alltoall of torch.sparse_coo",
            "comm=",
            "multiply the loss by hvd.size()",
            'init.wire="bf16".',
        ]
        for text, found in zip(texts, zero):
            self.assertRegex(found, f"refused: .*{text}")
        rest = zero[len(texts) :]  # they go on
        self.assertEqual(rest, [[2, 2], [[1, 1]], 5.5, [0, 3]])

    def test_a_reduction_is_exact_in_every_type_or_refused(self):
        for ps, workers in (1, 2), (0, 2), (1, 3):
            with self.subTest(ps=ps, workers=workers):
                for found in self.both("dtypes", ps, workers):
                    self.check_dtypes(found, workers)

    def test_gradients_go_back_through_collectives(self):
        """Against plain torch, with Horovod's means where it has them."""
        own = [torch.arange(8.0).reshape(4, 2) + 10 * r for r in (0, 1)]
        total = own[0] + own[1]
        rows = torch.cat([own[0][:2], own[1][:3]])
        scattered = total[:2], total[2:]
        for rank, found in enumerate(self.both("gradients")):
            of = {
                "sum": total / 2 * 2,
                "mean": total,
                "allgather": nn.functional.pad(
                    2 * (rows[:2] if rank == 0 else rows[2:]),
                    (0, 0, 0, 2 - rank),
                ),
                "broadcast": 2 * own[1] if rank else torch.zeros(4, 2),
                "alltoall": 2 * own[rank],
                "reducescatter": 2 * 2 * torch.cat(scattered),
            }
            for name, expected in of.items():
                result = torch.tensor(found["found"][name])
                self.assertTrue(torch.equal(result, expected), (name, result))
            self.assertIn("allreduce by Max has no gradient", found["refused"])

    def test_sync_batch_norm_is_that_of_all_samples(self):
        plain = self.both("norms", 0, 1, kind="torch")[0]
        for ps in 1, 0:
            parts = self.both("norms", ps, kind="hvd")
            for name in "y", "x", "eval", "weight", "running":
                tensors = [torch.tensor(part[name]) for part in parts]
                found = {"weight": sum, "running": lambda t: t[0]}.get(
                    name, torch.cat
                )(tensors)
                expected = torch.tensor(plain[name])
                torch.testing.assert_close(
                    found, expected, rtol=1e-4, atol=1e-3, msg=name
                )
            self.assertEqual(parts[0]["running"], parts[1]["running"])

    def test_a_rank_that_joins_brings_zeros_until_all_have_joined(self):
        for ps in 1, 0:
            for batches, last in ([2, 4], 1), ([5, 3], 0), ([3, 3], 1):
                found = self.both("joined", ps, batches=batches)
                self.assertEqual(found[0]["weights"], found[1]["weights"])
                distance = frameworks.distance(
                    found[0]["weights"], expected_of_joined(batches)
                )
                self.assertLess(distance, 1e-5)
                for rank, of in enumerate(found):
                    told = [t for t in of["told"] if not isinstance(t, str)]
                    self.assertEqual(told, [last, 0.5] * 2)
                    refused = [t for t in of["told"] if isinstance(t, str)]
                    count = 2 if rank and batches[0] < batches[1] else 0
                    self.assertEqual(len(refused), count)
                    for text in refused:
                        self.assertIn("a rank is in join()", text)

    def test_join_without_an_optimizer_brings_zeros_to_sums(self):
        zero, one = self.both("joined_sums")
        self.assertEqual(zero[0], [2, 2])
        self.assertIn("Max", zero[1])
        self.assertEqual(zero[2:], [1])
        self.assertEqual(one[:2], [[2, 2], [1, 1]])
        self.assertRegex(one[2], r"Max.* ranks \[0\] are in join\(\)")
        self.assertEqual(one[3:], [1])

    def test_a_script_that_does_not_wrap_its_optimizer_is_told(self):
        with Cluster(self.program, "unwrapped", 1, 2, by_hand=False) as run:
            self.assertNotIn(0, run.wait().values())
            text = "each trains alone. Wrap .* hvd.DistributedOptimizer"
            self.assertRegex(run.error("worker0"), text)
        self.assertEqual(self.both("unwrapped", by_hand=True), [2, 2])

    def test_a_rank_that_is_gone_is_named_by_the_others(self):
        with Cluster(self.program, "left", 1, 3) as run:
            found = run.wait()
            self.assertEqual(found["worker1"], -signal.SIGKILL)
            for rank in 0, 2:
                self.assertEqual(found[f"worker{rank}"], 138)
                text, status = run.result(f"worker{rank}")
                self.assertRegex(text, "rank 1 (was lost|has)")
                self.assertEqual(status, 138)

    def test_with_staleness_one_rank_ends_as_plain_torch(self):
        for wrap_first in False, True:
            self.check_one_stale_rank(wrap_first=wrap_first)

    def test_with_staleness_ranks_reach_their_end(self):
        for staleness in 1, 4:
            keys = {"strategy": {"staleness": staleness}}
            with self.ranks(1, steps=frameworks.STEPS, **keys) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))

    def test_the_example_runs_with_staleness(self):
        local = [str(PROGRAM), "local", "--ps", "1", "--workers", "2"]
        stale = ["--set", "strategy.staleness=4", "--", sys.executable]
        self.run_example([*local, *stale])

    def test_what_does_not_go_with_staleness_is_named(self):
        for what, texts in {
            "sum": ["op of .* is Sum: leave it out, .* are added"] * 2,
            "passes": ["backward_passes_per_step is 0"] * 2,
            "copier": ["Lookahead keeps a copy of the weights"] * 2,
            "load": ["was loaded after DistributedOptimizer"] * 2,
            "broadcast": ["^None", "was loaded after DistributedOptimizer"],
            "join": [r"join\(\) with strategy.staleness: leave it out"] * 2,
            "norm": ["SyncBatchNorm with strategy.staleness"] * 2,
        }.items():
            with (
                self.subTest(what),
                Cluster(self.program, "stale", 1, 2, what=what) as run,
            ):
                run.wait()
                for rank, text in enumerate(texts):
                    self.assertRegex(str(run.result(f"worker{rank}")), text)

    def test_a_worker_that_is_started_again_says_why_it_stays_out(self):
        keys = {"steps": frameworks.STEPS}
        with self.ranks(1, pause=3, holds=True, **keys) as run:
            run.wait_for("worker1", "pauses")
            run.processes["worker1"].kill()
            run.processes["worker1"].wait()
            run.restart("worker1", **keys)
            run.processes["worker1"].wait(DEADLINE)
            run.path("go").touch()
            found = run.wait()
            self.assertEqual(found, {"ps0": 0, "worker0": 0, "worker1": 138})
            text = "rank 1 was started again .* stays out.* for all ranks again"
            self.assertRegex(run.error("worker1"), text)

    def test_a_predivide_factor_is_a_number_above_0(self):
        wrong = ranks.hvd.ConfigError
        for factor in 0.0, -1.0, float("inf"), float("nan"):
            with self.assertRaisesRegex(wrong, "_predivide_factor is"):
                ranks.hvd.DistributedOptimizer(
                    ranks.sgd(ranks.network()), gradient_predivide_factor=factor
                )

    def check_dtypes(self, result, workers):
        for key, values in result["found"].items():
            dtype, op = key.split()
            make = ranks.small if op == "Product" else ranks.numbers
            parts = [make(dtype, rank) for rank in range(workers)]
            if dtype in ranks.INTEGERS:
                numbers = [np.array(p.tolist(), object) for p in parts]
                self.assertEqual(values, exact(numbers, op), key)
                continue
            found = torch.tensor(values, dtype=torch.double)
            wide = torch.stack([p.double() for p in parts])
            expected = torch.tensor(
                exact(list(wide.numpy()), op), dtype=torch.double
            )
            scale = wide.abs().max(0)[0] if "M" in op else wide.abs().sum(0)
            accuracy = 2 * workers * torch.finfo(getattr(torch, dtype)).eps
            if op == "Product":
                scale = expected.abs()
            error = (found - expected).abs()
            self.assertTrue((error <= accuracy * scale).all(), key)
            if op in ("Min", "Max"):
                self.assertTrue((error == 0).all(), key)
        wide = [ranks.numbers("float32", r).double() for r in range(workers)]
        found = torch.tensor(result["half"]).double()
        torch.testing.assert_close(found, 1.5 * sum(wide), rtol=1e-6, atol=1e-3)
        self.assertEqual(result["flags"], [[False, True], [True, True]])
        texts = (
            "does not fit into uint8",
            "does not fit into int64",
            "of bool by Sum: take Min",
            "complex64; allowed",
            "by a factor of 0.5: take floating point",
            "Adasum of Horovod is not in capstan.horovod: take op=hvd.Average",
            "op and average are both given",
        )
        for text, found in zip(texts, result["refused"]):
            self.assertIn(text, found)


def exact(parts, op):
    """Of each rank's array; a mean of whole numbers is rounded to zero."""
    if op == "Min":
        return np.min(parts, 0).tolist()
    if op == "Max":
        return np.max(parts, 0).tolist()
    if op == "Product":
        return np.prod(parts, 0).tolist()
    total = np.sum(parts, 0)
    if op == "Sum":
        return total.tolist()
    if total.dtype != object:
        return (total / len(parts)).tolist()
    return [int(abs(t) // len(parts)) * (1 if t > 0 else -1) for t in total]


def expected_of_joined(batches):
    """The weights of one process that does what both ranks do."""
    net = ranks.network()
    optimizer = ranks.sgd(net)
    x, y = ranks.dataset().tensors
    for _ in range(2):
        for step in range(max(batches)):
            optimizer.zero_grad()
            for rank in range(2):
                if step < batches[rank]:
                    first = 4 * (2 * step + rank)
                    rows = slice(first, first + 4)
                    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
                    (loss / 2).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


def expected_of_names(rank):
    """A text is a pattern of what refuses."""
    own = [np.arange(8.0).reshape(4, 2) + 10 * r for r in (0, 1)]
    total = own[0] + own[1]
    mean = (total / 2).tolist()
    rows = np.concatenate([own[0][:1], own[1][:2]]).tolist()
    groups = [
        np.concatenate([part[:n] for part in own]).tolist() for n in (1, 2)
    ]
    means = [(total[:n] / 2).tolist() for n in (1, 2)]
    scattered = [
        (total[:n] / 2)[n // 2 * rank :][: n // 2].tolist() for n in (2, 4)
    ]
    halves = [part[2 * rank : 2 * rank + 2] for part in own]
    sent = [own[0][:3], own[1][:2]] if rank == 0 else [own[0][3:], own[1][2:]]
    x = np.arange(8.0).reshape(4, 2)
    both = torch.tensor(np.concatenate([x, x + 10]), dtype=torch.float)
    norm = nn.BatchNorm1d(2)(both).tolist()
    plugins = {
        name: (PROGRAM.parent / f"capstan-{name}.so").exists()
        for name in ("gloo", "nccl", "cuda")
    }
    return {
        "Adasum": "Adasum of Horovod .* take op=hvd.Average",
        "Average": mean,
        "Compression": mean,
        "DistributedOptimizer": [(1 - total.mean(0) / 2).tolist()],
        "HorovodInternalError": True,
        "Max": own[1].tolist(),
        "Min": own[0].tolist(),
        "ProcessSet": [1, rank == 0],
        "Product": (own[0] * own[1]).tolist(),
        "Sum": total.tolist(),
        "SyncBatchNorm": Close(norm[4 * rank :][:4]),
        "add_process_set": "refused: add_process_set",
        "allgather": rows,
        "allgather_async": rows,
        "allgather_object": [{"r": 0}, {"r": 1}],
        "allreduce": total.tolist(),
        "allreduce_": [mean, True],
        "allreduce_async": mean,
        "allreduce_async_": mean,
        "alltoall": np.concatenate(halves).tolist(),
        "alltoall_async": [
            np.concatenate(sent).tolist(),
            [len(part) for part in sent],
        ],
        "barrier": None,
        "broadcast": own[1].tolist(),
        "broadcast_": [own[1].tolist(), True],
        "broadcast_async": own[1].tolist(),
        "broadcast_async_": own[1].tolist(),
        "broadcast_object": [1],
        "broadcast_optimizer_state": [2.0, [2.0, 2.0]],
        "broadcast_parameters": [[1, 1], [1.0]],
        "ccl_built": False,
        "cross_rank": 0,
        "cross_size": 1,
        "cuda_built": plugins["cuda"],
        "ddl_built": False,
        "elastic": "elastic.run of Horovod .*checkpoint",
        "global_process_set": [2, rank, True],
        "gloo_built": plugins["gloo"],
        "gloo_enabled": True,
        "grouped_allgather": groups,
        "grouped_allgather_async": groups,
        "grouped_allreduce": [total[:1].tolist(), total[:2].tolist()],
        "grouped_allreduce_": [total[0].tolist(), True],
        "grouped_allreduce_async": means,
        "grouped_allreduce_async_": means,
        "grouped_reducescatter": scattered,
        "grouped_reducescatter_async": scattered,
        "init": True,
        "is_homogeneous": True,
        "is_initialized": True,
        "join": 1,
        "local_rank": rank,
        "local_size": 2,
        "mpi_built": False,
        "mpi_enabled": False,
        "mpi_threads_supported": False,
        "nccl_built": plugins["nccl"],
        "poll": "refused: a handle is 5",
        "rank": rank,
        "reducescatter": total[:3][[slice(0, 2), slice(2, 3)][rank]].tolist(),
        "reducescatter_async": (total / 2)[2 * rank :][:2].tolist(),
        "remove_process_set": False,
        "rocm_built": False,
        "size": 2,
        "sparse_allreduce_async": [0.5, 0.5, 3.0, 0.0],
        "start_timeline": "start_timeline .*CAPSTAN_TRACE_STEPS",
        "stop_timeline": "stop_timeline .*CAPSTAN_TRACE_STEPS",
        "synchronize": "refused: a handle is None",
        "shutdown": [None, False],
    }


class Close(list):
    """Equals numbers near its own."""

    def __eq__(self, other):
        return np.allclose(list(self), other, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
