/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/mark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Raises one mark as far as another one is, up to LAST. */
struct echo {
    struct mark asked, answered;
    pthread_t thread;
    uint64_t last, plain; /* `plain` is written before each raise */
    bool ended;
};

static void *echo(void *argument) {
    struct echo *echo = argument;
    for (uint64_t value = 1; value <= echo->last; value++) {
        if (!mark_await(&echo->asked, value, NULL)) {
            echo->ended = true;
            break;
        }
        echo->plain = value;
        mark_raise(&echo->answered, value);
    }
    return NULL;
}

static void open_echo(struct echo *one, uint64_t last) {
    *one = (struct echo){.last = last};
    mark_open(&one->asked);
    mark_open(&one->answered);
    assert_int_equal(pthread_create(&one->thread, NULL, echo, one), 0);
}

static void close_echo(struct echo *one) {
    pthread_join(one->thread, NULL);
    mark_close(&one->asked);
    mark_close(&one->answered);
}

static void what_was_written_before_a_raise_is_seen_after_the_wait(
    void **state) {
    struct echo one;
    int64_t waited = 0;
    (void)state;
    open_echo(&one, 1000);
    for (uint64_t value = 1; value <= 1000; value++) {
        mark_raise(&one.asked, value);
        assert_true(mark_await(&one.answered, value, &waited));
        assert_int_equal(one.plain, value);
    }
    assert_int_equal(mark_value(&one.answered), 1000);
    close_echo(&one);
    assert_false(one.ended);
    assert_true(waited > 0);
}

enum { WAITERS = 3, RAISES = 1000 };

/* One of several that wait for the same mark. */
struct waiter {
    struct mark *go, passed;
    pthread_t thread;
};

static void *follow(void *argument) {
    struct waiter *waiter = argument;
    for (uint64_t value = 1; value <= RAISES; value++)
        if (mark_await(waiter->go, value, NULL))
            mark_raise(&waiter->passed, value);
    return NULL;
}

static void a_raise_ends_the_wait_of_all_who_wait_for_it(void **state) {
    struct mark go;
    struct waiter waiters[WAITERS];
    (void)state;
    mark_open(&go);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i].go = &go;
        mark_open(&waiters[i].passed);
        assert_int_equal(
            pthread_create(&waiters[i].thread, NULL, follow, &waiters[i]), 0);
    }
    for (uint64_t value = 1; value <= RAISES; value++) {
        mark_raise(&go, value);
        for (int i = 0; i < WAITERS; i++)
            assert_true(mark_await(&waiters[i].passed, value, NULL));
    }
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiters[i].thread, NULL);
        mark_close(&waiters[i].passed);
    }
    mark_close(&go);
}

static void a_value_that_is_reached_is_not_waited_for(void **state) {
    struct mark mark;
    int64_t waited = 0;
    (void)state;
    mark_open(&mark);
    mark_raise(&mark, 5);
    assert_true(mark_await(&mark, 5, &waited));
    assert_true(mark_await(&mark, 0, &waited));
    assert_int_equal(waited, 0);
    mark_close(&mark);
}

static void cancelling_ends_waits_now_and_later(void **state) {
    struct echo one;
    (void)state;
    open_echo(&one, 1);
    mark_cancel(&one.asked);
    close_echo(&one);
    assert_true(one.ended);
    struct mark mark;
    mark_open(&mark);
    mark_raise(&mark, 5);
    mark_cancel(&mark);
    assert_false(mark_await(&mark, 5, NULL));
    mark_close(&mark);
}

static void an_end_leaves_what_is_reached(void **state) {
    struct echo one;
    (void)state;
    open_echo(&one, 3);
    mark_raise(&one.asked, 2);
    mark_end(&one.asked);
    close_echo(&one);
    assert_true(one.ended);
    assert_int_equal(one.plain, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            what_was_written_before_a_raise_is_seen_after_the_wait),
        cmocka_unit_test(a_raise_ends_the_wait_of_all_who_wait_for_it),
        cmocka_unit_test(a_value_that_is_reached_is_not_waited_for),
        cmocka_unit_test(cancelling_ends_waits_now_and_later),
        cmocka_unit_test(an_end_leaves_what_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
