/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/run.h"

#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { TRAINERS = 4 };

static int setup(void **state) {
    run_fixture_setup(state, TRAINERS);
    return 0;
}

FIXTURE(setup, run_fixture_teardown);

/* Of four trainers, some of which are gone. */
TEST(rounds_await_all_trainers_but_those_to_spare) {
    static const struct {
        uint64_t clocks[TRAINERS]; /* 0: it is gone */
        uint32_t backup_workers, spare;
        uint64_t step;
    } cases[] = {
        {{9, 7, 3, 5}, 0, 0, 3}, {{9, 7, 3, 5}, 1, 1, 5},
        {{9, 7, 3, 5}, 2, 2, 7}, {{9, 7, 3, 5}, 3, 3, 9},
        {{9, 3, 3, 5}, 1, 1, 3}, {{9, 3, 3, 5}, 2, 2, 5},
        {{9, 7, 0, 5}, 1, 0, 5}, {{9, 7, 0, 5}, 2, 1, 7},
        {{0, 7, 0, 0}, 2, 0, 7}, {{4, 4, 4, 4}, 3, 3, 4},
    };
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture->job.backup_workers = cases[i].backup_workers;
        for (uint32_t r = 0; r < TRAINERS; r++) {
            run->roster.slots[r].state =
                cases[i].clocks[r] ? ROSTER_HELD : ROSTER_VACATED;
            run->trainers[r].in_view = true;
            run->trainers[r].heartbeat.clock = cases[i].clocks[r];
        }
        assert_int_equal(run_spare(run), cases[i].spare);
        assert_int_equal(run_step(run), cases[i].step);
    }
}
