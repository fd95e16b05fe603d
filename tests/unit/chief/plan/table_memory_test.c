/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "chief/plan/table_memory.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

enum { TRAINERS = 2, PS = 2, SLOTS = TRAINERS + PS };

static const struct table tables[] = {
    {.name = "bounded", .dim = 4, .num_ids = 1000, .max_rows = 300},
    {.name = "few", .dim = 4, .num_ids = 10, .max_rows = 300},
    {.name = "own", .dim = 2, .num_ids = 50, .optimizer = 1},
    {.name = "open", .dim = 1},
};

struct fixture {
    struct job job;
    struct run run;
    struct memory_plan_limits limits[SLOTS];
    struct optimizer_group group;
    uint64_t rows[PS][4 * RUN_TABLE_COUNTS];
};

/* A run whose tables have Adagrad (a state tensor), one of them SGD (none). */
static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter bias = {.name = "bias", .num_dims = 1, .dims = {1}};
    assert_non_null(fixture);
    struct run *run = &fixture->run;
    fixture->job.optimizer.type = OPTIMIZER_ADAGRAD;
    fixture->group.optimizer.type = OPTIMIZER_SGD;
    run->job = &fixture->job;
    run->plan.limits = fixture->limits;
    run->plan.table_groups = &fixture->group;
    assert_true(roster_open(&run->roster, false, TRAINERS, PS, TIME_S));
    run->ps = calloc(PS + 1, sizeof *run->ps);
    for (int p = 0; p < PS; p++)
        run->ps[p].table_counts = fixture->rows[p];
    assert_ok(layout_build(&run->plan.layout, &bias, 1, &failure));
    assert_ok(layout_add_tables(run->plan.layout, tables, 4, 4, &failure));
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    layout_free(&fixture->run.plan.layout);
    roster_close(&fixture->run.roster);
    free(fixture->run.ps);
    free(fixture);
}

FIXTURE(setup, teardown);

TEST(rows_are_bounded_by_ids_and_by_max_rows) {
    struct table_memory memory = table_memory_of(&fixture->run);
    assert_int_equal(memory.rows, 300 + 10 + 50);
    assert_int_equal(memory.unbounded, 1);
    assert_int_equal(memory.dense, 4 * (310 * 4 + 50 * 2));
    assert_int_equal(memory.replicated, 4 * (310 * 4 * 3 + 50 * 2 * 2));
    /* A row has 16 bytes before its floats; the index up to 16 for each. */
    assert_int_equal(memory.bytes, 310 * (16 + 32 + 16) + 50 * (16 + 8 + 16));
}

TEST(rows_of_a_table_without_a_bound_are_those_there_are) {
    struct table_memory before = table_memory_of(&fixture->run);
    fixture->rows[0][3] = 5;
    fixture->rows[1][3] = 7;
    fixture->rows[1][0] = 200; /* less than there may be */
    struct table_memory memory = table_memory_of(&fixture->run);
    assert_int_equal(memory.rows, before.rows + 12);
    assert_int_equal(memory.dense, before.dense + 4 * 12);
}

static void limit(struct fixture *fixture, uint32_t slot, const char *key,
                  uint64_t free) {
    struct memory_plan_limits *limits = &fixture->limits[slot];
    struct free_memory_limit *added = &limits->limits[limits->count++];
    snprintf(added->key, sizeof added->key, "%s", key);
    added->free = free;
}

TEST(a_limit_is_shared_by_those_who_have_it) {
    assert_int_equal(table_memory_free(&fixture->run, true), 0);
    limit(fixture, 0, "host a", 1000);
    limit(fixture, 1, "host a", 900);
    limit(fixture, 2, "host a", 1000);
    limit(fixture, 3, "host b", 700);
    assert_int_equal(table_memory_free(&fixture->run, true), 450);
    assert_int_equal(table_memory_free(&fixture->run, false), 700);
    limit(fixture, 3, "ulimit of ps 1", 600);
    assert_int_equal(table_memory_free(&fixture->run, false), 600);
}

/* Two ps share what each trainer would have. */
TEST(rows_that_a_trainer_has_no_room_for_are_refused) {
    struct run *run = &fixture->run;
    uint64_t all = table_memory_of(run).bytes;
    limit(fixture, 0, "host a", all - 1);
    limit(fixture, 2, "host b", all / 2);
    assert_ok(table_memory_check(run, &failure));
    run->allreduce = true;
    assert_int_equal(table_memory_check(run, &failure), STATUS_RETRY);
    assert_contains(failure.text, TABLE_MEMORY_TOO_LARGE);
    fixture->limits[0].limits[0].free = all;
    assert_ok(table_memory_check(run, &failure));
}

/* What others hold may become free. */
TEST(rows_that_never_fit_are_not_waited_for) {
    struct run *run = &fixture->run;
    uint64_t all = table_memory_of(run).bytes;
    struct free_memory_limit *limits = fixture->limits[0].limits;
    run->allreduce = true;
    limit(fixture, 0, "host a", 0);
    limit(fixture, 1, "host a", 0);
    limits->most = 2 * all;
    fixture->limits[1].limits[0].most = 2 * all;
    assert_int_equal(table_memory_check(run, &failure), STATUS_RETRY);
    limits->most = 2 * all - 2;
    assert_int_equal(table_memory_check(run, &failure), STATUS_CONFIG);
    assert_int_equal(failure.code, FAILURE_JOB_TOO_LARGE);
    assert_contains(failure.text, TABLE_MEMORY_TOO_LARGE);
}

TEST(memory_of_devices_is_none_of_the_host) {
    limit(fixture, 0, "host a", 1000);
    memory_plan_add_device(&fixture->limits[0], "gpu", "GPU 0", 10);
    assert_int_equal(table_memory_free(&fixture->run, true), 1000);
}
