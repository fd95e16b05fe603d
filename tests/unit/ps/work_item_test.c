/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "ps/work_item.h"

#include "tests/lib/test.h"

enum { ELEMENTS = 40000, RANKS = 2, BLOCKS = 3 };

/* A parameter in three blocks, weights of 0 and SGD of rate 1: weights tell
 * the updates. */
struct fixture {
    struct layout *layout;
    struct shard *shard;
    struct work_items *work_items;
    float *ones;
};

static int setup_with(void **state, uint32_t threads) {
    static const uint32_t ids[BLOCKS] = {0, 1, 2};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}};
    struct optimizer optimizer = {.type = OPTIMIZER_SGD};
    if (layout_build(&fixture->layout, &parameter, 1, &failure) ||
        shard_open(&fixture->shard,
                   &(struct shard_settings){fixture->layout, ids, BLOCKS,
                                            &optimizer, NULL},
                   &failure) ||
        work_items_open(&fixture->work_items,
                        &(struct work_items_settings){.units = {fixture->shard},
                                                      .num_ranks = RANKS,
                                                      .threads = threads},
                        &failure))
        return -1;
    shard_initialise(fixture->shard, 1);
    fixture->ones = malloc(ELEMENTS * sizeof(float));
    for (int i = 0; i < ELEMENTS; i++)
        fixture->ones[i] = 1;
    *state = fixture;
    return 0;
}

static int setup(void **state) {
    return setup_with(state, 0);
}

static int setup_threads(void **state) {
    return setup_with(state, 2);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    work_items_close(&fixture->work_items);
    shard_close(&fixture->shard);
    layout_free(&fixture->layout);
    free(fixture->ones);
    free(fixture);
    return 0;
}

static void put(struct fixture *fixture, enum update_core_kind kind, uint32_t b,
                uint64_t version) {
    struct update_core_action action = {
        .kind = kind, .block = b, .version = version};
    struct work_item *item = work_items_alloc(fixture->work_items, &action);
    assert_non_null(item);
    item->gradients[0] = item->gradients[1] = fixture->ones;
    item->round = (struct unit_round){.gradients = item->gradients,
                                      .num_parts = 2,
                                      .step = version,
                                      .rule_step = version,
                                      .rate = 1,
                                      .scale = 0.5f};
    work_items_submit(fixture->work_items, item);
}

static float first_of(struct buffer *buffer) {
    return *(float *)buffer_data(buffer);
}

#define WORK_ITEM_TEST(name)                                                   \
    static void name(void **state);                                            \
    TEST_AGAIN(#name ", 2 threads", setup_threads, teardown, name);            \
    TEST_WITH(setup, teardown, name)

WORK_ITEM_TEST(a_reply_has_the_weights_at_its_submission) {
    struct work_item *item;
    unsigned replies = 0;
    for (uint64_t version = 1; version <= 3; version++)
        for (uint32_t b = 0; b < BLOCKS; b++) {
            put(fixture, UPDATE_CORE_UPDATE, b, version);
            put(fixture, UPDATE_CORE_REPLY, b, version);
        }
    work_items_wait(fixture->work_items);
    while ((item = work_items_completed(fixture->work_items))) {
        assert_int_equal(item->status, STATUS_OK);
        if (item->action.kind == UPDATE_CORE_REPLY) {
            assert_true(first_of(item->weights) ==
                        -(float)item->action.version);
            buffer_release(&item->weights);
            replies++;
        }
        work_items_recycle(fixture->work_items, item);
    }
    assert_int_equal(replies, 3 * BLOCKS);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_true(first_of(shard_tensor(fixture->shard, b, 0)) == -3);
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
}

WORK_ITEM_TEST(an_ack_holds_no_weights) {
    struct update_core_action action = {.kind = UPDATE_CORE_REPLY};
    struct work_item *item = work_items_alloc(fixture->work_items, &action);
    item->ack_only = true;
    work_items_submit(fixture->work_items, item);
    work_items_wait(fixture->work_items);
    assert_ptr_equal(work_items_completed(fixture->work_items), item);
    assert_null(item->weights);
    assert_true(buffer_is_unique(shard_tensor(fixture->shard, 0, 0)));
    work_items_recycle(fixture->work_items, item);
}

WORK_ITEM_TEST(a_sum_is_computed_by_the_shard) {
    put(fixture, UPDATE_CORE_SUM, 1, 1);
    work_items_wait(fixture->work_items);
    struct work_item *item = work_items_completed(fixture->work_items);
    assert_non_null(item);
    assert_true(item->sum == fixture->layout->blocks[1].elements);
    work_items_recycle(fixture->work_items, item);
}

WORK_ITEM_TEST(a_finished_work_item_is_reused) {
    struct update_core_action action = {.kind = UPDATE_CORE_SUM, .block = 2};
    struct work_item *first = work_items_alloc(fixture->work_items, &action);
    struct work_item *second = work_items_alloc(fixture->work_items, &action);
    assert_ptr_not_equal(first, second);
    work_items_recycle(fixture->work_items, first);
    assert_ptr_equal(work_items_alloc(fixture->work_items, &action), first);
    assert_int_equal(first->task.block, 2);
    work_items_recycle(fixture->work_items, first);
    work_items_recycle(fixture->work_items, second);
}
