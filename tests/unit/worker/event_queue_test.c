/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/event_queue.h"

#include "tests/lib/test.h"

#include <poll.h>

enum { ROOM = 3 };

struct value {
    uint64_t number, square;
};

struct fixture {
    struct event_queue event_queue;
    struct value room[ROOM];
    pthread_t thread;
    uint64_t puts; /* by the thread */
};

static int setup(void **state) {
    static struct fixture fixture;
    fixture = (struct fixture){0};
    assert_ok(event_queue_open(&fixture.event_queue, fixture.room,
                               sizeof *fixture.room, ROOM, &failure));
    *state = &fixture;
    return 0;
}

TEARDOWN(teardown) {
    event_queue_close(&fixture->event_queue);
}

FIXTURE(setup, teardown);

static void put(struct fixture *fixture, uint64_t number) {
    struct value value = {number, number * number};
    event_queue_push(&fixture->event_queue, &value);
}

/* Takes NUMBER, waiting for it. */
static void take(struct fixture *fixture, uint64_t number) {
    struct value value;
    while (!event_queue_pop(&fixture->event_queue, &value)) {
        struct pollfd ready = {fixture->event_queue.descriptor, POLLIN, 0};
        if (poll(&ready, 1, 10000) < 1)
            fail_msg("no report %llu in 10 s", (unsigned long long)number);
    }
    assert_int_equal(value.number, number);
    assert_int_equal(value.square, number * number);
}

static bool is_readable(const struct fixture *fixture) {
    struct pollfd ready = {fixture->event_queue.descriptor, POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
}

static void *put_all(void *argument) {
    struct fixture *fixture = argument;
    for (uint64_t number = 0; number < fixture->puts; number++)
        put(fixture, number);
    return NULL;
}

static void start(struct fixture *fixture, uint64_t puts) {
    fixture->puts = puts;
    assert_int_equal(pthread_create(&fixture->thread, NULL, put_all, fixture),
                     0);
}

TEST(reports_are_delivered_in_order) {
    struct value value;
    for (uint64_t number = 0; number < 2 * ROOM; number += 2) {
        put(fixture, number);
        put(fixture, number + 1);
        take(fixture, number);
        take(fixture, number + 1);
        assert_false(event_queue_pop(&fixture->event_queue, &value));
    }
}

TEST(the_descriptor_is_readable_while_the_queue_is_nonempty) {
    assert_false(is_readable(fixture));
    put(fixture, 1);
    assert_true(is_readable(fixture));
    take(fixture, 1);
    assert_false(is_readable(fixture));
}

TEST(a_full_queue_blocks_and_loses_nothing) {
    start(fixture, 10000);
    for (uint64_t number = 0; number < fixture->puts; number++)
        take(fixture, number);
    pthread_join(fixture->thread, NULL);
}

TEST(cancelling_ends_blocked_puts) {
    struct value value;
    start(fixture, 2 * ROOM);
    take(fixture, 0);
    event_queue_cancel(&fixture->event_queue);
    pthread_join(fixture->thread, NULL);
    for (uint64_t number = 1; number <= ROOM; number++)
        take(fixture, number);
    assert_false(event_queue_pop(&fixture->event_queue, &value));
}
