/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 of two, beside a rank 1 whose bytes the test makes up: first a copy of
 * rank 0's. What whole runs have of it is in cluster_tables_test. */
#define STATE struct fixture *fixture

#include "worker/exchange/allreduce/row_reducer.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

enum { IDS = 3, DIM = 2, PARTITIONS = 4, UNIT = 16, MOST = 4096 };

/* Floats of what ranks gather first. */
enum { SIZE_LOW, SIZE_HIGH, WEIGHT };

struct fixture {
    struct job job;
    struct plan plan;
    struct row_reducer *reducer;
    struct group ranks;
    struct row_batch_index *index;
    struct row_batch batch;
    struct failure why;
    float weight; /* of rank 1; its bytes: */
    bool copies;  /* those of rank 0, */
    char bytes[MOST];
    size_t size; /* or these */
    size_t last; /* bytes of rank 0 */
    unsigned calls;
};

static struct fixture *current;

static enum status gather(struct collective *group, float *data, size_t count,
                          struct failure *why) {
    struct fixture *fixture = (struct fixture *)group;
    float *other = data + count / 2;
    (void)why;
    if (fixture->calls++ % 2 == 0) { /* sizes */
        memset(other, 0, UNIT * sizeof *other);
        fixture->last = (size_t)data[SIZE_LOW];
        other[SIZE_LOW] =
            fixture->copies ? data[SIZE_LOW] : (float)fixture->size;
        other[WEIGHT] = fixture->weight;
        return STATUS_OK;
    }
    if (fixture->copies)
        memcpy(other, data, fixture->last);
    else
        memcpy(other, fixture->bytes, fixture->size);
    return STATUS_OK;
}

static enum status open_group(struct collective **out,
                              const struct collective_settings *settings,
                              struct failure *why) {
    (void)settings, (void)why;
    *out = (struct collective *)current;
    return STATUS_OK;
}

static bool close_group(struct collective **group) {
    *group = NULL;
    return true;
}

static void abort_group(struct collective *group) {
    (void)group;
}

static const struct collective_ops ops = {.open = open_group,
                                          .abort = abort_group,
                                          .close = close_group,
                                          .all_gather = gather};

static const uint64_t ids[IDS] = {3, 5000, 70000};

static int setup(void **state) {
    struct fixture *fixture = current = calloc(1, sizeof *fixture);
    struct parameter bias = {.name = "bias", .num_dims = 1, .dims = {1}};
    struct table table = {.name = "t", .dim = DIM};
    struct collective_settings settings = {.size = 2};
    struct failure *why = &fixture->why;
    fixture->job.optimizer.type = OPTIMIZER_SGD;
    fixture->plan.num_ranks = 2;
    if (layout_build(&fixture->plan.layout, &bias, 1, why) ||
        layout_add_tables(fixture->plan.layout, &table, 1, PARTITIONS, why))
        return -1;
    struct row_reducer_settings of = {
        .job = &fixture->job, .plan = &fixture->plan, .num_ranks = 2};
    group_open(&fixture->ranks, &ops, 0, 2);
    if (row_reducer_open(&fixture->reducer, &of, why) ||
        group_connect(&fixture->ranks, &settings, why) ||
        row_batch_index_open(&fixture->index, fixture->plan.layout, why) ||
        row_batch_open(&fixture->batch, fixture->index, why))
        return -1;
    row_batch_begin(&fixture->batch);
    if (row_batch_add(&fixture->batch, 0, ids, IDS, why) ||
        row_batch_finish(&fixture->batch, why) ||
        row_reducer_load(fixture->reducer, &fixture->ranks, NULL, why))
        return -1;
    for (size_t f = 0; f < IDS * DIM; f++)
        fixture->batch.gradients[f] = (float)(f + 1);
    fixture->weight = 1;
    fixture->copies = true;
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    row_batch_close(&fixture->batch);
    row_batch_index_close(&fixture->index);
    row_reducer_close(&fixture->reducer);
    group_close(&fixture->ranks);
    layout_free(&fixture->plan.layout);
    free(fixture);
}

FIXTURE(setup, teardown);

/* Round ROUND, with a rate of 1. */
static enum status run(struct fixture *fixture, uint64_t round,
                       bool overflowed) {
    struct row_reducer_round of = {.round = round,
                                   .step = round,
                                   .rate = 1,
                                   .clip = 1,
                                   .overflowed = overflowed};
    bool pushed;
    enum status status = row_reducer_gather(fixture->reducer, &fixture->ranks,
                                            round, &pushed, &fixture->why);
    assert_true(status || pushed);
    return status
               ? status
               : row_reducer_apply(fixture->reducer, &of, NULL, &fixture->why);
}

static enum status push_and_run(struct fixture *fixture, uint64_t round,
                                enum contribution kind) {
    struct row_batch *rows = kind == CONTRIBUTION_FULL ? &fixture->batch : NULL;
    assert_true(row_reducer_push(fixture->reducer, round, kind, rows));
    return run(fixture, round, kind == CONTRIBUTION_OVERFLOWED);
}

static uint64_t rows_of(const struct fixture *fixture) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    uint64_t counts[ROW_SHARD_COUNTS];
    row_reducer_report(fixture->reducer, counts, &heartbeat);
    return heartbeat.table_rows[0];
}

/* Rows are FACTOR times the gradients. */
static void expect_rows(struct fixture *fixture, float factor) {
    row_reducer_lookup(fixture->reducer, 0, &fixture->batch);
    assert_true(row_reducer_wait_rows(fixture->reducer, time_now()));
    for (size_t f = 0; f < IDS * DIM; f++)
        assert_true(fixture->batch.weights[f] ==
                    factor * fixture->batch.gradients[f]);
}

static enum status save(void *context, const struct row_reducer_saved *as,
                        struct row_shard *rows, uint32_t p,
                        struct failure *why) {
    struct row_reducer_saved *saved = context;
    (void)rows, (void)p, (void)why;
    *saved = *as;
    return STATUS_OK;
}

/* How many rounds the rule has counted, of ROUNDS. */
static void expect_rule_step(struct fixture *fixture, uint64_t rounds,
                             uint64_t expected) {
    struct row_reducer_saved saved;
    const struct row_reducer_storage storage = {.context = &saved,
                                                .save = save};
    assert_int_equal(row_reducer_save(fixture->reducer, &storage, rounds,
                                      rounds, &fixture->why),
                     STATUS_OK);
    assert_int_equal(saved.round, rounds);
    assert_int_equal(saved.rule_step, expected);
}

TEST(the_mean_is_over_the_ranks_that_count) {
    assert_int_equal(rows_of(fixture), 0);
    assert_int_equal(push_and_run(fixture, 1, CONTRIBUTION_FULL), STATUS_OK);
    expect_rows(fixture, -1);
    fixture->copies = false;
    fixture->size = 3 * sizeof(uint32_t); /* an empty directory */
    assert_int_equal(push_and_run(fixture, 2, CONTRIBUTION_FULL), STATUS_OK);
    expect_rows(fixture, -1.5f);
    fixture->weight = 0;
    assert_int_equal(push_and_run(fixture, 3, CONTRIBUTION_FULL), STATUS_OK);
    expect_rows(fixture, -2.5f);
    assert_int_equal(push_and_run(fixture, 4, CONTRIBUTION_ZERO), STATUS_OK);
    assert_int_equal(push_and_run(fixture, 5, CONTRIBUTION_EMPTY), STATUS_OK);
    expect_rows(fixture, -2.5f);
    expect_rule_step(fixture, 5, 3);
    assert_int_equal(rows_of(fixture), IDS);
}

/* Rank 1's gradients are whole: still none counts. */
TEST(an_overflow_changes_nothing) {
    assert_int_equal(push_and_run(fixture, 1, CONTRIBUTION_FULL), STATUS_OK);
    assert_true(row_reducer_push(fixture->reducer, 2, CONTRIBUTION_FULL,
                                 &fixture->batch));
    assert_int_equal(run(fixture, 2, true), STATUS_OK);
    expect_rows(fixture, -1);
    expect_rule_step(fixture, 2, 1);
}

TEST(a_lookup_waits_for_its_round) {
    int64_t soon = time_now() + TIME_S / 100;
    assert_true(row_reducer_push(fixture->reducer, 1, CONTRIBUTION_FULL,
                                 &fixture->batch));
    row_reducer_lookup(fixture->reducer, 1, &fixture->batch);
    assert_false(row_reducer_wait_rows(fixture->reducer, soon));
    assert_false(row_reducer_wait_pushed(fixture->reducer, soon));
    assert_int_equal(run(fixture, 1, false), STATUS_OK);
    assert_true(row_reducer_wait_rows(fixture->reducer, time_now()));
    assert_true(row_reducer_wait_pushed(fixture->reducer, time_now()));
    assert_true(fixture->batch.weights[0] == -fixture->batch.gradients[0]);
    row_reducer_lookup(fixture->reducer, 2, &fixture->batch);
    row_reducer_cancel(fixture->reducer);
    assert_false(row_reducer_wait_rows(fixture->reducer, TIME_NEVER));
}

/* Rank 0's first entry: a partition, the bytes of its gradients, and of the
 * rows that are set. */
TEST(another_rank_s_bytes_are_checked) {
    static const uint32_t wrong[][8] = {
        {1},                                /* no directory */
        {0, 8, 0, 0, 0, 0, 7},              /* lists of seven */
        {0, 0, 8, 0, 0, 0, 7},              /* the same, that are set */
        {0, 800, 0, 0, 0, 0, 0},            /* more than there are */
        {0, 4, UINT32_MAX - 3, 0, 0, 0, 0}, /* the same */
        {PARTITIONS, 4, 0, 0, 0, 0, 0},     /* no such partition */
        {PARTITIONS, 0, 4, 0, 0, 0, 0},     /* the same */
    };
    static const size_t sizes[] = {4, 32, 32, 28, 28, 28, 28};
    fixture->copies = false;
    for (uint64_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(fixture->bytes, wrong[i], sizeof wrong[i]);
        fixture->size = sizes[i];
        assert_fails(push_and_run(fixture, i + 1, CONTRIBUTION_FULL),
                     &fixture->why, FAILURE_BAD_MESSAGE);
    }
}
