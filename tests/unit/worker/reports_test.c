/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reports.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>

enum { ROOM = 3 };

struct value {
    uint64_t number, square;
};

struct fixture {
    struct reports reports;
    struct value room[ROOM];
    pthread_t thread;
    uint64_t puts; /* by the thread */
};

static int setup(void **state) {
    static struct fixture fixture;
    struct failure why;
    fixture = (struct fixture){0};
    if (reports_open(&fixture.reports, fixture.room, sizeof *fixture.room, ROOM,
                     &why))
        fail_msg("%s", why.text);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    reports_close(&fixture->reports);
    return 0;
}

static void put(struct fixture *fixture, uint64_t number) {
    struct value value = {number, number * number};
    reports_put(&fixture->reports, &value);
}

/* Takes NUMBER, waiting for it. */
static void take(struct fixture *fixture, uint64_t number) {
    struct value value;
    while (!reports_take(&fixture->reports, &value)) {
        struct pollfd ready = {fixture->reports.descriptor, POLLIN, 0};
        if (poll(&ready, 1, 10000) < 1)
            fail_msg("no report %llu in 10 s", (unsigned long long)number);
    }
    assert_int_equal(value.number, number);
    assert_int_equal(value.square, number * number);
}

static bool is_readable(const struct fixture *fixture) {
    struct pollfd ready = {fixture->reports.descriptor, POLLIN, 0};
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

static void reports_are_taken_in_their_order(void **state) {
    struct fixture *fixture = *state;
    struct value value;
    for (uint64_t number = 0; number < 2 * ROOM; number += 2) {
        put(fixture, number);
        put(fixture, number + 1);
        take(fixture, number);
        take(fixture, number + 1);
        assert_false(reports_take(&fixture->reports, &value));
    }
}

static void the_descriptor_is_readable_from_a_put_to_a_take(void **state) {
    struct fixture *fixture = *state;
    assert_false(is_readable(fixture));
    put(fixture, 1);
    assert_true(is_readable(fixture));
    take(fixture, 1);
    assert_false(is_readable(fixture));
}

static void a_put_waits_for_room_and_none_is_lost(void **state) {
    struct fixture *fixture = *state;
    start(fixture, 10000);
    for (uint64_t number = 0; number < fixture->puts; number++)
        take(fixture, number);
    pthread_join(fixture->thread, NULL);
}

static void cancelling_ends_the_waits_of_puts(void **state) {
    struct fixture *fixture = *state;
    struct value value;
    start(fixture, 2 * ROOM);
    take(fixture, 0);
    reports_cancel(&fixture->reports);
    pthread_join(fixture->thread, NULL);
    for (uint64_t number = 1; number <= ROOM; number++)
        take(fixture, number);
    assert_false(reports_take(&fixture->reports, &value));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reports_are_taken_in_their_order, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            the_descriptor_is_readable_from_a_put_to_a_take, setup, teardown),
        cmocka_unit_test_setup_teardown(a_put_waits_for_room_and_none_is_lost,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(cancelling_ends_the_waits_of_puts,
                                        setup, teardown),
    };
    return cmocka_run_group_tests_name("reports", tests, NULL, NULL);
}
