/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "ps/thread_pool.h"

#include "core/base/time.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum { BLOCKS = 11, ITEMS = 2000, LIMIT_S = 60 };

struct step {
    struct thread_pool_task task;
    uint32_t number; /* when it was put, of its block */
    uint32_t turn;   /* when it was done, of its block */
    pthread_t by;
    bool back;
};

struct fixture {
    struct thread_pool *thread_pool;
    uint32_t put[BLOCKS];
    atomic_uint done[BLOCKS]; /* of a block: its thread's alone */
    struct step steps[ITEMS];
    sem_t gate;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    sem_init(&fixture->gate, 0, 0);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    thread_pool_close(&fixture->thread_pool);
    sem_destroy(&fixture->gate);
    free(fixture);
}

FIXTURE(setup, teardown);

static void count(void *context, struct thread_pool_task *task) {
    struct fixture *fixture = context;
    struct step *step = (struct step *)task;
    step->turn = atomic_fetch_add(&fixture->done[task->block], 1);
    step->by = pthread_self();
}

static void prefetch_none(void *context, const struct thread_pool_task *task,
                          unsigned ahead) {
    (void)context, (void)task, (void)ahead;
}

static void open_thread_pool(struct fixture *fixture, uint32_t threads,
                             thread_pool_function *work) {
    assert_ok(thread_pool_open(&fixture->thread_pool, threads, work,
                               prefetch_none, fixture, &failure));
}

static void put(struct fixture *fixture, uint32_t i, uint32_t block) {
    fixture->steps[i].task.block = block;
    fixture->steps[i].number = fixture->put[block]++;
    thread_pool_submit(fixture->thread_pool, &fixture->steps[i].task);
}

/* Each comes back once, done in its block's turn; returns how many. */
static uint32_t take_back(struct fixture *fixture) {
    struct thread_pool_task *task;
    uint32_t collected = 0;
    for (; (task = thread_pool_completed(fixture->thread_pool)); collected++) {
        struct step *step = (struct step *)task;
        assert_false(step->back);
        assert_int_equal(step->turn, step->number);
        step->back = true;
    }
    return collected;
}

static void put_at_random(struct fixture *fixture, uint32_t threads) {
    struct philox_sequence random;
    uint32_t collected = 0;
    seed_open(&random);
    open_thread_pool(fixture, threads, count);
    for (uint32_t i = 0; i < ITEMS; i++) {
        put(fixture, i, philox_below(&random, BLOCKS));
        if (!philox_below(&random, 5))
            thread_pool_dispatch(fixture->thread_pool);
        if (!philox_below(&random, 9))
            collected += take_back(fixture);
    }
    thread_pool_wait(fixture->thread_pool);
    assert_int_equal(collected + take_back(fixture), ITEMS);
    for (uint32_t i = 1; i < ITEMS; i++)
        for (uint32_t k = i > 50 ? i - 50 : 0; k < i; k++)
            if (fixture->steps[i].task.block == fixture->steps[k].task.block)
                assert_true(
                    pthread_equal(fixture->steps[i].by, fixture->steps[k].by));
}

TEST(work_items_of_a_block_run_in_order_on_one_thread) {
    put_at_random(*state, 3);
}

TEST(more_threads_than_blocks_do_no_harm) {
    put_at_random(*state, BLOCKS + 5);
}

TEST(without_threads_the_caller_runs_work) {
    open_thread_pool(fixture, 0, count);
    put(fixture, 0, 4);
    thread_pool_dispatch(fixture->thread_pool);
    assert_true(pthread_equal(fixture->steps[0].by, pthread_self()));
    assert_int_equal(take_back(fixture), 1);
    assert_int_equal(thread_pool_descriptor(fixture->thread_pool), -1);
    thread_pool_close(&fixture->thread_pool);
    memset(fixture->put, 0, sizeof fixture->put);
    memset(fixture->done, 0, sizeof fixture->done);
    memset(fixture->steps, 0, sizeof fixture->steps);
    put_at_random(fixture, 0);
}

/* False when nothing came in time. */
static bool await_semaphore(sem_t *semaphore) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LIMIT_S;
    return !sem_timedwait(semaphore, &limit);
}

/* Block 0 waits for the gate, which block 1 opens. */
static void depend(void *context, struct thread_pool_task *task) {
    struct fixture *fixture = context;
    struct step *step = (struct step *)task;
    if (task->block)
        sem_post(&fixture->gate);
    else
        step->back = !await_semaphore(&fixture->gate);
    step->turn = step->number;
}

TEST(blocks_of_two_threads_run_in_parallel) {
    open_thread_pool(fixture, 2, depend);
    put(fixture, 0, 0);
    put(fixture, 1, 1);
    thread_pool_wait(fixture->thread_pool);
    assert_int_equal(take_back(fixture), 2);
}

static bool is_readable(int descriptor, int limit_ms) {
    struct pollfd item = {descriptor, POLLIN, 0};
    return poll(&item, 1, limit_ms) == 1;
}

TEST(the_descriptor_signals_finished_work) {
    open_thread_pool(fixture, 2, count);
    int descriptor = thread_pool_descriptor(fixture->thread_pool);
    for (uint32_t i = 0; i < 100; i++) {
        assert_false(is_readable(descriptor, 0));
        put(fixture, 2 * i, i % BLOCKS);
        put(fixture, 2 * i + 1, (i + 1) % BLOCKS);
        assert_false(is_readable(descriptor, 0)); /* not started */
        thread_pool_dispatch(fixture->thread_pool);
        for (uint32_t collected = 0; collected < 2;
             collected += take_back(fixture))
            assert_true(is_readable(descriptor, LIMIT_S * 1000));
    }
}

TEST(started_work_finishes_before_close) {
    open_thread_pool(fixture, 2, count);
    for (uint32_t i = 0; i < 500; i++)
        put(fixture, i, i % BLOCKS);
    thread_pool_dispatch(fixture->thread_pool);
    thread_pool_close(&fixture->thread_pool);
    unsigned done = 0;
    for (uint32_t b = 0; b < BLOCKS; b++)
        done += fixture->done[b];
    assert_int_equal(done, 500);
}

TEST_WITH(NULL, NULL, few_cores_get_no_extra_threads) {
    static const uint32_t usual[] = {0, 0, 0, 0, 2, 2, 3, 3, 4, 4, 4};
    for (unsigned cores = 0; cores <= 10; cores++)
        assert_int_equal(thread_pool_default_threads(cores), usual[cores]);
    assert_int_equal(thread_pool_default_threads(128), 4);
}
