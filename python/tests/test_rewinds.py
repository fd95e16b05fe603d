# SPDX-License-Identifier: Apache-2.0
"""Scripts of NumPy whose run goes back."""

import unittest

from processes import Cluster, Local, check_adopted


class Rewinds(unittest.TestCase):
    def test_a_script_goes_back_with_its_run(self):
        for own in False, True:
            with self.subTest(own=own):
                sets = ["checkpoint.every_steps=100"]
                found = []
                for kills in 0, 3:
                    run = Local(
                        "numpy_ranks.py", "rewound", 2, kills, sets,
                        steps=600, own=own,
                    )
                    self.assertEqual(run.status, 0, run.log)
                    found.append(sorted(run.results))
                self.assertIn("went back 3 times", run.log)
                self.assertEqual(found[0], found[1])

    def test_launch_starts_a_ps_or_a_rank_of_all_reduce_again(self):
        for ps in 1, 0:
            with self.subTest(ps=ps):
                self.check_ends_alike(ps, launch=True)

    def test_local_starts_a_rank_of_all_reduce_again(self):
        for own in False, True:
            with self.subTest(own=own):
                self.check_ends_alike(0, own=own)

    def check_ends_alike(self, ps, launch=False, **keys):
        found = []
        for kills in 0, 2:
            run = Local(
                "numpy_ranks.py", "rewound", ps, kills,
                ["checkpoint.every_steps=100"], launch=launch and kills > 0,
                steps=600, **keys,
            )
            self.assertEqual(run.status, 0, run.log)
            found.append(sorted(run.results))
        self.assertEqual(run.log.count("it is started again"), 2, run.log)
        self.assertIn("went back 2 times", run.log)
        self.assertEqual(len(found[0]), 2)
        self.assertEqual(found[0], found[1])

    def test_a_rank_of_all_reduce_that_cannot_go_back_ends_the_run(self):
        run = Local(
            "numpy_ranks.py", "train", 0, 1, ["checkpoint.every_steps=200"],
            steps=2000, sleep=0.01,
        )
        self.assertEqual(run.status, 138, run.log)
        self.assertIn("if a rank dies, the run ends with 138", run.log)
        self.assertIn("all-reduce cannot go on without it", run.log)

    def test_local_starts_a_worker_again_which_trains_on(self):
        flags = ("--kill-every", "3", "--kill", "worker")
        sets = ["checkpoint.every_steps=50", "steps=3000"]
        run = Local("numpy_ranks.py", "rewound", 1, 0, sets, flags, steps=3000)
        self.assertEqual(run.status, 0, run.log)
        kills = run.log.count("drill: kills worker 1 ")
        self.assertGreaterEqual(kills, 1)
        self.assertEqual(run.log.count("worker 1 joined from"), 1 + kills)
        self.assertEqual(sorted(rank for rank, *_ in run.results), [0, 1])

    def drill(self, steps, every="0", role=None):
        """The run's results; ROLE dies about EVERY seconds."""
        sets = ["checkpoint.every_steps=50", f"steps={steps}"]
        flags = ("--kill-every", every, "--kill", role) if role else ()
        run = Local("numpy_ranks.py", "rewound", 2, 0, sets, flags, steps=steps)
        self.assertEqual(run.status, 0, run.log)
        if role:
            kills = run.log.count("drill: kills ")
            self.assertGreaterEqual(kills, 1)
            self.assertIn(f"went back {kills} time", run.log)
        return sorted(run.results)

    def test_a_drill_kills_ps_and_the_end_is_the_same(self):
        self.assertEqual(self.drill(1200, "0.5", "ps"), self.drill(1200))

    def test_a_drill_kills_the_chief_and_the_end_is_the_same(self):
        self.assertEqual(self.drill(2400, "1.5", "chief"), self.drill(2400))

    def test_scripts_train_on_without_a_chief_that_coordinates(self):
        program, steps = "numpy_ranks.py", 1000
        for own in False, True:
            with self.subTest(own=own):
                check_adopted(self, program, "led_rewound", steps=steps, own=own)
        check_adopted(self, program, "led", steps=steps, sleep=0.002)

    def test_collectives_work_under_the_chief_that_has_its_place(self):
        with Cluster("numpy_ranks.py", "gathers", 1, 3, chief=1) as run:
            run.wait_for("worker2", "sum 6.0")
            for adopts in False, True:
                if adopts:
                    run.adopt()
                run.return_of("worker2")
                run.wait_for("worker2", "sum 6.0")
            run.path("done").touch()
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))

    def test_the_first_collective_awaits_a_chief_that_is_away(self):
        with Cluster("numpy_ranks.py", "gathers_late", 1, 3, chief=1) as run:
            run.wait_for("chief0", "chief: checkpoint ", "err")
            run.processes["chief0"].kill()
            run.processes["chief0"].wait()
            run.path("done").touch()
            for rank in range(3):
                run.wait_for(f"worker{rank}", "calls")
            run.restart("chief0")
            run.wait_for("chief0", "has gone on without its chief", "err")
            self.assertEqual(set(run.wait().values()), {0}, run.error("worker0"))
            for rank in range(3):
                self.assertIn("6.0", run.path(f"worker{rank}.out").read_text())

    def test_a_script_that_does_not_go_back_ends_when_its_chief_dies(self):
        run = Local(
            "numpy_ranks.py", "train", 1, 1, ["checkpoint.every_steps=200"],
            victims="worker 0", steps=2000, sleep=0.01,
        )
        self.assertEqual(run.status, 137, run.log)


if __name__ == "__main__":
    unittest.main()
