/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "tests/simulation/simulation.h"

#include <inttypes.h>
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

/* Only that one is played. */
static bool is_given_a_seed(void) {
    return getenv("SIMULATION_SEED") != NULL;
}

TEST_IF(!is_given_a_seed(), no_history_violates_an_invariant) {
    struct simulation_result result;
    uint64_t first = first_seed();
    uint64_t count = SEEDS * number_of("SOAK_COUNT", 1);
    uint64_t runs = 0, deaths = 0, joiners = 0, cuts = 0, late = 0, steps = 0,
             copied = 0, returns = 0, adoptions = 0;
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
        late += result.late;
        copied += result.copied;
        returns += result.returns;
        adoptions += result.adoptions;
        steps += result.steps;
    }
    printf("# %" PRIu64 " events, %" PRIu64 " runs, %" PRIu64
           " deaths of trainers, %" PRIu64 " joiners, %" PRIu64
           " checkpoints, %" PRIu64 " late contributions, %" PRIu64
           " copies in memory, %" PRIu64 " returns to them, %" PRIu64
           " adoptions\n",
           steps, runs, deaths, joiners, cuts, late, copied, returns,
           adoptions);
    assert_true(runs > count && deaths && joiners && cuts > count && late &&
                copied > returns && returns && adoptions);
}

TEST_IF(!is_given_a_seed(), every_planted_fault_is_found) {
    struct simulation_result result;
    const uint64_t first = 1; /* always the same: found once, always found */
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

TEST_IF(!is_given_a_seed(), a_seed_replays_identically) {
    struct simulation_result once, twice;
    for (uint64_t seed = 0; seed < 50; seed++) {
        simulation_run(seed, SIMULATION_NO_FAULT, false, &once);
        simulation_run(seed, SIMULATION_NO_FAULT, false, &twice);
        assert_int_equal(once.steps, twice.steps);
        assert_true(once.hash == twice.hash);
    }
}

TEST_IF(is_given_a_seed(), a_given_seed_is_replayed) {
    struct simulation_result result;
    simulation_run(number_of("SIMULATION_SEED", 0),
                   (enum simulation_fault)number_of("SIMULATION_FAULT", 0),
                   true, &result);
    if (result.found)
        fail_msg("%s", result.text);
}
