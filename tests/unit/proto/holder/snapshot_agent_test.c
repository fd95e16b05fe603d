/* SPDX-License-Identifier: Apache-2.0 */
/* An agent over a source of two blocks that a test moves by hand. */
#define STATE struct fixture *fixture

#include "proto/holder/snapshot_agent.h"

#include "core/store/checkpoint.h"
#include "proto/messages/message.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <unistd.h>

enum { BLOCKS = 2, TOTAL = 100, MAX_SENT = 8 };

#define REQUESTED (MESSAGE_REQUESTED_SNAPSHOT + 1)
#define WRITTEN CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN
#define NOT_WRITTEN CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN
#define HELD CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD
#define NOT_HELD CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD

struct fixture {
    struct log log;
    struct layout *layout;
    struct plan plan;
    struct snapshot_agent_settings settings;
    struct snapshot_agent *agent;
    struct buffer *weights;
    uint64_t version; /* of all blocks */
    uint64_t hold_at; /* the last round that the agent asked for */
    uint64_t base;    /* the last that the agent named */
    struct {
        uint64_t id, step, highest;
        Capstan__SnapshotReport__Outcome outcome;
        bool has_step, has_scaler, delta;
        char error[256], host[64], name[128];
    } sent[MAX_SENT];
    unsigned num_sent;
    char folder[PATH_MAX];
};

static void record(void *context, Capstan__Control *control) {
    struct fixture *fixture = context;
    assert_true(fixture->num_sent < MAX_SENT);
    unsigned i = fixture->num_sent++;
    if (control->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED) {
        fixture->sent[i].id = control->snapshot_prepared->id;
        fixture->sent[i].highest = control->snapshot_prepared->highest;
        return;
    }
    const Capstan__SnapshotReport *report = control->snapshot_report;
    fixture->sent[i].id = report->id;
    fixture->sent[i].step = report->step;
    fixture->sent[i].has_step = report->has_step;
    fixture->sent[i].has_scaler = report->scaler;
    fixture->sent[i].delta = report->delta;
    fixture->sent[i].outcome = report->outcome;
    snprintf(fixture->sent[i].error, sizeof fixture->sent[i].error, "%s",
             report->error);
    snprintf(fixture->sent[i].host, sizeof fixture->sent[i].host, "%s",
             report->host);
    snprintf(fixture->sent[i].name, sizeof fixture->sent[i].name, "%s",
             report->name);
}

static void add(struct fixture *fixture, uint64_t id, uint32_t b) {
    struct snapshots_block block = {.version = fixture->version,
                                    .tensors = &fixture->weights,
                                    .row = &fixture->version};
    snapshots_add(snapshot_agent_snapshots(fixture->agent), id, b, &block);
}

/* Block B closes round VERSION, for which a snapshot is planned or requested.
 */
static void reach(struct fixture *fixture, uint32_t b, uint64_t version) {
    uint64_t id;
    fixture->version = version;
    if (snapshot_agent_due(fixture->agent, version, &id))
        add(fixture, id, b);
}

static void reach_all(struct fixture *fixture, uint64_t version) {
    for (uint32_t b = 0; b < BLOCKS; b++)
        reach(fixture, b, version);
}

static uint64_t freeze(void *context) {
    const struct fixture *fixture = context;
    return fixture->version;
}

static enum status hold_at(void *context, uint64_t round, bool write,
                           struct failure *why) {
    struct fixture *fixture = context;
    (void)write, (void)why;
    fixture->hold_at = round;
    return STATUS_OK;
}

static enum status hold_now(void *context, uint64_t id, struct failure *why) {
    (void)why;
    for (uint32_t b = 0; b < BLOCKS; b++)
        add(context, id, b);
    return STATUS_OK;
}

static void set_base(void *context, uint64_t id) {
    ((struct fixture *)context)->base = id;
}

static void open_agent(struct fixture *fixture) {
    assert_ok(
        snapshot_agent_open(&fixture->agent, &fixture->settings, &failure));
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {.name = "w", .num_dims = 1, .dims = {20000}};
    log_open(&fixture->log, "ps", 0);
    checkpoint_fixture_folder(fixture->folder);
    if (layout_build(&fixture->layout, &parameter, 1, &failure) ||
        fixture->layout->num_blocks != BLOCKS)
        return -1;
    fixture->weights = buffer_open(
        fixture->layout->block_elements * sizeof(float), NULL, NULL);
    memset(buffer_data(fixture->weights), 0, buffer_bytes(fixture->weights));
    fixture->plan = (struct plan){.layout = fixture->layout,
                                  .checkpoint_dir = fixture->folder,
                                  .run_schedule = {.total = TOTAL}};
    fixture->settings = (struct snapshot_agent_settings){
        .log = &fixture->log,
        .send = record,
        .send_context = fixture,
        .run = 7,
        .plan = &fixture->plan,
        .owner = "ps 1",
        .index = 1,
        .count = 2,
        .has_first_block = true,
        .can_retain = true,
        .blocks = {.layout = fixture->layout,
                   .num_units = BLOCKS,
                   .num_tensors = 1,
                   .row_bytes = sizeof(uint64_t)},
        .source = {fixture, freeze, hold_at, hold_now, NULL, set_base},
    };
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    snapshot_agent_close(&fixture->agent);
    buffer_release(&fixture->weights);
    layout_free(&fixture->layout);
    checkpoint_fixture_remove(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

static void await_sent(struct fixture *fixture, unsigned count) {
    struct pollfd item = {snapshot_agent_descriptor(fixture->agent), POLLIN, 0};
    while (fixture->num_sent < count) {
        assert_int_equal(poll(&item, 1, 60000), 1);
        snapshot_agent_step(fixture->agent);
    }
    assert_int_equal(fixture->num_sent, count);
}

static void handle(struct fixture *fixture, const Capstan__Control *control) {
    assert_ok(snapshot_agent_handle(fixture->agent, control, &failure));
}

static void command(struct fixture *fixture, Capstan__Snapshot snapshot) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Snapshot message = CAPSTAN__SNAPSHOT__INIT;
    message.id = snapshot.id;
    message.round = snapshot.round;
    message.step = snapshot.step;
    message.write = snapshot.write;
    message.retain = snapshot.retain;
    message.last = snapshot.last;
    message.form = snapshot.form;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT;
    control.snapshot = &message;
    handle(fixture, &control);
}

static void release(struct fixture *fixture, uint64_t id) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__SnapshotRelease message = CAPSTAN__SNAPSHOT_RELEASE__INIT;
    message.id = id;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE;
    control.snapshot_release = &message;
    handle(fixture, &control);
}

static void prepare(struct fixture *fixture) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__SnapshotPrepare message = CAPSTAN__SNAPSHOT_PREPARE__INIT;
    message.id = REQUESTED;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARE;
    control.snapshot_prepare = &message;
    handle(fixture, &control);
}

/* In a folder of this host's own, so the report names the host. */
TEST(a_planned_round_is_written_and_reported_with_its_file) {
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    open_agent(fixture);
    assert_false(snapshot_agent_shares_folder(fixture->agent));
    reach_all(fixture, 4);
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].id, 4);
    assert_int_equal(fixture->sent[0].outcome, WRITTEN);
    assert_string_equal(fixture->sent[0].name,
                        "ps-1-of-2-0000000000000007.mdb");
    assert_string_equal(fixture->sent[0].host, host);
    assert_true(fixture->sent[0].has_scaler);
}

TEST(only_the_first_blocks_holder_reports_step_and_scaler) {
    char path[PATH_MAX];
    checkpoint_run_file(fixture->folder, 7, path, sizeof path);
    fclose(fopen(path, "w")); /* the chief's, which shares the folder */
    fixture->settings.has_first_block = false;
    open_agent(fixture);
    command(fixture,
            (Capstan__Snapshot){.id = REQUESTED, .round = 5, .write = true});
    reach_all(fixture, 5);
    await_sent(fixture, 2);
    assert_int_equal(fixture->sent[0].outcome, HELD);
    assert_false(fixture->sent[0].has_step);
    assert_int_equal(fixture->sent[1].outcome, WRITTEN);
    assert_string_equal(fixture->sent[1].host, "");
    assert_false(fixture->sent[1].has_scaler);
}

TEST(a_requested_round_is_agreed_on_held_and_written) {
    open_agent(fixture);
    fixture->version = 8;
    prepare(fixture);
    assert_int_equal(fixture->sent[0].highest, 8);
    command(fixture,
            (Capstan__Snapshot){
                .id = REQUESTED, .round = 9, .write = true, .retain = true});
    assert_int_equal(fixture->hold_at, 9);
    reach_all(fixture, 9);
    await_sent(fixture, 3);
    assert_int_equal(fixture->sent[1].outcome, HELD);
    assert_true(fixture->sent[1].has_step);
    assert_int_equal(fixture->sent[1].step, 9);
    assert_int_equal(fixture->sent[2].outcome, WRITTEN);
    struct snapshots *snapshots = snapshot_agent_snapshots(fixture->agent);
    assert_non_null(snapshots_weights(snapshots, REQUESTED, 1));
    release(fixture, REQUESTED);
    assert_false(snapshots_has(snapshots, REQUESTED));
}

/* A chief that was only silent names the round afterwards. */
TEST(rounds_go_on_without_a_silent_chief_and_its_snapshot_is_void) {
    open_agent(fixture);
    fixture->version = 8;
    assert_ok(snapshot_agent_lift(fixture->agent, &failure));
    prepare(fixture);
    fixture->hold_at = 99;
    assert_ok(snapshot_agent_lift(fixture->agent, &failure));
    assert_int_equal(fixture->hold_at, 0);
    command(fixture, (Capstan__Snapshot){.id = REQUESTED, .round = 9});
    assert_int_equal(fixture->num_sent, 2);
    assert_int_equal(fixture->sent[1].outcome, NOT_HELD);
    assert_int_equal(fixture->hold_at, 0);
}

static void plan_every(struct fixture *fixture, uint64_t steps) {
    fixture->plan.run_schedule.checkpoints = true;
    fixture->plan.run_schedule.epoch_batches = TOTAL;
    fixture->plan.run_schedule.accumulation = 1;
    fixture->plan.run_schedule.every_steps = steps;
}

static void forget(struct fixture *fixture, uint64_t saved) {
    assert_ok(snapshot_agent_forget(fixture->agent, saved, &failure));
}

/* Round 9 of every 9 is then planned as it was before the request. */
TEST(another_chief_has_none_of_the_snapshots_that_were_requested) {
    plan_every(fixture, 9);
    open_agent(fixture);
    fixture->version = 8;
    command(fixture, (Capstan__Snapshot){.id = REQUESTED, .retain = true});
    await_sent(fixture, 1);
    command(fixture,
            (Capstan__Snapshot){
                .id = REQUESTED + 1, .round = 9, .write = true, .last = true});
    assert_int_equal(snapshot_agent_last(fixture->agent), REQUESTED + 1);
    fixture->hold_at = 99;
    forget(fixture, 0);
    assert_int_equal(snapshot_agent_last(fixture->agent), 0);
    assert_int_equal(fixture->hold_at, 0);
    assert_false(
        snapshots_has(snapshot_agent_snapshots(fixture->agent), REQUESTED));
    reach_all(fixture, 9);
    await_sent(fixture, 2);
    assert_int_equal(fixture->sent[1].id, 9);
    assert_int_equal(fixture->sent[1].outcome, WRITTEN);
}

/* Other holders had not begun the request, and report the planned round: the
 * chief would wait for this one's part. */
TEST(a_planned_round_that_a_void_request_has_replaced_is_reported_as_skipped) {
    for (uint64_t saved = 0; saved <= 9; saved += 9) {
        fixture->num_sent = 0;
        plan_every(fixture, 9);
        open_agent(fixture);
        command(fixture, (Capstan__Snapshot){
                             .id = REQUESTED, .round = 9, .write = true});
        reach(fixture, 0, 9);
        forget(fixture, saved);
        snapshot_agent_step(fixture->agent);
        assert_int_equal(fixture->num_sent, saved ? 0 : 1);
        if (!saved) {
            assert_int_equal(fixture->sent[0].id, 9);
            assert_int_equal(fixture->sent[0].outcome, NOT_WRITTEN);
        }
        snapshot_agent_close(&fixture->agent);
    }
}

/* With staleness: the step is known when it is held. */
TEST(a_snapshot_of_now_is_written_when_the_order_follows) {
    open_agent(fixture);
    fixture->version = 12;
    command(fixture, (Capstan__Snapshot){.id = REQUESTED, .retain = true});
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].outcome, HELD);
    assert_int_equal(fixture->sent[0].step, 12);
    command(fixture,
            (Capstan__Snapshot){.id = REQUESTED, .step = 12, .write = true});
    await_sent(fixture, 2);
    assert_int_equal(fixture->sent[1].outcome, WRITTEN);
}

static void retain(struct fixture *fixture, uint64_t base) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Retain message = CAPSTAN__RETAIN__INIT;
    message.base_snapshot = base;
    control.body_case = CAPSTAN__CONTROL__BODY_RETAIN;
    control.retain = &message;
    handle(fixture, &control);
}

/* Round 5 of every 5 is a delta, round 20 full; and so a request says. */
TEST(a_delta_is_full_until_there_is_a_base) {
    fixture->plan.run_schedule.checkpoints = true;
    fixture->plan.run_schedule.epoch_batches = TOTAL;
    fixture->plan.run_schedule.accumulation = 1;
    fixture->plan.run_schedule.every_steps = 20;
    fixture->plan.run_schedule.delta_every_steps = 5;
    open_agent(fixture);
    reach_all(fixture, 5);
    await_sent(fixture, 1);
    retain(fixture, 0);
    assert_int_equal(fixture->base, 0);
    reach_all(fixture, 10);
    await_sent(fixture, 2);
    for (int i = 0; i < 2; i++) {
        assert_false(fixture->sent[i].delta);
        assert_string_equal(fixture->sent[i].name,
                            "ps-1-of-2-0000000000000007.mdb");
    }
    retain(fixture, 10);
    assert_int_equal(fixture->base, 10);
    reach_all(fixture, 15);
    await_sent(fixture, 3);
    assert_true(fixture->sent[2].delta);
    assert_string_equal(fixture->sent[2].name,
                        "ps-1-of-2-0000000000000007-delta.mdb");
    reach_all(fixture, 20);
    await_sent(fixture, 4);
    assert_false(fixture->sent[3].delta);
    command(fixture,
            (Capstan__Snapshot){.id = REQUESTED,
                                .round = 25,
                                .write = true,
                                .form = CAPSTAN__SNAPSHOT__FORM__FULL});
    reach_all(fixture, 25);
    await_sent(fixture, 6);
    assert_false(fixture->sent[5].delta);
    command(fixture,
            (Capstan__Snapshot){.id = REQUESTED + 1,
                                .form = CAPSTAN__SNAPSHOT__FORM__DELTA});
    await_sent(fixture, 7);
    command(fixture,
            (Capstan__Snapshot){.id = REQUESTED + 1,
                                .step = 26,
                                .write = true,
                                .form = CAPSTAN__SNAPSHOT__FORM__DELTA});
    await_sent(fixture, 8);
    assert_true(fixture->sent[7].delta);
}

TEST(a_run_that_resumed_has_a_base) {
    fixture->plan.run_schedule.checkpoints = true;
    fixture->plan.run_schedule.epoch_batches = TOTAL;
    fixture->plan.run_schedule.accumulation = 1;
    fixture->plan.run_schedule.delta_every_steps = 5;
    fixture->plan.restore_folder = fixture->folder;
    open_agent(fixture);
    reach_all(fixture, 5);
    await_sent(fixture, 1);
    assert_true(fixture->sent[0].delta);
}

TEST(a_planned_id_only_lifts_the_freeze) {
    open_agent(fixture);
    fixture->hold_at = 77;
    command(fixture, (Capstan__Snapshot){.id = 9, .step = 9});
    assert_int_equal(fixture->hold_at, 0);
    reach_all(fixture, 9);
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].id, 9);
    assert_int_equal(fixture->sent[0].outcome, WRITTEN);
}

/* The file of round 3 lacks a block until round 4 was due. */
TEST(a_round_due_during_a_write_is_skipped_and_said) {
    open_agent(fixture);
    reach(fixture, 0, 3);
    reach_all(fixture, 4);
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].id, 4);
    assert_int_equal(fixture->sent[0].outcome, NOT_WRITTEN);
    assert_string_equal(fixture->sent[0].error,
                        "an earlier one was still being written");
    reach_all(fixture, TOTAL); /* never skipped */
    reach(fixture, 1, 3);
    await_sent(fixture, 3);
    assert_int_equal(fixture->sent[1].id, 3);
    assert_int_equal(fixture->sent[2].id, TOTAL);
    assert_int_equal(fixture->sent[2].outcome, WRITTEN);
}

TEST(a_request_that_is_released_is_not_begun) {
    open_agent(fixture);
    command(fixture,
            (Capstan__Snapshot){
                .id = REQUESTED, .round = 5, .write = true, .retain = true});
    release(fixture, REQUESTED);
    reach_all(fixture, 5);
    assert_false(
        snapshots_has(snapshot_agent_snapshots(fixture->agent), REQUESTED));
    reach_all(fixture, 6);
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].id, 6);
}

/* The bytes of all rows do not even fit into a size_t. */
TEST(a_lack_of_memory_is_reported_with_its_reason) {
    fixture->settings.blocks.row_bytes = SIZE_MAX / 2;
    open_agent(fixture);
    command(fixture, (Capstan__Snapshot){.id = REQUESTED, .retain = true});
    await_sent(fixture, 1);
    assert_int_equal(fixture->sent[0].outcome, NOT_HELD);
    assert_string_equal(fixture->sent[0].error, "no memory for a snapshot");
    release(fixture, REQUESTED);
    command(fixture, (Capstan__Snapshot){
                         .id = REQUESTED + 1, .round = 5, .write = true});
    reach_all(fixture, 5);
    await_sent(fixture, 2);
    assert_int_equal(fixture->sent[1].id, REQUESTED + 1);
    assert_int_equal(fixture->sent[1].outcome, NOT_HELD);
    reach_all(fixture, 6);
    await_sent(fixture, 3);
    assert_int_equal(fixture->sent[2].id, 6);
    assert_int_equal(fixture->sent[2].outcome, NOT_WRITTEN);
}

TEST(a_holder_without_blocks_answers_nothing) {
    fixture->settings.blocks.num_units = 0;
    open_agent(fixture);
    prepare(fixture);
    command(fixture, (Capstan__Snapshot){.id = REQUESTED});
    snapshot_agent_step(fixture->agent);
    assert_int_equal(fixture->num_sent, 0);
}
