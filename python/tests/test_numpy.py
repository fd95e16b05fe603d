# SPDX-License-Identifier: Apache-2.0
"""The package with NumPy alone; processes are started for real."""

import csv
import ctypes
import itertools
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import numpy_ranks
from processes import PROGRAM, Cluster, Local, check_complete

import capstan
from capstan.overrides import overrides

STEPS = 200
CLUSTERS = {"ps": (1, 2), "all-reduce": (0, 2)}


def ranks(name, ps, workers, **arguments):
    return Cluster("numpy_ranks.py", name, ps, workers, **arguments)


def reference(first, steps):
    """Weights of one process that takes the whole batch, in double."""
    w = [np.array(a) for a in first]
    v = [np.zeros_like(a) for a in w]
    x, y = (a.astype(np.float64) for a in numpy_ranks.data(steps))
    for step in range(steps):
        _, gradients = numpy_ranks.gradients(w, x[step], y[step])
        for a, b, g in zip(w, v, gradients):
            b *= 0.9
            b += g
            a -= 0.1 * b
    return w


def distance(found, expected):
    a, b = (
        np.concatenate([np.ravel(t) for t in w]) for w in (found, expected)
    )
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def reference_rows(first, steps, kind, lr, late=False, decay=0):
    """Rows of one process that takes the whole batch, in double. LATE: each
    step reads them without the push before it. DECAY: of the rows pushed."""
    w = np.array(first)
    read = w.copy() if late else w
    sums = np.zeros((2, *w.shape) if kind[:4] == "Adam" else w.shape)
    ids, targets = numpy_ranks.bags(steps)
    rows = (ids // 2**57).astype(int)
    for step in range(steps):
        error = read[rows[step]].sum(1) - targets[step]
        if step == numpy_ranks.NO_ROWS:
            error = np.ones_like(error)
        read = w.copy() if late else w
        gradient = np.zeros_like(w)
        for k in range(numpy_ranks.BAG):
            np.add.at(gradient, rows[step, :, k], 2 * error / error.size)
        pushed = np.unique(rows[step])
        if kind == "AdamW":
            w[pushed] -= lr * decay * w[pushed]
        else:
            gradient[pushed] += decay * w[pushed]
        if kind == "SGD":
            w -= lr * gradient
            continue
        if kind in ("Adam", "AdamW"):
            g = gradient[pushed]
            sums[0, pushed] += 0.1 * (g - sums[0, pushed])
            sums[1, pushed] += 0.001 * (g**2 - sums[1, pushed])
            mean = sums[0, pushed] / (1 - 0.9 ** (step + 1))
            root = np.sqrt(sums[1, pushed] / (1 - 0.999 ** (step + 1)))
            w[pushed] -= lr * mean / (root + 1e-8)
            continue
        sums += gradient**2
        w -= lr * gradient / (np.sqrt(sums) + 1e-10)
    return w


def begun_rows():
    """All rows after those of first_rows() were written; the last stand."""
    rows = np.zeros((numpy_ranks.ROWS, numpy_ranks.DIM), np.float32)
    for id, row in zip(*numpy_ranks.first_rows()):
        rows[id] = row
    return rows


def reference_written(first, steps, ranks):
    """Rows of one process that writes and pushes what all RANKS do. Rows are
    admitted by the second push, or when they are written."""
    w = np.array(first)
    pushes = np.zeros(len(w), int)
    pushes[numpy_ranks.first_rows()[0]] = 2
    for step in range(steps):
        gradient, counts = np.zeros_like(w), np.zeros(len(w), int)
        for rank in range(ranks):
            written, rows, pushed, gradients = numpy_ranks.step_rows(step, rank)
            for id, row in zip(written, rows):
                w[id], pushes[id] = row, 2
            np.add.at(gradient, pushed, gradients / ranks)
            counts[np.unique(pushed)] += 1
        admitted = pushes >= 2
        w[admitted] -= 0.5 * gradient[admitted]
        pushes += counts
    return w, np.flatnonzero(pushes >= 2).tolist()


class Collectives(unittest.TestCase):
    def test_they_equal_numpy_in_rank_order(self):
        for strategy, ps, workers in ("ps", 1, 3), ("allreduce", 0, 3):
            arguments = {"strategy": strategy, "late": 0.3}
            run = ranks("collectives", ps, workers, **arguments)
            with self.subTest(strategy=strategy), run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                for rank in range(workers):
                    text = run.results(f"worker{rank}")
                    gathered, objects, sent, total, empty = text[0]
                    self.assertEqual(gathered, [[[r, 7]] for r in range(3)])
                    self.assertEqual([o["rank"] for o in objects], [0, 1, 2])
                    self.assertEqual([len(o["text"]) for o in objects], [0, 1, 2])
                    self.assertEqual([sent, total, empty], ["from 1", 4.5, 0])
                    self.assertEqual(text[1], [31, True])

    def test_a_run_without_one_opens_no_port_for_it(self):
        with ranks("ports", 1, 2) as run:
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(2):
                *training, after = run.result(f"worker{rank}")
                self.assertEqual(len(set(training)), 1, training)
                self.assertGreater(after, training[0])

    def test_a_time_out_names_who_has_called_and_who_has_not(self):
        for first in True, False:
            with self.subTest(first=first), ranks("late", 1, 3, first=first) as run:
                for rank in 0, 1:
                    run.processes[f"worker{rank}"].wait(60)
                    name, code, text = run.result(f"worker{rank}")
                    self.assertEqual([name, code], ["PeerLost", "PEER_SILENT"])
                    self.assertIn(
                        "all_reduce of 24 bytes of float64, sum: rank 2 did "
                        "not call it within timeouts.step (4 s), and ranks 0, "
                        "1 did",
                        text,
                    )

    def test_one_that_waits_for_the_others_ends_with_the_run(self):
        with ranks("stays_away", 1, 2) as run:
            for rank in 0, 1:
                run.wait_for(f"worker{rank}", "calls")
            run.wait_for("worker0", "ps 0 joined", "err")
            run.processes["ps0"].send_signal(signal.SIGTERM)
            found = run.processes["worker0"].wait(60)
            self.assertEqual(found, 138, run.error("worker0"))
            self.assertIn("PeerLost: ended by a signal", run.error("worker0"))

    def test_one_that_the_others_have_behind_them_is_an_error(self):
        with ranks("rejoins", 1, 3, early=True) as run:
            for rank in 0, 1:
                run.wait_for(f"worker{rank}", "lost")
            run.restart("worker2", again=True, early=True)
            self.assertEqual(run.processes["worker2"].wait(60), 138)
            self.assertIn("before its start", run.error("worker2"))
            run.restart("worker2", again=True)  # which finds the others
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))

    def test_they_work_again_once_a_lost_rank_has_joined_again(self):
        with ranks("rejoins", 1, 3) as run:
            for rank in 0, 1:
                run.wait_for(f"worker{rank}", "lost")
            run.restart("worker2", again=True)
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(3):
                lost, sums = run.result(f"worker{rank}")
                self.assertEqual(sums, [6] * 5)
                if rank < 2:
                    self.assertEqual(lost[0], "PeerLost")
                    self.assertIn("all_reduce of 8 bytes", lost[1])
                    self.assertIn("rank 2", lost[1])

    def test_ranks_that_do_not_call_the_same_are_named(self):
        expected = {
            "other": ("ConfigError", "WRONG_CALL", "rank 1 all_reduce of 16 bytes"),
            "killed": ("PeerLost", "PEER_LOST", "all_gather of 24 bytes: rank 1"),
            "absent": ("PeerLost", "PEER_SILENT", "rank 1"),
        }
        for kind, (name, code, text) in expected.items():
            with self.subTest(kind=kind), ranks("differ", 1, 2, kind=kind) as run:
                run.processes["worker0"].wait(30)
                found = run.result("worker0")
                self.assertEqual(found[:2], [name, code], found)
                self.assertIn(text, found[2])
                if kind == "other":
                    run.processes["worker1"].wait(30)
                    self.assertEqual(run.result("worker1")[0], name)


class Tables(unittest.TestCase):
    def test_rows_train_as_those_of_one_process_do(self):
        for kind, lr in ("SGD", 0.5), ("Adagrad", 0.1):
            found = []
            for ps in 1, 3, 0:
                rule = {"type": kind, "params": {"lr": lr}}
                with (
                    self.subTest(kind, ps=ps),
                    ranks("embedded", ps, 2, steps=60, rule=rule) as run,
                ):
                    self.assertEqual(
                        set(run.wait().values()), {0}, run.error("worker0")
                    )
                    zero, one = run.result("worker0"), run.result("worker1")
                    self.assertEqual(zero["last"], one["last"])
                    expected = reference_rows(zero["first"], 60, kind, lr)
                    self.assertLess(distance(zero["last"], expected), 1e-5)
                    self.assertGreater(
                        distance(zero["last"], zero["first"]), 0.1
                    )
                    found.append(zero["last"])
            self.assertEqual(found[0], found[1])
            self.assertEqual(found[0], found[2])

    def test_rows_that_are_asked_for_ahead_are_the_same(self):
        rule = {"type": "Adagrad", "params": {"lr": 0.1}}
        found = []
        for ps, ahead in (
            (2, None), (2, "after"), (2, "before"), (0, "after"), (0, "before"),
        ):
            with ranks(
                "embedded", ps, 2, steps=40, rule=rule, ahead=ahead
            ) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                found.append(run.result("worker0")["last"])
        for other in found[1:]:
            self.assertEqual(found[0], other)

    def test_rows_are_clipped_where_no_tensor_has_bytes(self):
        found = []
        rule = {"type": "SGD", "params": {"lr": 0.5}}
        for ps, clip in (1, 0.01), (0, 0.01), (0, 1e9):
            arguments = {"steps": 5, "rule": rule, "clip": clip}
            with ranks("embedded", ps, 2, **arguments) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                result = run.result("worker0")
                found.append(distance(result["last"], result["first"]))
        self.assertLess(abs(found[0] - found[1]), 1e-6 * found[0])
        self.assertGreater(found[2], 10 * found[1])

    def test_bags_train_as_their_rows_do(self):
        for kind, lr in ("SGD", 0.5), ("Adagrad", 0.1):
            rule = {"type": kind, "params": {"lr": lr}}
            with (
                self.subTest(kind),
                ranks(
                    "embedded", 2, 2, steps=60, rule=rule, ahead="before",
                    bagged=True,
                ) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                result = run.result("worker0")
                expected = reference_rows(result["first"], 60, kind, lr)
                self.assertLess(distance(result["last"], expected), 1e-5)

    def test_wrong_bags_are_named(self):
        ids = [1, 2, 3]
        for offsets in [0, 4], [1], [0, 2, 1], [], [[0]], [0.0], [0, 2**32]:
            with (
                self.subTest(offsets=offsets),
                self.assertRaisesRegex(capstan.ConfigError, "offsets"),
            ):
                capstan.Bags(ids, offsets=offsets)
        with self.assertRaisesRegex(capstan.ConfigError, "weights"):
            capstan.Bags([ids, ids], weights=[[1, 1]] * 3)

    def test_the_library_checks_offsets_too(self):
        with ranks("tampered_bags", 1, 1) as run:
            self.assertEqual(run.wait()["worker0"], 2, run.error("worker0"))
            self.assertIn("offsets[2] is 9", run.error("worker0"))

    def test_bags_keep_their_ids(self):
        ids = np.array([[1, 2]])
        bags = capstan.Bags(ids)
        ids[:] = 0
        self.assertEqual(bags.ids.tolist(), [1, 2])

    def test_a_lookup_after_a_prefetch_is_refused(self):
        with ranks("asked_twice", 1, 1) as run:
            self.assertEqual(run.wait()["worker0"], 2, run.error("worker0"))
            self.assertIn("the step ends first", run.error("worker0"))

    def test_with_staleness_rows_ahead_lack_one_push_at_most(self):
        rule = {"type": "SGD", "params": {"lr": 0.5}}
        for ahead in "after", "before":
            with (
                self.subTest(ahead),
                ranks(
                    "embedded", 1, 1, steps=60, rule=rule, ahead=ahead,
                    staleness="inf",
                ) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                result = run.result("worker0")
                expected = reference_rows(result["first"], 60, "SGD", 0.5)
                late = reference_rows(result["first"], 60, "SGD", 0.5, True)
                most = distance(late, expected)
                self.assertLess(
                    distance(result["last"], expected), 1.1 * most
                )

    def test_written_rows_are_those_of_one_process(self):
        first = begun_rows()
        expected, ids = reference_written(first, 12, 2)
        for ps in 1, 3, 0:
            with self.subTest(ps=ps), ranks("written", ps, 2, steps=12) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                for rank in "worker0", "worker1":
                    begun, found, ended = run.results(rank)
                    self.assertEqual(begun, first.tolist())
                    self.assertEqual(found, ids)
                    self.assertEqual(ended, expected.tolist())

    def test_rows_that_are_pushed_decay(self):
        for kind, lr in (
            ("SGD", 0.5), ("Adagrad", 0.1), ("Adam", 0.05), ("AdamW", 0.05),
        ):
            found = []
            for ps in 2, 0:
                rule = {"type": kind, "params": {"lr": lr, "weight_decay": 0.2}}
                with (
                    self.subTest(kind, ps=ps),
                    ranks("embedded", ps, 2, steps=40, rule=rule) as run,
                ):
                    self.assertEqual(
                        set(run.wait().values()), {0}, run.error("worker0")
                    )
                    result = run.result("worker0")
                    first, last = result["first"], result["last"]
                    expected = reference_rows(
                        first, 40, kind, lr, decay=0.2
                    )
                    other = reference_rows(first, 40, kind, lr)
                    self.assertLess(distance(last, expected), 1e-5)
                    self.assertGreater(distance(other, expected), 0.05)
                    found.append(last)
            self.assertEqual(found[0], found[1])

    def test_written_rows_go_back_with_the_run(self):
        first = begun_rows()
        sets = ["checkpoint.every_steps=20"]
        for ps in 2, 0:
            with self.subTest(ps=ps):
                run = Local(
                    "numpy_ranks.py", "written", ps, 3, sets, steps=150,
                    rewinds=True, pause=0.005,
                )
                self.assertEqual(run.status, 0, run.log)
                self.assertIn("went back 3 times", run.log)
                expected = reference_written(first, 150, 2)[0].tolist()
                self.assertEqual(run.results.count(expected), 2)

    def test_written_rows_outlive_a_restart_of_the_run(self):
        with tempfile.TemporaryDirectory(prefix="capstan-python-") as folder:
            expected = reference_written(begun_rows(), 20, 2)[0].tolist()
            checkpoint = {"dir": folder, "every_steps": 8}
            checkpoint["delta_every_steps"] = 2
            for kill, ps in ([0, 7], 3), ([0, 14], 1), (None, 2):
                with ranks(
                    "written", ps, 2, steps=20, kill=kill,
                    checkpoint=checkpoint, timeouts={"peer": 2, "chief": 1},
                ) as run:
                    found = run.wait()
                    if kill:
                        self.assertEqual(found["worker0"], -signal.SIGKILL)
                        continue
                    error = run.error("worker0")
                    self.assertEqual(set(found.values()), {0}, error)
                    self.assertRegex(error, "resuming from .*step-")
                    self.assertEqual(run.result("worker0"), expected)

    def test_written_rows_of_a_step_that_overflows_are_in_its_delta(self):
        with (
            tempfile.TemporaryDirectory(prefix="capstan-python-") as folder,
            ranks("written_at_overflow", 1, 1, folder=folder) as run,
        ):
            self.assertEqual(run.wait()["worker0"], -signal.SIGKILL)
            for process in run.processes:
                run.restart(process, folder=folder, resumed=True)
            self.assertEqual(set(run.wait().values()), {0})
            step, rows = run.result("worker0")
            self.assertEqual(step, 5)
            self.assertEqual({v for row in rows for v in row}, {42})

    def test_what_tables_would_not_do_is_an_error(self):
        with tempfile.TemporaryDirectory(prefix="capstan-python-") as folder:
            weights = f"{folder}/init.safetensors"
            header = json.dumps({
                "dense": {
                    "dtype": "F32", "shape": [1], "data_offsets": [0, 4]
                }
            }).encode()
            Path(weights).write_bytes(
                len(header).to_bytes(8, "little") + header + bytes(4)
            )
            for name, ps, workers, text, arguments in (
                ("written_with_init", 1, 1, "no rows", {"weights": weights}),
                ("written_with_init", 0, 1, "no rows", {"weights": weights}),
                ("momentum_of_one", 1, 2, "that rank 0's has not", {}),
                ("momentum_of_tables", 1, 1, "without momentum", {}),
            ):
                with (
                    self.subTest(name, ps=ps),
                    ranks(name, ps, workers, **arguments) as run,
                ):
                    statuses = run.wait()
                    self.assertTrue(all(s > 0 for s in statuses.values()))
                    self.assertIn(text, run.error("worker0"))

    def test_a_listing_that_was_left_begins_anew(self):
        with ranks("listed_twice", 2, 1) as run:
            found = run.wait()
            self.assertEqual(set(found.values()), {0}, run.error("worker0"))
            self.assertEqual(run.result("worker0"), [-1, True])

    def test_written_rows_are_there_once_when_a_worker_is_killed(self):
        first = begun_rows()
        expected = reference_written(first, 12, 1)[0].tolist()
        for step in -1, 5:
            arguments = {
                "steps": 12, "idle": 1, "holds": 9, "timeouts": {"peer": 2},
            }
            with (
                self.subTest(step=step),
                ranks("written", 2, 2, kill=[1, step], **arguments) as run,
            ):
                self.assertEqual(run.processes["worker1"].wait(60), -9)
                run.restart("worker1", **arguments)
                run.wait_for("worker1", "ps 1: over", "err")
                run.path("back").touch()  # it joins a step that is to come
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker1")
                )
                for rank in "worker0", "worker1":
                    self.assertEqual(run.result(rank), expected)

    def test_rows_are_written_alike_and_in_order(self):
        for wrong, text in (
            ("others", "written before the start by this rank and not by rank 0"),
            ("ahead", "write them first"),
            ("bags", "by id"),
            ("shape", "have shape"),
            ("many", "ckpt export --table rows"),
        ):
            with (
                self.subTest(wrong),
                ranks("written_wrongly", 1, 2, wrong=wrong) as run,
            ):
                self.assertNotIn(0, run.wait().values())
                self.assertIn(text, run.error("worker1"))

    def test_rules_that_move_rows_not_pushed_are_refused(self):
        rule = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
        with ranks("embedded", 1, 1, steps=5, rule=rule) as run:
            self.assertIn(2, run.wait().values(), run.error("worker0"))


class Training(unittest.TestCase):
    def test_two_ranks_train_as_one_does_with_the_whole_batch(self):
        for name, (ps, workers) in CLUSTERS.items():
            with (
                self.subTest(name),
                ranks("train", ps, workers, steps=STEPS) as run,
            ):
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                zero, one = run.result("worker0"), run.result("worker1")
                self.assertEqual(
                    zero["first"], [w.tolist() for w in numpy_ranks.weights(0)]
                )
                self.assertEqual(zero["weights"], one["weights"])
                expected = reference(zero["first"], STEPS)
                self.assertLess(distance(zero["weights"], expected), 1e-5)

    def test_any_number_of_ps_gives_the_same_bits(self):
        found = []
        for ps in 1, 2, 3:
            with ranks("train", ps, 2, steps=20) as run:
                self.assertEqual(
                    set(run.wait().values()), {0}, run.error("worker0")
                )
                found.append(run.result("worker1")["weights"])
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def test_a_resumed_run_ends_with_the_same_bits(self):
        with ranks("train", 1, 2, steps=20) as run:
            run.wait()
            whole = run.result("worker0")["weights"]
        with ranks("train", 1, 2, steps=20) as other:
            other.wait()
            folder = str(other.path("checkpoint"))
            for steps in 10, 20:
                with ranks(
                    "train", 1, 2, steps=steps, checkpoint=folder
                ) as run:
                    self.assertEqual(
                        set(run.wait().values()), {0}, run.error("worker0")
                    )
                    result = run.result("worker0")
        self.assertEqual(result["begin"], 10)
        self.assertEqual(result["weights"], whole)

    def test_a_run_that_all_ranks_end_before_its_last_step_goes_on(self):
        with ranks("train", 1, 2, steps=6) as other:
            other.wait()
            whole = other.result("worker0")["weights"]
            for ps, early in (1, False), (1, True), (0, False):
                folder = other.path(f"checkpoint-{ps}-{early}")
                keys = {"steps": 6, "early": early, "checkpoint": str(folder)}
                for loop in 3, 6:
                    with (
                        self.subTest(ps=ps, early=early, loop=loop),
                        ranks("planned", ps, 2, loop=loop, **keys) as run,
                    ):
                        self.assertEqual(
                            set(run.wait().values()), {0}, run.error("worker0")
                        )
                        result = run.result("worker0")
                        saved = folder / f"step-{loop:09}" / "manifest.json"
                        manifest = json.loads(saved.read_text())
                        self.assertTrue(manifest["final"])
                self.assertEqual(result["begin"], 3)
                self.assertEqual(result["weights"], whole)

    def test_a_longer_loop_ends_at_the_runs_last_step(self):
        with ranks("train", 1, 2, steps=20) as run:
            run.wait()
            whole = run.result("worker0")["weights"]
        # The job's `steps` is an argument of init; the loop would go on to 30.
        with ranks("planned", 1, 2, steps=20, loop=30) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )
            self.assertEqual(run.result("worker0")["weights"], whole)

    def test_a_complete_run_takes_no_step_when_started_again(self):
        for first in "push", "rows", "step":
            for ps in 1, 0:
                check_complete(self, "numpy_ranks.py", ps, first=first)

    def test_a_listed_chief_trains_too(self):
        with ranks("train", 1, 1, chief=1, steps=20) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("chief0")
            )
            zero, one = run.result("chief0"), run.result("worker0")
            self.assertEqual((zero["size"], one["size"]), (2, 2))
            self.assertEqual(zero["weights"], one["weights"])

    def test_a_chief_that_coordinates_serves_in_init(self):
        with ranks("led", 1, 2, chief=1, steps=20) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("chief0")
            )
            self.assertEqual(run.result("worker1")["size"], 2)
            self.assertEqual(run.results("chief0"), [])

    def test_rank_variables_are_taken_out_of_the_environment(self):
        with ranks("environment", 0, 2) as run:
            run.wait()
            self.assertEqual(
                run.result("worker1"), {"left": [], "ranks": [1, 2]}
            )

    def test_staleness_trains(self):
        keys = {"strategy": {"staleness": "inf"}, "steps": 100}
        with ranks("train", 1, 2, **keys) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )

    def test_clipping_by_the_run_is_refused_with_staleness(self):
        keys = {"strategy": {"staleness": 1}, "clip": 0.01, "steps": 5}
        with ranks("train", 1, 2, **keys) as run:
            found = run.wait()
            self.assertEqual(found["worker0"], 2, run.error("worker0"))
            text = run.error("worker0") + run.error("worker1")
            self.assertIn("gradient_clipping with strategy.staleness", text)

    def test_on_nan_is_refused_where_the_script_does_not_follow_it(self):
        with ranks("train", 1, 2, on_nan="skip", steps=5) as run:
            self.assertEqual(run.wait()["worker0"], 2, run.error("worker0"))
            self.assertIn('on_nan: found "skip"', run.error("worker0"))

    def test_changes_of_an_own_optimizer_with_one_trainer_are_its_own(self):
        for staleness in 1, 4, "inf":
            keys = {"strategy": {"staleness": staleness}, "steps": 200}
            with self.subTest(staleness), ranks("changes", 1, 1, **keys) as run:
                self.assertEqual(run.wait()["worker0"], 0, run.error("worker0"))
                self.assertLess(run.result("worker0")["distance"], 1e-6)

    def test_a_change_that_is_not_finite_is_named(self):
        keys = {"strategy": {"staleness": "inf"}, "steps": 200, "bad": 20}
        with ranks("changes", 1, 1, **keys) as run:
            self.assertEqual(run.wait()["worker0"], 1)
            self.assertIn('"w1"', run.error("worker0"))


class Costs(unittest.TestCase):
    def test_the_interpreters_lock_is_free_in_a_wait(self):
        with ranks("waiting", 1, 2) as run:
            run.wait()
            self.assertEqual(run.result("worker0")["count"], 50)

    def test_no_allocation_grows(self):
        with ranks("memory", 1, 1, steps=2000) as run:
            run.wait()
            self.assertLess(run.result("worker0")["grown"], 100)


class Led(Cluster):
    """A cluster whose chief is the program, with JOB, and only coordinates."""

    def __init__(self, job, *arguments, **named):
        self._job = tempfile.NamedTemporaryFile("w", suffix=".json")
        rule = {"type": "SGD", "params": {"lr": 0.1}}  # or the ranks' own
        model = {"model": {"type": "external"}, "optimizer": rule}
        job = {"chief": "coordinate", **model, **job}
        self._job.write(json.dumps(job))
        self._job.flush()
        super().__init__("numpy_ranks.py", *arguments, chief=1, **named)

    def _command(self, job):
        if job != "chief":
            return super()._command(job)
        flags = ["--json", "--link-gbits", "0.5"]
        return [str(PROGRAM), "run", *flags, self._job.name]


class Stale(unittest.TestCase):
    """What the chief says of a run with staleness."""

    def led(self, ps, workers, job, **arguments):
        """The summary, and the log."""
        job = {"strategy": {"staleness": 4}, "steps": 12, **job}
        with Led(job, "pushes", ps, workers, **arguments) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("chief0"))
            return run.result("chief0"), run.error("chief0")

    def test_the_bound_is_that_of_a_link_in_each_direction(self):
        """n pushes together take max(M/B, n M/(m B)), whatever the rule: bytes
        of a frame without its headers."""
        bandwidth = 0.5e9 / 8 * 1448 / 1514
        for optimizer in "None", "SGD", "Adam":
            for ps, workers in (1, 2), (3, 2), (2, 3):
                floats = 40000
                keys = {"optimizer": optimizer, "floats": floats}
                found, log = self.led(ps, workers, {}, **keys)
                once = 4 * floats / bandwidth
                expected = workers / max(once, workers * once / ps)
                bound = found["bound_steps_per_second"]
                self.assertAlmostEqual(bound / expected, 1, places=5)
                share = found["steps_per_second"] / bound
                self.assertAlmostEqual(found["share_of_bound"], share, places=5)
                self.assertIn("of what the network allows", log)

    def test_each_rank_has_its_state_in_a_checkpoint_and_the_plan_says_so(self):
        for optimizer, workers in ("None", 3), ("SGD", 2):
            with tempfile.TemporaryDirectory() as folder:
                kept = 300000
                keys = {"optimizer": optimizer, "floats": 1 << 18}
                job = {"checkpoint": {"dir": folder}}
                _, log = self.led(1, workers, job, kept=kept, **keys)
                (newest,) = Path(folder).glob("step-*")
                sizes = [f.stat().st_size for f in newest.iterdir()]
                states = [s for s in sizes if kept <= s < 2 * kept]
                self.assertEqual(len(states), workers, sizes)
                # Two values of 4 bytes of each weight.
                text = "2 MB if it is Adam's; a checkpoint has those of all 3"
                told = f"{text} trainers, 6 MB" in log
                self.assertEqual(told, optimizer == "None", log)


class Failing(unittest.TestCase):
    def check(
        self, kind, text, status, own_status=None, ps=(1, 0), within=False
    ):
        for count in ps:
            with (
                self.subTest(kind=kind, ps=count, within=within),
                ranks("trouble", count, 2, kind=kind, within=within) as run,
            ):
                found = run.wait()
                own = found.pop("worker1")
                self.assertEqual(
                    set(found.values()), {status}, run.error("worker0")
                )
                self.assertEqual(
                    own, own_status or status, run.error("worker1")
                )
                for process in run.processes:
                    self.assertIn(text, run.error(process))

    def test_an_exception_ends_all_ranks_with_its_text(self):
        self.check("boom", "ValueError: boom at step 5", 1)

    def test_a_lost_peer_that_a_script_raises_ends_all_ranks_with_138(self):
        for within in False, True:
            text = "RuntimeError: in a callback"
            self.check("lose", text, 138, within=within)

    def test_an_error_that_is_its_own_cause_ends_the_run(self):
        for within in False, True:
            self.check("circle", "ValueError: a circle", 1, within=within)

    def test_a_gradient_that_is_not_a_number_is_named_on_every_rank(self):
        text = 'the gradient of "w1" is NaN or infinite in its update 6'
        self.check("infinite", text, 1)

    def test_a_second_init_is_an_error_of_that_rank(self):
        self.check("second_init", "init() was called before", 1, 2)

    def test_a_run_after_the_run_is_refused(self):
        """It would be that of one process."""
        for ps, workers in (1, 2), (0, 2), (1, 1):
            with ranks("run_after_run", ps, workers) as run:
                self.assertEqual(run.wait()["worker0"], 2)
                text = f"was rank 0 of {workers} in a run that is closed"
                self.assertIn(text, run.error("worker0"))

    def test_an_evaluator_ends_at_once(self):
        with ranks("train", 1, 2, steps=9, evaluator=1) as run:
            self.assertEqual(set(run.wait().values()), {0})
            found = run.error("evaluator0")
            self.assertIn("an evaluator does nothing", found)

    def test_what_a_script_registers_for_its_exit_is_done_once(self):
        with ranks("registered", 0, 1) as run:
            self.assertEqual(run.wait(), {"worker0": 2})
            printed = run.path("worker0.out").read_text()
            self.assertEqual(printed, "late\nearly\n")

    def test_what_took_a_missing_variable_is_said_once(self):
        for name in "LOCAL_RANK", "OMPI_COMM_WORLD_RANK":
            with ranks("missed", 0, 1, variable=name) as run:
                self.assertEqual(run.wait(), {"worker0": 1})
                lines = run.error("worker0").splitlines()
                self.assertIn(f"KeyError: '{name}'", lines)
                (hint,) = [line for line in lines if "keep_env=True" in line]
                self.assertIn(f"init() has taken {name} out of", hint)
                self.assertIn("run.local_rank", hint)
        with ranks("missed", 0, 1, variable="LOCAL_RANK", keep=True) as run:
            self.assertEqual(run.wait(), {"worker0": 0}, run.error("worker0"))

    def test_a_wrong_data_type_is_named_on_every_rank(self):
        self.check("dtype", 'tensor "w0" has the data type float64', 1, 2)

    def test_a_wrong_shape_is_named_on_every_rank(self):
        self.check("shape", '"w0" has shape (7, 5); expected is (5, 7)', 1, 2)

    def test_wrong_strides_are_named_on_every_rank(self):
        self.check("strides", 'tensor "w0" is not contiguous', 1, 2)

    def test_a_second_push_is_named_on_every_rank(self):
        self.check("twice", 'tensor "w0" is pushed twice in step 6', 2)

    def test_a_missing_push_is_named_on_every_rank(self):
        self.check("never", 'tensor "w1" was not pushed in step 6', 2)

    def test_a_wait_or_end_within_a_step_is_named_on_every_rank(self):
        text = 'a wait within step 6, in which tensor "w1" was not pushed'
        self.check("waits_within", text, 2)
        text = "an end within step 6, in which 1 of "
        self.check("ends_within", text, 2)
        self.check("ends_early_within", text, 2, ps=[1])

    def test_a_name_that_is_declared_twice_is_named_on_every_rank(self):
        for ps, workers in CLUSTERS.values():
            with ranks("declared_twice", ps, workers) as run:
                self.assertEqual(set(run.wait().values()), {2})
                for process in run.processes:
                    expected = 'parameter "a" is listed twice'
                    self.assertIn(expected, run.error(process))

    def test_a_push_after_the_end_is_an_error_of_that_rank(self):
        with ranks("after_end", 1, 2) as run:
            expected = {"ps0": 0, "worker0": 2, "worker1": 2}
            self.assertEqual(run.wait(), expected)
            self.assertIn("the run is closed", run.error("worker1"))
        with ranks("thread_after_end", 0, 1) as run:
            self.assertEqual(run.wait(), {"worker0": 0})
            self.assertIn("join() a thread", run.result("worker0"))

    def test_a_loss_that_is_not_a_number_is_named_on_every_rank(self):
        self.check("nan", "the loss is nan at step 6", 1)

    def test_models_that_differ_are_an_error_on_every_rank(self):
        for ps, workers in CLUSTERS.values():
            with ranks("other_model", ps, workers) as run:
                self.assertEqual(set(run.wait().values()), {2})
                for process in run.processes:
                    self.assertIn(
                        "has another model than rank 0", run.error(process)
                    )

    def test_a_wrong_key_ends_with_2_and_is_named(self):
        with ranks("train", 0, 1, steps=5, strategy={"stalness": 1}) as run:
            self.assertEqual(run.wait(), {"worker0": 2})
            self.assertIn(
                "strategy.stalness: unknown key", run.error("worker0")
            )

    def test_ps_go_on_when_a_worker_is_killed(self):
        keys = {"kind": "kill", "timeouts": {"peer": 2}}
        with ranks("trouble", 1, 2, **keys) as run:
            expected = {"ps0": 0, "worker0": 0, "worker1": -signal.SIGKILL}
            self.assertEqual(run.wait(), expected, run.error("worker0"))

    def test_all_reduce_ends_with_138_when_a_worker_is_killed(self):
        with ranks("trouble", 0, 2, kind="kill") as run:
            expected = {"worker0": 138, "worker1": -signal.SIGKILL}
            self.assertEqual(run.wait(), expected)
            self.assertIn("PeerLost", run.error("worker0"))

    def test_a_lost_ps_or_leader_ends_the_others_with_138(self):
        names = {
            "ps0": "ps 0",
            "worker0": "the chief at localhost",
            "worker1": "worker 1",
        }
        for ps, lost, number in (
            (1, "ps0", signal.SIGKILL),
            (1, "ps0", signal.SIGSTOP),
            (1, "worker0", signal.SIGKILL),
            (1, "worker0", signal.SIGSTOP),
            (0, "worker0", signal.SIGKILL),
            (0, "worker1", signal.SIGSTOP),
        ):
            keys = {"steps": 2000, "sleep": 0.05, "timeouts": {"peer": 2}}
            with (
                self.subTest(ps=ps, lost=lost, signal=number),
                ranks("train", ps, 2, **keys) as run,
            ):
                run.wait_for("worker1", "started")
                gone = run.processes.pop(lost)
                gone.send_signal(number)
                found = run.wait()
                gone.kill()
                gone.wait()
                self.assertEqual(set(found.values()), {138})
                for process in run.processes:
                    self.assertIn(names[lost], run.error(process))

    def test_ps_go_on_when_a_worker_stands_still(self):
        keys = {"steps": 60, "sleep": 0.05, "timeouts": {"peer": 2}}
        with ranks("train", 1, 2, **keys) as run:
            run.wait_for("worker1", "started")
            late = run.processes.pop("worker1")
            late.send_signal(signal.SIGSTOP)
            self.assertEqual(set(run.wait().values()), {0})
            late.send_signal(signal.SIGCONT)
            self.assertEqual(late.wait(30), 138, run.error("worker1"))

    def test_ps_go_on_when_a_worker_gets_sigterm(self):
        with ranks("train", 1, 2, steps=60, sleep=0.05) as run:
            run.wait_for("worker1", "started")
            run.processes["worker1"].send_signal(signal.SIGTERM)
            expected = {"ps0": 0, "worker0": 0, "worker1": 143}
            self.assertEqual(run.wait(), expected, run.error("worker1"))
            printed = run.path("worker1.out").read_text()
            self.assertEqual(printed, "started\n")  # and nothing after loops

    def test_what_a_script_raises_after_a_signal_ends_its_own_part_only(self):
        cases = itertools.product(
            ["boom_after_sigterm", "boom_within_a_step"], [False, True]
        )
        for do, within in cases:
            cluster = ranks("trouble", 1, 2, kind=do, within=within)
            with self.subTest(do, within=within), cluster as run:
                expected = {"ps0": 0, "worker0": 0, "worker1": 143}
                errors = run.error("worker1") + run.error("worker0")
                self.assertEqual(run.wait(), expected, errors)
                self.assertIn("ValueError: boom", run.error("worker1"))

    def test_ctrl_c_is_the_keyboard_interrupt_that_scripts_expect(self):
        for ps, rank, plain in (1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 0, 1):
            arguments = {"ps": ps, "rank": rank, "plain": plain}
            cluster = ranks("stopped", ps, 2, plain=bool(plain))
            with self.subTest(**arguments), cluster as run:
                name = f"worker{rank}"
                run.wait_for(name, "started")
                run.processes[name].send_signal(signal.SIGINT)
                code = run.processes[name].wait(60)
                self.assertEqual(code, 130, run.error(name))
                printed = run.path(f"{name}.out").read_text()
                self.assertEqual(printed, 'started\n{"status": 130}\n')

    def test_ctrl_c_at_the_leader_ends_all(self):
        with ranks("train", 1, 2, steps=200, sleep=0.05) as run:
            run.wait_for("worker0", "started")
            run.processes["worker0"].send_signal(signal.SIGINT)
            expected = {"ps0": 138, "worker0": 130, "worker1": 138}
            self.assertEqual(run.wait(), expected, run.error("worker0"))

    def test_sigquit_at_the_leader_logs_who_waits_and_the_run_goes_on(self):
        # What a shell starts beside it ignores SIGQUIT, and so would the ranks.
        before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGQUIT, before)
        for ps in 1, 0:
            cluster = ranks("train", ps, 2, steps=60, sleep=0.05)
            with self.subTest(ps=ps), cluster as run:
                run.wait_for("worker0", "started")
                run.processes["worker0"].send_signal(signal.SIGQUIT)
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                log = run.error("worker0")
                self.assertIn("warning: chief (pid ", log)
                self.assertIn("warning: worker 1 (rank 1, ", log)
                if ps:
                    self.assertIn("warning: ps 0 (", log)

    def test_the_report_names_every_process_at_the_leader_alone(self):
        with ranks("reported", 1, 2) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            lead = run.path("worker0.out").read_text().splitlines()
            names = [line.split(" (")[0] for line in lead]
            expected = ["chief", "worker 0", "worker 1", "ps 0", "over: ''"]
            self.assertEqual(names, expected)
            other = run.path("worker1.out").read_text().splitlines()
            self.assertEqual(len(other), 2)
            self.assertRegex(other[0], r"worker 1 \(rank 1, pid \d+\): ")

    def test_a_run_is_not_freed_while_a_thread_reports(self):
        inside, calls = threading.Event(), []

        class Library:
            def capstan_report(self, *_):
                inside.set()
                time.sleep(0.2)
                calls.append("reported")
                return 0

            def capstan_close(self, _):
                calls.append("freed")

        module = sys.modules["capstan.run"]
        with mock.patch.object(module, "_c", Library()):
            run = capstan.Run(ctypes.c_void_p(1), False)
            thread = threading.Thread(target=run.report)
            thread.start()
            inside.wait()
            run._free()
            thread.join()
            self.assertEqual(run.report(), "")
        self.assertEqual(calls, ["reported", "freed"])

    def test_a_handler_of_sigquit_stays(self):
        with ranks("handled", 0, 1) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            printed = run.path("worker0.out").read_text().split()
            self.assertEqual(
                printed, ["faulthandler's", "later", "script's", "default"]
            )

    def test_sigusr1_at_the_leader_writes_a_checkpoint(self):
        # As `capstan local` starts it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        for ps in 1, 0:
            keys = {"checkpoint": "saved", "steps": 60, "sleep": 0.05}
            with self.subTest(ps=ps), ranks("train", ps, 2, **keys) as run:
                run.wait_for("worker0", "started")
                run.processes["worker0"].send_signal(signal.SIGUSR1)
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                saved = list(run.path("saved").glob("step-*"))
                self.assertEqual(len(saved), 2)  # at the signal, at the end

    def test_sigterm_at_a_ps_ends_all(self):
        with ranks("train", 1, 2, steps=200, sleep=0.05) as run:
            run.wait_for("worker0", "started")
            run.processes["ps0"].send_signal(signal.SIGTERM)
            expected = {"ps0": 143, "worker0": 138, "worker1": 138}
            self.assertEqual(run.wait(), expected, run.error("worker0"))

    def test_ps_go_on_when_a_rank_ends_early(self):
        with ranks("trouble", 1, 2, kind="early") as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker0")
            )

    def test_a_rank_that_is_done_too_soon_ends_the_run(self):
        for ps in 1, 0:
            with (
                self.subTest(ps=ps),
                ranks("trouble", ps, 2, kind="done") as run,
            ):
                found = run.wait()
                self.assertNotIn(0, (found["worker0"],), run.error("worker0"))

    def test_no_step_is_taken_without_a_rank_that_is_done(self):
        expected = {"done": 5, "code": "ENDS_DIFFER"}
        for ps in 1, 2, 0:
            with self.subTest(ps=ps), ranks("ahead", ps, 2) as run:
                self.assertNotIn(0, run.wait().values())
                self.assertEqual(run.result("worker0"), expected)
        with ranks("ahead", 1, 2, early=True) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            self.assertEqual(run.result("worker0"), {"done": 12})

    def test_a_forked_child_gets_an_error_and_the_parent_goes_on(self):
        with ranks("trouble", 1, 2, kind="fork") as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker1")
            )

    def test_a_script_may_handle_the_end_of_its_run(self):
        with ranks("caught", 0, 2) as run:
            self.assertEqual(run.wait(), {"worker0": 0, "worker1": 1})
            expected = {"code": "CALLER_FAILED", "status": 1}
            self.assertEqual(run.result("worker0"), expected)

    def test_sys_exit_within_a_run_is_no_success(self):
        with ranks("within", 1, 2) as run:
            self.assertEqual(
                run.wait(), {"ps0": 1, "worker0": 1, "worker1": 3}
            )


class DataFiles(unittest.TestCase):
    """Files that Python writes, as `capstan data peek` reads them."""

    ROWS = 7
    TYPES = ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "|i1", ">i2", "<i4")
    TYPES += (">i8", "<u2", ">u4", "|b1")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        values = np.random.default_rng(3).uniform(-120, 120, self.ROWS)
        self.columns = {
            f"c{i}": (abs(values) if "u" in t else values).astype(t)
            for i, t in enumerate(self.TYPES)
        }
        self.columns["label"] = np.arange(self.ROWS) % 2

    def check(self, name, format, **keys):
        """The features are the columns as float32, to the last bit."""
        job = {
            "model": {"layers": [len(self.TYPES), 1]},
            "data": {"format": format, "train": name, **keys},
            "features": {
                c: {"type": "numeric"} for c in self.columns if c != "label"
            },
            "epochs": 1,
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "SGD"},
        }
        job["model"]["loss"] = "sigmoid_cross_entropy"
        path = Path(self.folder.name, "job.json")
        path.write_text(json.dumps(job))
        command = [PROGRAM, "data", "peek", "--json", f"--rows={self.ROWS}"]
        result = subprocess.run([*command, path], capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        samples = json.loads(result.stdout)["samples"]
        self.assertEqual(len(samples), self.ROWS)
        for row, sample in enumerate(samples):
            for name, column in self.columns.items():
                found = sample.get("features", sample).get(name)
                if name == "label":
                    found = sample["label"]
                self.assertEqual(np.float32(found), np.float32(column[row]))

    def test_arrays_are_those_of_numpy(self):
        others = {
            "step": np.int64(5),
            "names": np.array(["a", None], object),
            "when": np.zeros(3, "M8[s]"),
            "z": np.zeros((2, 2), complex),
        }
        path = Path(self.folder.name, "a.npz")
        np.savez_compressed(path, **others, **self.columns)
        self.check("a.npz", "npz")

    def test_fields_are_those_of_numpy(self):
        fields = [(c, a.dtype.str) for c, a in self.columns.items()]
        rows = np.zeros(self.ROWS, [*fields, ("z", "<c8"), ("when", "<M8[s]")])
        for name, column in self.columns.items():
            rows[name] = column
        np.save(Path(self.folder.name, "a.npy"), rows)
        self.check("a.npy", "npy")

    def test_tables_are_those_of_csv(self):
        for delimiter, decimal in (",", "."), (";", ","), ("\t", ","):
            with open(Path(self.folder.name, "a.csv"), "w", newline="") as out:
                writer = csv.writer(out, delimiter=delimiter)
                writer.writerow(self.columns)
                for row in zip(*self.columns.values()):
                    row = [v if v.dtype == bool else float(v) for v in row]
                    texts = [str(v).replace(".", decimal) for v in row]
                    writer.writerow(texts)
            self.check(
                "a.csv",
                "csv",
                header=True,
                delimiter=delimiter,
                decimal=decimal,
            )


class Overrides(unittest.TestCase):
    def test_keys_become_overrides(self):
        cases = [
            ({}, []),
            ({"clip": 1.5}, ["gradient_clipping=1.5"]),
            ({"clip": None}, []),
            ({"strategy": "ps"}, ['strategy.type="ps"']),
            (
                {"strategy": {"staleness": math.inf}},
                ['strategy.staleness="inf"'],
            ),
            ({"checkpoint": "run"}, ['checkpoint.dir="run"']),
            (
                {"optimizer": {"type": "Adam", "params": {"betas": [0, 0.5]}}},
                ['optimizer.type="Adam"', "optimizer.params.betas=[0, 0.5]"],
            ),
            ({"tensorboard": {"enabled": True}}, ["tensorboard.enabled=true"]),
        ]
        for keys, expected in cases:
            self.assertEqual(overrides(keys), expected)


if __name__ == "__main__":
    unittest.main()
