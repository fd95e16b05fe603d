/* SPDX-License-Identifier: Apache-2.0 */
/* What the keeper of rank 0 does for its chief beside saving: it reads and sets
 * weights, and reads the checkpoint that a run begins with. */
#include "worker/exchange/allreduce/keeper.h"

#include "chief/snapshot/transfer.h"
#include "proto/store/checkpoint.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/keeper_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEPER_ASKED ((UINT64_C(1) << 63) + 1)

static void it_is_ready_and_says_whether_it_sees_the_folder(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    assert_true(keeper_seen.ready);
    assert_false(keeper_seen.shares);
    keeper_close(&fixture->keeper);
    char path[PATH_MAX];
    checkpoint_mark(fixture->folder, KEEPER_RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    keeper_fixture_open(fixture);
    assert_true(keeper_seen.shares);
}

/* On the chief's side: a parameter of snapshot KEEPER_ASKED is read, or set. */
static void *transfer(void *argument) {
    static uint32_t ps_of_block[64];
    static float floats[1 << 20];
    struct keeper_fixture *fixture = argument;
    struct transfer_place place = {.incarnation = KEEPER_RANK};
    struct transfer_settings settings = {
        .zmq = fixture->zmq,
        .run = KEEPER_RUN,
        .incarnation = KEEPER_CHIEF,
        .layout = fixture->plan.layout,
        .ps_of_block = ps_of_block,
        .ps = &place,
        .num_ps = 1,
        .inside = fixture->inside,
        .step_timeout = 20,
        .cancel = -1,
    };
    struct transfer *chief;
    struct failure why;
    fixture->moved = transfer_open(&chief, &settings, &why);
    if (!fixture->moved)
        fixture->moved =
            fixture->sets ? transfer_assign(chief, 0, floats, &why)
                          : transfer_read(chief, 0, KEEPER_ASKED, floats, &why);
    transfer_close(&chief);
    return NULL;
}

static enum status move(struct keeper_fixture *fixture, bool sets) {
    pthread_t thread;
    fixture->sets = sets;
    assert_int_equal(pthread_create(&thread, NULL, transfer, fixture), 0);
    while (pthread_tryjoin_np(thread, NULL)) {
        zmq_pollitem_t items[KEEPER_POLL_ITEMS];
        keeper_poll_items(fixture->keeper, items);
        zmq_poll(items, KEEPER_POLL_ITEMS, 20);
        keeper_step(fixture->keeper);
    }
    return fixture->moved;
}

static void weights_are_read_from_the_cut_to_its_end(void **state) {
    struct keeper_fixture *fixture = *state;
    Capstan__CutEnd end = CAPSTAN__CUT_END__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    keeper_fixture_open(fixture);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 0, false);
    assert_int_equal(move(fixture, false), STATUS_OK);
    end.id = KEEPER_ASKED;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT_END;
    order.cut_end = &end;
    keeper_obey(fixture->keeper, &order);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
}

static void weights_are_set_and_nothing_is_cut_before_the_rounds(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open_unattached(fixture);
    keeper_fixture_ask(fixture);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 0, true);
    assert_int_equal(keeper_seen.told, 0);
    assert_int_equal(move(fixture, true), STATUS_OK);
    keeper_fixture_attach(fixture);
    assert_int_equal(move(fixture, true), STATUS_FAILED);
}

static void keep_newer(struct keeper_fixture *fixture) {
    uint64_t newer = 40;
    Capstan__Keep keep = CAPSTAN__KEEP__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    keep.steps = &newer;
    keep.n_steps = 1;
    order.body_case = CAPSTAN__CONTROL__BODY_KEEP;
    order.keep = &keep;
    keeper_obey(fixture->keeper, &order);
}

/* In its own folder; in the one that the chief sees that is the chief's. */
static void what_the_chief_does_not_keep_is_removed(void **state) {
    struct keeper_fixture *fixture = *state;
    char folder[PATH_MAX], path[PATH_MAX];
    checkpoint_fixture_write(fixture->folder, 20, 1);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    checkpoint_mark(fixture->folder, KEEPER_RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    keeper_fixture_open(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), 0);
    keeper_close(&fixture->keeper);
    unlink(path);
    keeper_fixture_open(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), -1);
}

static void what_cannot_be_written_is_told_to_the_chief(void **state) {
    struct keeper_fixture *fixture = *state;
    char blocked[PATH_MAX + 32];
    keeper_fixture_open(fixture);
    snprintf(blocked, sizeof blocked, "%s/step-000000030", fixture->folder);
    fclose(fopen(blocked, "w"));
    keeper_fixture_hand_over(fixture, 30);
    keeper_fixture_told(fixture, 1);
    assert_int_equal(keeper_seen.id[0], 30);
    assert_true(keeper_seen.failed[0]);
}

/* Weights, first and second moments; the files are of two ps. */
static void a_checkpoint_of_any_number_of_ps_is_read(void **state) {
    struct keeper_fixture *fixture = *state;
    struct manifest manifest;
    struct failure why;
    char folder[PATH_MAX];
    checkpoint_fixture_write(fixture->folder, 20, 2);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    assert_int_equal(manifest_read(&manifest, folder, &why), STATUS_OK);
    fixture->plan.restore_folder = folder;
    fixture->plan.restore_manifest = manifest_text(&manifest);
    keeper_fixture_open(fixture);
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++) {
        const struct block *block = &fixture->plan.layout->blocks[b];
        assert_int_equal(fixture->calls->load(fixture->calls->context, b,
                                              fixture->tensors, &why),
                         STATUS_OK);
        for (uint16_t t = 0; t < 3; t++)
            for (uint32_t i = 0; i < block->elements; i++)
                assert_true(fixture->tensors[t][i] ==
                            checkpoint_fixture_value(20, block->parameter, t,
                                                     block->offset + i));
    }
    keeper_close(&fixture->keeper);
    free(fixture->plan.restore_manifest);
    manifest_clear(&manifest);
}

static void weights_that_the_chief_has_set_are_begun_with(void **state) {
    struct keeper_fixture *fixture = *state;
    struct failure why;
    float *weights = (float *)buffer_data(fixture->weights);
    const struct block *first = &fixture->plan.layout->blocks[0];
    keeper_fixture_open(fixture);
    weights[fixture->offsets[first->parameter] + first->offset] = 0.5f;
    fixture->tensors[1][0] = 3;
    assert_int_equal(fixture->calls->load(fixture->calls->context, 0,
                                          fixture->tensors, &why),
                     STATUS_OK);
    assert_true(fixture->tensors[0][0] == 0.5f);
    assert_true(fixture->tensors[1][0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        KEEPER_TEST(it_is_ready_and_says_whether_it_sees_the_folder),
        KEEPER_TEST(weights_are_read_from_the_cut_to_its_end),
        KEEPER_TEST(weights_are_set_and_nothing_is_cut_before_the_rounds),
        KEEPER_TEST(what_the_chief_does_not_keep_is_removed),
        KEEPER_TEST(what_cannot_be_written_is_told_to_the_chief),
        KEEPER_TEST(a_checkpoint_of_any_number_of_ps_is_read),
        KEEPER_TEST(weights_that_the_chief_has_set_are_begun_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
