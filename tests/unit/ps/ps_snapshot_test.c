/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a server on their way into a checkpoint's file. */
#include "ps/ps_internal.h"

#include "core/store/checkpoint.h"
#include "core/store/shard_file.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/server_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>

enum { RANKS = 2, ROUND = 2 };

/* The ps and the plan that belong to a server_fixture. */
static struct ps ps;
static struct plan plan;
static bool reported;
static Capstan__SnapshotReport__Outcome outcome;
static struct shard_info file;
static char folder[PATH_MAX];

static int setup(void **state) {
    ps = (struct ps){0};
    plan = (struct plan){0};
    reported = false;
    checkpoint_fixture_folder(folder);
    return server_fixture_setup(state);
}

static int teardown(void **state) {
    snapshot_agent_close(&ps.snapshot_agent);
    checkpoint_fixture_remove(folder);
    return server_fixture_teardown(state);
}

static void record(void *context, Capstan__Control *control) {
    const Capstan__SnapshotReport *report = control->snapshot_report;
    (void)context;
    reported = true;
    outcome = report->outcome;
    snprintf(file.name, sizeof file.name, "%s", report->name);
    file.size = report->size;
    file.hash[0] = report->hash_low;
    file.hash[1] = report->hash_high;
}

static void reached(struct server_fixture *fixture, uint32_t b,
                    uint64_t version) {
    (void)fixture;
    ps_snapshot_reached(&ps, b, version);
}

static void open_ps(struct server_fixture *fixture) {
    fixture->snapshot = reached;
    fixture->run_schedule.checkpoints = true;
    fixture->run_schedule.every_steps = ROUND;
    server_fixture_open(fixture, RANKS);
    plan.checkpoint_dir = folder;
    plan.run_schedule = fixture->run_schedule;
    struct snapshot_agent_settings settings = {
        .log = &fixture->wire->log,
        .send = record,
        .run = 7,
        .plan = &plan,
        .owner = "ps 0",
        .count = 1,
        .blocks = {.layout = fixture->layout,
                   .ids = fixture->ids,
                   .num_units = SERVER_FIXTURE_OWN_BLOCKS,
                   .num_tensors = 1,
                   .row_bytes =
                       sizeof(uint64_t) + RANKS * sizeof(struct ledger_entry)}};
    assert_ok(snapshot_agent_open(&ps.snapshot_agent, &settings, &failure));
    ps.server = fixture->server;
}

static void await_report(void) {
    struct pollfd item = {snapshot_agent_descriptor(ps.snapshot_agent), POLLIN,
                          0};
    while (!reported) {
        assert_int_equal(poll(&item, 1, 60000), 1);
        snapshot_agent_step(ps.snapshot_agent);
    }
    assert_int_equal(outcome, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN);
}

static void read_words(struct shard_reader *reader, struct shard_key key,
                       uint64_t *words, size_t count) {
    const void *value;
    size_t bytes;
    assert_ok(shard_reader_get(reader, key, &value, &bytes, &failure));
    assert_int_equal(bytes, count * sizeof *words);
    memcpy(words, value, bytes);
}

/* The row of BLOCK: its version, then each rank's incarnation and clock; and
 * the STEPS that its rule has counted. */
static void check_row(struct shard_reader *reader, const struct block *block,
                      uint64_t steps) {
    struct shard_key key = {block->parameter, SHARD_ROW, block->offset};
    uint64_t row[1 + 2 * RANKS], counted;
    read_words(reader, key, row, 1 + 2 * RANKS);
    assert_int_equal(row[0], ROUND);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(row[1 + 2 * r], SERVER_FIXTURE_TRAINER + r);
        assert_int_equal(row[2 + 2 * r], ROUND);
    }
    key.slot = SHARD_RULE_STEP;
    read_words(reader, key, &counted, 1);
    assert_int_equal(counted, steps);
}

TEST_WITH(setup, teardown, a_planned_round_is_written_with_its_ledger_rows) {
    static uint32_t all[] = {0, 1, 3};
    struct server_fixture *fixture = *state;
    struct shard_reader *reader;
    char step[PATH_MAX];
    open_ps(fixture);
    for (uint64_t clock = 1; clock <= ROUND; clock++)
        for (uint32_t r = 0; r < RANKS; r++) {
            size_t with = clock == 1 ? 2 : 3;
            server_fixture_push(fixture, r, clock, all, with, 1);
            if (with < 3)
                server_fixture_push_empty(fixture, r, clock, all + with, 1);
            server_fixture_handle_messages(fixture, clock == 1 ? 2 : 1);
        }
    await_report();
    checkpoint_folder(folder, ROUND, step, sizeof step);
    assert_ok(shard_reader_open(&reader, step, &file, &failure));
    for (uint32_t b = 0; b < SERVER_FIXTURE_OWN_BLOCKS; b++)
        check_row(reader, &fixture->layout->blocks[fixture->ids[b]],
                  b < 2 ? ROUND : ROUND - 1);
    shard_reader_close(&reader);
}
