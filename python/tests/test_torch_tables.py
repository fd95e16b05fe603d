# SPDX-License-Identifier: Apache-2.0
"""capstan.torch.EmbeddingBag against torch's own over one process."""

import tempfile
import unittest

import frameworks

frameworks.need("torch")

import torch  # noqa: E402
import torch_tables_ranks as program  # noqa: E402
from processes import Cluster, check_adopted  # noqa: E402
from torch import nn  # noqa: E402

import capstan  # noqa: E402
from capstan.torch_tables import take_sparse  # noqa: E402

STEPS = 30
RULES = {
    "SGD": ({"lr": 0.5}, torch.optim.SGD),
    "Adagrad": ({"lr": 0.1}, torch.optim.Adagrad),
    "Adam": ({"lr": 0.05}, torch.optim.SparseAdam),
}


def ranks(ps=2, **arguments):
    return Cluster("torch_tables_ranks.py", "train", ps, 2, **arguments)


def reference(first, make, settings, scaled, rare, frozen):
    """Rows and other weights of one process with the whole batch, in double."""
    torch.manual_seed(0)
    bags = [
        nn.EmbeddingBag(program.ROWS, program.DIM, mode=mode, sparse=True)
        for mode in ("sum", "mean")
    ]
    torch.manual_seed(0)
    net = program.Net(*bags, scaled).double()
    net.last.bias.requires_grad_(not frozen)
    with torch.no_grad():
        for bag, rows in zip(bags, first):
            bag.weight.copy_(torch.tensor(rows))
    optimizers = [
        torch.optim.SGD(
            [
                weight
                for name, weight in net.named_parameters()
                if name.startswith(("last", "scale"))
            ],
            lr=0.1,
        ),
        make([bag.weight for bag in bags], **settings),
    ]
    ids, weights, targets = program.data(STEPS)
    for step in range(STEPS):
        uses = not rare or step % 3 == 2
        batch = program.batch(ids[step], weights[step], torch.float64)
        found = net(*batch, uses)
        loss = nn.functional.mse_loss(found, targets[step])
        net.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    rows = [bag.weight.tolist() for bag in bags]
    scale = net.scale.tolist() if scaled else [1]
    return rows, net.last.weight.tolist(), scale


class Equality(unittest.TestCase):
    def check(self, kind, settings=None, **arguments):
        usual, make = RULES[kind]
        settings = settings or usual
        arguments = {
            "rule": {"type": kind, "params": settings},
            **arguments,
        }
        if arguments["rule"] is None:
            settings = {"lr": 0.1}
        with ranks(steps=STEPS, **arguments) as run:
            self.assertEqual(
                set(run.wait().values()), {0}, run.error("worker1")
            )
            zero, one = run.result("worker0"), run.result("worker1")
        for result in zero, one:
            self.assertLess(result.pop("waits", 0), 7)
        self.assertEqual(zero, one)
        known = ("scaled", "rare", "frozen")
        rows, weight, scale = reference(
            zero["first"],
            make,
            settings,
            **{k: arguments.get(k, False) for k in known},
        )
        close = frameworks.distance
        self.assertLess(close(zero["rows"], rows), 1e-5)
        self.assertLess(close(zero["last"]["last.weight"], weight), 1e-5)
        found = zero["last"].get("scale", [1])
        self.assertLess(close(found, scale), 1e-5)
        self.assertGreater(close(zero["rows"], zero["first"]), 0.02)
        return zero

    def test_rows_train_as_those_of_torch(self):
        for kind in RULES:
            with self.subTest(kind):
                two = self.check(kind)
                for ps in 1, 0:
                    self.assertEqual(two, self.check(kind, ps=ps))

    def test_ids_and_rows_of_a_gpu_that_is_as_late_as_it_may_be(self):
        for scaled in False, True:
            self.check("Adagrad", gpus=1, scaled=scaled)

    def test_adam_counts_the_steps_in_which_tables_are_used(self):
        # SparseAdam adds eps before its correction of the bias, Adam after it.
        settings = {"lr": 0.05, "eps": 1e-15}
        two = self.check("Adam", settings, rare=True)
        self.assertEqual(two, self.check("Adam", settings, rare=True, ps=0))

    def test_a_resumed_run_goes_on_with_the_counts(self):
        rule = {"type": "Adam", "params": {"lr": 0.05}}
        arguments = {"rule": rule, "rare": True}
        with ranks(steps=STEPS, **arguments) as whole:
            whole.wait()
            expected = whole.result("worker0")
        for path in (1, 2), (0, 1), (2, 0):
            with (
                self.subTest(path),
                ranks(
                    path[0],
                    steps=STEPS,
                    stop=16,
                    checkpoint="checkpoint",
                    **arguments,
                ) as run,
            ):
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                folder = str(run.path("checkpoint"))
                saved = run.path("checkpoint/step-000000016/manifest.json")
                self.assertTrue(saved.exists())
                with ranks(
                    path[1], steps=STEPS, checkpoint=folder, **arguments
                ) as run:
                    found = set(run.wait().values())
                    self.assertEqual(found, {0}, run.error("worker0"))
                    last = run.result("worker0")
            for key in "rows", "last":
                self.assertEqual(last[key], expected[key])

    def test_a_table_without_a_rule_has_that_of_the_optimiser(self):
        self.check("SGD", rule=None)

    def test_passes_of_a_step_add_up(self):
        self.check("Adagrad", passes=2)

    def test_weights_of_samples_may_be_trained(self):
        zero = self.check("Adagrad", scaled=True)
        self.assertNotEqual(zero["last"]["scale"], [1])

    def test_rows_train_beside_a_parameter_that_was_frozen_later(self):
        for ps in 2, 0:
            self.check("Adagrad", frozen=True, ps=ps)

    def test_an_evaluation_pushes_nothing(self):
        self.check("Adagrad", staged=True)


def torch_ids():
    return program.IDS.tolist()


def reference_words(first, steps, make, load_at, schedule):
    """The last state of a plain model that begins with state FIRST."""
    first = {k: torch.tensor(v) for k, v in first.items()}
    net = program.Words()
    net.load_state_dict(first)
    optimizer = make(net)
    ids, targets = program.words(steps)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(steps):
        if step == load_at:
            net.load_state_dict(first)
        program.word_step(net, optimizer, ids[step], targets[step])
        if schedule:
            scheduler.step()
    return net.state_dict()


class Sparse(unittest.TestCase):
    """nn.Embedding and nn.EmbeddingBag with sparse=True against themselves."""

    def check(self, ps=2, **arguments):
        arguments = {"steps": STEPS, "optimizer": "SGD", **arguments}
        with Cluster(
            "torch_tables_ranks.py", "train_words", ps, 2, **arguments
        ) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker1"))
            zero, one = run.result("worker0"), run.result("worker1")
        self.assertEqual(zero, one)
        first, last = zero
        expected = reference_words(
            first,
            STEPS,
            program.WORD_OPTIMIZERS[arguments["optimizer"]],
            arguments.get("load_at"),
            arguments.get("schedule", False),
        )
        self.assertEqual(set(last), set(expected))
        for key, value in expected.items():
            with self.subTest(key, **arguments):
                close = frameworks.distance(last[key], value.tolist())
                self.assertLess(close, 1e-5)
                moved = frameworks.distance(last[key], first[key])
                if key == "fixed.weight":
                    self.assertEqual(moved, 0)
                else:
                    self.assertGreater(moved, 0.003)
        self.assertEqual(first["words.weight"][3], last["words.weight"][3])
        return first

    def test_they_train_as_those_of_torch(self):
        for optimizer in program.WORD_OPTIMIZERS:
            for ps in 2, 0:
                self.check(ps, optimizer=optimizer)
        self.check(rule="worker", optimizer="Adagrad")

    def start(self, ps, workers=2, **arguments):
        return Cluster(
            *("torch_tables_ranks.py", "train_words", ps, workers),
            steps=STEPS,
            optimizer="Adagrad",
            **arguments,
        )

    def test_a_resumed_run_goes_on_with_its_rows(self):
        with self.start(2) as whole:
            whole.wait()
            expected = whole.result("worker0")[1]
        for path in (2, 0), (0, 3):
            with (
                self.subTest(path),
                self.start(path[0], stop=16, checkpoint="saved") as run,
            ):
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                folder = str(run.path("saved"))
                with self.start(path[1], checkpoint=folder) as run:
                    found = set(run.wait().values())
                    self.assertEqual(found, {0}, run.error("worker0"))
                    self.assertEqual(run.result("worker0")[1], expected)

    def test_they_train_on_without_a_chief_that_coordinates(self):
        for optimizer, rule in ("groups", "auto"), ("Adagrad", "worker"):
            with self.subTest(optimizer):
                check_adopted(
                    self, "torch_tables_ranks.py", "led_words", steps=800,
                    optimizer=optimizer, rule=rule,
                )

    def test_with_staleness_one_rank_trains_as_torch_does(self):
        staleness = {"strategy": {"staleness": "inf"}}
        with self.start(1, 1, **staleness) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            first, last = run.result("worker0")
        make = program.WORD_OPTIMIZERS["Adagrad"]
        expected = reference_words(first, STEPS, make, None, False)
        for key, value in expected.items():
            close = frameworks.distance(last[key], value.tolist())
            self.assertLess(close, 1e-5, key)
        with self.start(1, 1, reload="after", **staleness) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("load them before", run.error("worker0"))

    def test_sparse_adam_is_that_of_torch(self):
        for ps in 2, 0:
            with Cluster(
                "torch_tables_ranks.py", "sparse_adam", ps, 2, steps=STEPS
            ) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker1"))
                rows, expected = run.result("worker0")
            self.assertLess(frameworks.distance(rows, expected), 1e-5)

    def test_what_a_table_does_not_take_is_named(self):
        make = nn.Embedding
        tied = nn.Sequential(make(4, 3, sparse=True), nn.Linear(3, 4))
        tied[1].weight = tied[0].weight
        for model, text, momentum in (
            (make(4, 3, sparse=True, max_norm=1.0), "max_norm", 0),
            (make(4, 3, sparse=True, scale_grad_by_freq=True), "freq", 0),
            (make(4, 3, sparse=True).half(), "torch.float16", 0),
            (nn.EmbeddingBag(4, 3, sparse=True, padding_idx=1), "padding", 0),
            (tied, "0.weight and 1.weight", 0),
            (make(4, 3, sparse=True), "momentum 0.5", 0.5),
            (nn.ModuleList([make(4, 3, sparse=True)]), "in no group", None),
        ):
            parameters = list(model.parameters())
            if momentum is None:
                parameters = [nn.Parameter(torch.ones(1))]
            optimizer = torch.optim.SGD(
                parameters, lr=0.1, momentum=momentum or 0
            )
            with (
                self.subTest(text),
                self.assertRaisesRegex(capstan.ConfigError, text),
            ):
                take_sparse(model, optimizer, True)
        model = make(4, 3, sparse=True)
        with self.assertRaisesRegex(capstan.ConfigError, "RMSprop"):
            take_sparse(
                model, torch.optim.RMSprop(model.parameters()), True
            )

    def test_they_begin_with_the_rows_of_rank_0(self):
        torch.manual_seed(0)
        expected = program.Words().state_dict()
        first = self.check()
        for key, value in expected.items():
            self.assertEqual(first[key], value.tolist(), key)

    def test_a_rate_that_falls_is_that_of_the_table(self):
        self.check(schedule=True)

    def test_a_rate_that_a_table_does_not_follow_is_named(self):
        with Cluster(
            "torch_tables_ranks.py", "train_words", 1, 1, steps=STEPS,
            optimizer="groups", schedule=True,
        ) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("lr of the group with table", run.error("worker0"))

    def test_a_state_is_loaded_at_any_step(self):
        for ps in 2, 0:
            self.check(ps, load_at=11, optimizer="Adagrad", rule="worker")
        torch.manual_seed(77)
        expected = program.Words().state_dict()
        for reload, rule in ("before", "auto"), ("after", "worker"):
            first = self.check(
                reload=reload, rule=rule, optimizer="Adagrad"
            )
            for key, value in expected.items():
                self.assertEqual(first[key], (value + 1).tolist(), key)


class Copies(unittest.TestCase):
    def test_copies_read_the_rows_of_the_run_and_say_where_they_are(self):
        program = "torch_tables_ranks.py"
        for ps in 1, 0:
            with self.subTest(ps=ps), Cluster(program, "copied", ps, 2) as run:
                found = set(run.wait().values())
                self.assertEqual(found, {0}, run.error("worker0"))
                self.check_copies(*run.results("worker0"))
                file = str(run.path("net0.pt"))
                with Cluster(program, "loaded", 0, 1, file=file) as other:
                    other.wait()
                    (text,) = other.result("worker0")
            self.assertIn("this process has no run", text)
            self.assertIn("ckpt export --table", text)

    def check_copies(self, rows, last):
        steps = [rows[i : i + 5] for i in range(0, len(rows), 5)]
        for step in steps:  # of the run, its copies, and a file
            self.assertEqual(step, step[:1] * 5)
        before, *after = [step[0] for step in steps]
        moved = [a != b for a, b in zip([before, *after], after)]
        self.assertEqual(moved, [True, False, True])  # by the run's model
        state, of_copy = last["states"]
        of_copy["last.weight"] = state["last.weight"]  # of the beginning
        of_copy["last.bias"] = state["last.bias"]
        self.assertEqual(state, of_copy)
        self.assertEqual(state["summed.ids"], sorted(torch_ids()))
        self.assertEqual(state["averaged.ids"], sorted(torch_ids()))
        found = dict(zip(state["summed.ids"], state["summed.rows"]))
        self.assertEqual([found[id] for id in torch_ids()], steps[-1][0])
        self.assertEqual(len(last["errors"]), 4)
        for error in last["errors"]:
            self.assertIn('table "summed" of dim 3', error)
            self.assertIn("the run is closed", error)


class Pretrained(unittest.TestCase):
    def run_once(self, ps, **arguments):
        with Cluster(
            "torch_tables_ranks.py", "pretrained", ps, 2, **arguments
        ) as run:
            found = set(run.wait().values())
            self.assertEqual(found, {0}, run.error("worker0"))
            self.assertEqual(run.result("worker0"), run.result("worker1"))
            return run.result("worker0")

    def test_rows_begin_with_those_given_and_outlive_a_run_by_its_state(self):
        torch.manual_seed(0)
        given = torch.randn(program.ROWS, program.DIM).tolist()
        with tempfile.TemporaryDirectory() as folder:
            file = folder + "/state.pt"
            for ps in 2, 0:
                for freeze in False, True:
                    first, last = self.run_once(
                        ps, file=file, save=True, freeze=freeze
                    )
                    rows = dict(zip(first["words.ids"], first["words.rows"]))
                    self.assertEqual([rows[i] for i in torch_ids()], given)
                    self.assertEqual(first["bags.ids"], [])
                    self.assertEqual(
                        last["bags.ids"], sorted(torch_ids()[3:12])
                    )
                    moved = [
                        a != b
                        for a, b in zip(last["words.rows"], first["words.rows"])
                    ]
                    self.assertEqual(sum(moved), 0 if freeze else 9)
            again, _ = self.run_once(3, file=file)
            self.assertEqual(again, last)

    def test_a_state_of_too_many_rows_names_the_command(self):
        with Cluster(
            "torch_tables_ranks.py", "pretrained", 1, 1, file="", save=True,
            most=program.ROWS - 1,
        ) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("ckpt export --table w", run.error("worker0"))


class Errors(unittest.TestCase):
    def test_a_bag_without_a_table_is_named(self):
        with Cluster(
            "torch_tables_ranks.py", "without_optimizer", 1, 1
        ) as run:
            self.assertNotIn(0, run.wait().values())
            self.assertIn("DistributedOptimizer", run.error("worker0"))


    def test_rows_of_a_pass_that_failed(self):
        """step() applies them; another pass in the step would add to them."""
        for again, code in (False, 0), (True, 2):
            with Cluster(
                "torch_tables_ranks.py", "failing", 1, 1, again=again
            ) as run:
                found = run.wait()["worker0"]
                self.assertEqual(found, code, run.error("worker0"))
                if again:
                    text = 'would add to them, of table "w"'
                    self.assertIn(text, run.error("worker0"))
                else:
                    self.assertEqual(*run.result("worker0"))


class Dlrm(frameworks.Example, unittest.TestCase):
    example = "dlrm.py"
    example_arguments = ("--steps", "4")


if __name__ == "__main__":
    unittest.main()
