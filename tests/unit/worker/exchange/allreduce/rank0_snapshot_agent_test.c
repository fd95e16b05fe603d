/* SPDX-License-Identifier: Apache-2.0 */
/* What the keeper of rank 0 does for its chief beside saving: it reads and sets
 * weights, and reads the checkpoint that a run begins with. */
#define STATE struct rank0_snapshot_agent_fixture *fixture

#include "worker/exchange/allreduce/rank0_snapshot_agent.h"

#include "chief/snapshot/weights_io.h"
#include "core/store/checkpoint.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/rank0_snapshot_agent_fixture.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <unistd.h>

#define RANK0_AGENT_REQUESTED ((UINT64_C(1) << 63) + 1)

FIXTURE(rank0_snapshot_agent_fixture_setup,
        rank0_snapshot_agent_fixture_teardown);

TEST(the_agent_reports_ready_and_whether_it_sees_the_folder) {
    rank0_snapshot_agent_fixture_open(fixture);
    assert_true(rank0_agent_seen.ready);
    assert_false(rank0_agent_seen.shares);
    rank0_snapshot_agent_close(&fixture->rank0_snapshot_agent);
    char path[PATH_MAX];
    checkpoint_run_file(fixture->folder, RANK0_AGENT_RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    rank0_snapshot_agent_fixture_open(fixture);
    assert_true(rank0_agent_seen.shares);
}

/* On the chief's side: a parameter of snapshot RANK0_AGENT_REQUESTED is read,
 * or set. */
static void *weights_transfer(void *argument) {
    static uint32_t ps_of_block[64];
    static float floats[1 << 20];
    struct rank0_snapshot_agent_fixture *fixture = argument;
    struct ps_links_peer place = {.incarnation = RANK0_AGENT_RANK};
    struct weights_transfer_settings settings = {
        .zmq = fixture->zmq,
        .run = RANK0_AGENT_RUN,
        .incarnation = RANK0_AGENT_CHIEF,
        .layout = fixture->plan.layout,
        .ps_of_block = ps_of_block,
        .ps = &place,
        .num_ps = 1,
        .inproc = fixture->inproc,
        .step_timeout = 20,
        .cancel = -1,
    };
    struct weights_transfer *chief;
    fixture->moved = weights_transfer_open(&chief, &settings, &failure);
    if (!fixture->moved)
        fixture->moved =
            fixture->sets
                ? weights_transfer_assign(chief, 0, floats, &failure)
                : weights_transfer_read(chief, 0, RANK0_AGENT_REQUESTED, floats,
                                        &failure);
    weights_transfer_close(&chief);
    return NULL;
}

static enum status move(struct rank0_snapshot_agent_fixture *fixture,
                        bool sets) {
    pthread_t thread;
    fixture->sets = sets;
    assert_int_equal(pthread_create(&thread, NULL, weights_transfer, fixture),
                     0);
    while (pthread_tryjoin_np(thread, NULL)) {
        zmq_pollitem_t items[RANK0_SNAPSHOT_AGENT_POLL_ITEMS];
        rank0_snapshot_agent_poll_items(fixture->rank0_snapshot_agent, items);
        zmq_poll(items, RANK0_SNAPSHOT_AGENT_POLL_ITEMS, 20);
        rank0_snapshot_agent_step(fixture->rank0_snapshot_agent);
    }
    return fixture->moved;
}

TEST(weights_are_readable_while_the_snapshot_lasts) {
    Capstan__SnapshotRelease end = CAPSTAN__SNAPSHOT_RELEASE__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    rank0_snapshot_agent_fixture_open(fixture);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 0, false);
    assert_int_equal(move(fixture, false), STATUS_OK);
    end.id = RANK0_AGENT_REQUESTED;
    order.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE;
    order.snapshot_release = &end;
    rank0_snapshot_agent_fixture_handle(fixture, &order);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
}

TEST(before_the_rounds_weights_are_set_and_no_snapshot_is_taken) {
    rank0_snapshot_agent_fixture_open_unattached(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 0, true);
    assert_int_equal(rank0_agent_seen.num_sent, 0);
    assert_int_equal(move(fixture, true), STATUS_OK);
    rank0_snapshot_agent_fixture_attach(fixture);
    assert_int_equal(move(fixture, true), STATUS_FAILED);
}

static void keep_newer(struct rank0_snapshot_agent_fixture *fixture) {
    uint64_t newer = 40;
    Capstan__Retain retain = CAPSTAN__RETAIN__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    retain.steps = &newer;
    retain.n_steps = 1;
    order.body_case = CAPSTAN__CONTROL__BODY_RETAIN;
    order.retain = &retain;
    rank0_snapshot_agent_fixture_handle(fixture, &order);
}

/* In its own folder; in the one that the chief sees that is the chief's. */
TEST(checkpoints_the_chief_drops_are_removed) {
    char folder[PATH_MAX], path[PATH_MAX];
    checkpoint_fixture_write(fixture->folder, 20, 1);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    checkpoint_run_file(fixture->folder, RANK0_AGENT_RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    rank0_snapshot_agent_fixture_open(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), 0);
    rank0_snapshot_agent_close(&fixture->rank0_snapshot_agent);
    unlink(path);
    rank0_snapshot_agent_fixture_open(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), -1);
}

TEST(a_write_failure_is_reported_to_the_chief) {
    rank0_snapshot_agent_fixture_open(fixture);
    fclose(fopen(textf("%s/step-000000030", fixture->folder), "w"));
    rank0_snapshot_agent_fixture_hand_over(fixture, 30);
    rank0_snapshot_agent_fixture_await_messages(fixture, 1);
    assert_int_equal(rank0_agent_seen.id[0], 30);
    assert_true(rank0_agent_seen.failed[0]);
}

/* Weights, first and second moments; the files are of two ps. */
TEST(a_checkpoint_of_any_number_of_ps_is_read) {
    struct manifest manifest;
    char folder[PATH_MAX];
    uint64_t rule_step;
    checkpoint_fixture_write(fixture->folder, 20, 2);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    fixture->plan.restore_folder = folder;
    fixture->plan.restore_manifest = manifest_text(&manifest);
    rank0_snapshot_agent_fixture_open(fixture);
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++) {
        const struct block *block = &fixture->plan.layout->blocks[b];
        assert_ok(fixture->calls->load(fixture->calls->context, b,
                                       fixture->tensors, &rule_step, &failure));
        assert_int_equal(rule_step, checkpoint_fixture_rule_step(&manifest, b));
        for (uint16_t t = 0; t < 3; t++)
            for (uint32_t i = 0; i < block->elements; i++)
                assert_true(fixture->tensors[t][i] ==
                            checkpoint_fixture_value(20, block->parameter, t,
                                                     block->offset + i));
    }
    rank0_snapshot_agent_close(&fixture->rank0_snapshot_agent);
    free(fixture->plan.restore_manifest);
    manifest_clear(&manifest);
}

TEST(training_starts_with_the_weights_that_the_chief_set) {
    float *weights = (float *)buffer_data(fixture->weights);
    uint64_t rule_step;
    const struct block *first = &fixture->plan.layout->blocks[0];
    rank0_snapshot_agent_fixture_open(fixture);
    weights[fixture->offsets[first->parameter] + first->offset] = 0.5f;
    fixture->tensors[1][0] = 3;
    assert_ok(fixture->calls->load(fixture->calls->context, 0, fixture->tensors,
                                   &rule_step, &failure));
    assert_true(fixture->tensors[0][0] == 0.5f);
    assert_true(fixture->tensors[1][0] == 0);
    assert_int_equal(rule_step, 0);
}
