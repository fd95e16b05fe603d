/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/strategy.h"

#include "chief/run.h"
#include "tests/lib/test.h"

enum { TRAINERS = 2 };

struct fixture {
    struct job job;
    struct run run;
    struct layout layout; /* without tables */
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct run *run = &fixture->run;
    run->job = &fixture->job;
    run->plan.layout = &fixture->layout;
    run->allreduce = true;
    strcpy(run->plan.backend, "auto");
    assert_true(roster_open(&run->roster, false, TRAINERS, 0, 0));
    run->trainers = calloc(TRAINERS, sizeof *run->trainers);
    for (int r = 0; r < TRAINERS; r++)
        run->trainers[r].replicas = 1;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    roster_close(&fixture->run.roster);
    free(fixture->run.trainers);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

/* KEY NULL: it computes on the processor. */
static void declare(struct run *run, uint32_t rank, char *key, char *without) {
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    Capstan__MemoryLimit device = CAPSTAN__MEMORY_LIMIT__INIT;
    Capstan__MemoryLimit *devices[] = {&device};
    device.key = key;
    model_spec.n_devices = key != NULL;
    model_spec.devices = devices;
    model_spec.without_nccl = without;
    strategy_declare_rank(&run->trainers[rank], &model_spec);
}

TEST(trainers_with_own_devices_select_nccl_and_stay_on_them) {
    struct run *run = &((struct fixture *)*state)->run;
    declare(run, 0, "device a", "");
    declare(run, 1, "device b", "");
    assert_true(strategy_select_collective(run));
    assert_string_equal(run->plan.backend, "nccl");
    assert_true(run->plan.resident);
}

TEST(rows_of_tables_are_summed_on_the_host) {
    struct run *run = &((struct fixture *)*state)->run;
    declare(run, 0, "device a", "");
    declare(run, 1, "device b", "");
    run->plan.layout->num_tables = 1;
    assert_true(strategy_select_collective(run));
    assert_string_equal(run->plan.backend, "gloo");
    assert_false(run->plan.resident);
}

TEST(one_trainer_without_nccl_makes_all_use_gloo) {
    struct run *run = &((struct fixture *)*state)->run;
    declare(run, 0, "device a", "");
    declare(run, 1, "device b", "there is none");
    assert_true(strategy_select_collective(run));
    assert_string_equal(run->plan.backend, "gloo");
    assert_false(run->plan.resident);
}

/* One that computes on the processor has nothing that could stay. */
TEST(the_jobs_backend_is_used_and_stays_on_devices_where_all_have_some) {
    struct run *run = &((struct fixture *)*state)->run;
    strcpy(run->plan.backend, "nccl");
    declare(run, 0, "device a", "");
    declare(run, 1, NULL, "");
    assert_true(strategy_select_collective(run));
    assert_string_equal(run->plan.backend, "nccl");
    assert_false(run->plan.resident);
    declare(run, 1, "device b", "");
    assert_true(strategy_select_collective(run));
    assert_true(run->plan.resident);
}

TEST(a_run_with_ps_selects_no_collective) {
    struct run *run = &((struct fixture *)*state)->run;
    run->allreduce = false;
    run->plan.backend[0] = 0;
    declare(run, 0, "device a", "");
    declare(run, 1, "device b", "");
    assert_true(strategy_select_collective(run));
    assert_string_equal(run->plan.backend, "");
    assert_false(run->plan.resident);
}
