/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SEEDS = 10000, SEEDS_A_FAULT = 20000 };

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* SOAK_COUNT times 10^4 seeds, other ones each day; SIMULATION_SEED plays one
 * with every event told, SIMULATION_FAULT with that fault planted. */
static uint64_t first_seed(void) {
    return number_of("SIMULATION_FIRST", (uint64_t)time(NULL) / 86400 << 32);
}

static void no_history_violates_an_invariant(void **state) {
    struct simulation_result result;
    uint64_t first = first_seed();
    uint64_t count = SEEDS * number_of("SOAK_COUNT", 1);
    uint64_t runs = 0, deaths = 0, joiners = 0, cuts = 0, steps = 0;
    (void)state;
    printf("# first seed %" PRIu64 "\n", first);
    for (uint64_t seed = first; seed < first + count; seed++) {
        simulation_run(seed, SIMULATION_NO_FAULT, false, &result);
        if (result.found)
            fail_msg("seed %" PRIu64 ", %s; SIMULATION_SEED=%" PRIu64
                     " plays it alone and tells every event",
                     seed, result.text, seed);
        runs += result.runs;
        deaths += result.deaths;
        joiners += result.joiners;
        cuts += result.cuts;
        steps += result.steps;
    }
    printf("# %" PRIu64 " events, %" PRIu64 " runs, %" PRIu64
           " deaths of trainers, %" PRIu64 " joiners, %" PRIu64
           " checkpoints\n",
           steps, runs, deaths, joiners, cuts);
    assert_true(runs > count && deaths && joiners && cuts > count);
}

static void every_planted_fault_is_found(void **state) {
    struct simulation_result result;
    const uint64_t first = 1; /* always the same: found once, always found */
    (void)state;
    for (int fault = SIMULATION_NO_FAULT + 1; fault < SIMULATION_FAULTS;
         fault++) {
        uint64_t seed = first;
        do
            simulation_run(seed++, (enum simulation_fault)fault, false,
                           &result);
        while (!result.found && seed < first + SEEDS_A_FAULT);
        const char *name = simulation_fault_name((enum simulation_fault)fault);
        if (!result.found)
            fail_msg("not found in %d seeds from %" PRIu64 ": %s",
                     SEEDS_A_FAULT, first, name);
        printf("# %s: after %" PRIu64 " seeds, %s\n", name, seed - first,
               result.text);
    }
}

static void a_seed_replays_identically(void **state) {
    struct simulation_result once, twice;
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        simulation_run(seed, SIMULATION_NO_FAULT, false, &once);
        simulation_run(seed, SIMULATION_NO_FAULT, false, &twice);
        assert_int_equal(once.steps, twice.steps);
        assert_true(once.hash == twice.hash);
    }
}

static void a_given_seed_is_replayed(void **state) {
    struct simulation_result result;
    (void)state;
    simulation_run(number_of("SIMULATION_SEED", 0),
                   (enum simulation_fault)number_of("SIMULATION_FAULT", 0),
                   true, &result);
    if (result.found)
        fail_msg("%s", result.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_history_violates_an_invariant),
        cmocka_unit_test(every_planted_fault_is_found),
        cmocka_unit_test(a_seed_replays_identically),
    };
    const struct CMUnitTest one[] = {
        cmocka_unit_test(a_given_seed_is_replayed),
    };
    return getenv("SIMULATION_SEED")
               ? cmocka_run_group_tests(one, NULL, NULL)
               : cmocka_run_group_tests(tests, NULL, NULL);
}
