/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/tasks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

enum { ELEMENTS = 40000, RANKS = 2, BLOCKS = 3 };

/* A parameter in three blocks, weights of 0 and SGD of rate 1: weights tell
 * the updates. */
struct fixture {
    struct layout *layout;
    struct shard *shard;
    struct tasks *tasks;
    float *ones;
};

static int setup_with(void **state, uint32_t threads) {
    static const uint32_t ids[BLOCKS] = {0, 1, 2};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}};
    struct optimizer optimizer = {.type = OPTIMIZER_SGD};
    struct failure why;
    if (layout_build(&fixture->layout, &parameter, 1, &why) ||
        shard_open(&fixture->shard, fixture->layout, ids, BLOCKS, &optimizer,
                   &why) ||
        tasks_open(&fixture->tasks, fixture->shard, RANKS, threads, &why))
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
    tasks_close(&fixture->tasks);
    shard_close(&fixture->shard);
    layout_free(&fixture->layout);
    free(fixture->ones);
    free(fixture);
    return 0;
}

static void put(struct fixture *fixture, enum exchange_kind kind, uint32_t b,
                uint64_t version) {
    struct exchange_action action = {
        .kind = kind, .block = b, .version = version};
    struct task *task = tasks_take(fixture->tasks, &action);
    assert_non_null(task);
    task->gradients[0] = task->gradients[1] = fixture->ones;
    task->round = (struct shard_round){.gradients = task->gradients,
                                       .num_gradients = 2,
                                       .step = version,
                                       .rate = 1,
                                       .scale = 0.5f};
    tasks_put(fixture->tasks, task);
}

static float first_of(struct buffer *buffer) {
    return *(float *)buffer_data(buffer);
}

static void a_reply_has_the_weights_of_its_moment(void **state) {
    struct fixture *fixture = *state;
    struct task *task;
    unsigned replies = 0;
    for (uint64_t version = 1; version <= 3; version++)
        for (uint32_t b = 0; b < BLOCKS; b++) {
            put(fixture, EXCHANGE_UPDATE, b, version);
            put(fixture, EXCHANGE_REPLY, b, version);
        }
    tasks_settle(fixture->tasks);
    while ((task = tasks_done(fixture->tasks))) {
        assert_int_equal(task->status, STATUS_OK);
        if (task->action.kind == EXCHANGE_REPLY) {
            assert_true(first_of(task->weights) ==
                        -(float)task->action.version);
            buffer_release(&task->weights);
            replies++;
        }
        tasks_give_back(fixture->tasks, task);
    }
    assert_int_equal(replies, 3 * BLOCKS);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_true(first_of(shard_tensor(fixture->shard, b, 0)) == -3);
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
}

static void a_receipt_holds_no_weights(void **state) {
    struct fixture *fixture = *state;
    struct exchange_action action = {.kind = EXCHANGE_REPLY};
    struct task *task = tasks_take(fixture->tasks, &action);
    task->receipt = true;
    tasks_put(fixture->tasks, task);
    tasks_settle(fixture->tasks);
    assert_ptr_equal(tasks_done(fixture->tasks), task);
    assert_null(task->weights);
    assert_true(buffer_alone(shard_tensor(fixture->shard, 0, 0)));
    tasks_give_back(fixture->tasks, task);
}

static void a_sum_is_the_shards(void **state) {
    struct fixture *fixture = *state;
    put(fixture, EXCHANGE_SUM, 1, 1);
    tasks_settle(fixture->tasks);
    struct task *task = tasks_done(fixture->tasks);
    assert_non_null(task);
    assert_true(task->sum == fixture->layout->blocks[1].elements);
    tasks_give_back(fixture->tasks, task);
}

static void a_task_that_came_back_is_used_again(void **state) {
    struct fixture *fixture = *state;
    struct exchange_action action = {.kind = EXCHANGE_SUM, .block = 2};
    struct task *first = tasks_take(fixture->tasks, &action);
    struct task *second = tasks_take(fixture->tasks, &action);
    assert_ptr_not_equal(first, second);
    tasks_give_back(fixture->tasks, first);
    assert_ptr_equal(tasks_take(fixture->tasks, &action), first);
    assert_int_equal(first->crew.block, 2);
    tasks_give_back(fixture->tasks, first);
    tasks_give_back(fixture->tasks, second);
}

#define TASKS_TEST(f)                                                          \
    cmocka_unit_test_setup_teardown(f, setup, teardown), {                     \
        .name = #f ", 2 threads", .test_func = f, .setup_func = setup_threads, \
        .teardown_func = teardown                                              \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        TASKS_TEST(a_reply_has_the_weights_of_its_moment),
        TASKS_TEST(a_receipt_holds_no_weights),
        TASKS_TEST(a_sum_is_the_shards),
        TASKS_TEST(a_task_that_came_back_is_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
