/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/trace.h"

#include "tests/lib/test.h"

#include <pthread.h>

static struct trace_record record(uint64_t step) {
    return (struct trace_record){.step = step, .kind = TRACE_PUSH};
}

TEST(steps_are_two_numbers_in_order) {
    static const char *const wrong[] = {
        "",     "5",     "5:",    ":5",
        "5:3",  "0:3",   "a:3",   "3:a",
        "-1:3", "1:-3",  " 1:3",  "1: 3",
        "1:3 ", "1:2:3", "0x1:2", "18446744073709551616:18446744073709551617"};
    uint64_t first, last;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (trace_steps_read(wrong[i], &first, &last))
            fail_msg("'%s' is taken", wrong[i]);
    assert_true(trace_steps_read("3:18446744073709551615", &first, &last));
    assert_int_equal(first, 3);
    assert_true(last == UINT64_MAX);
    assert_true(trace_steps_read("7:7", &first, &last));
}

TEST(steps_outside_and_no_trace_are_not_recorded) {
    struct trace *trace = trace_open(5, 6, 10);
    assert_non_null(trace);
    assert_int_equal(trace_begin(NULL, 5), 0);
    assert_int_equal(trace_begin(trace, 4), 0);
    assert_int_equal(trace_begin(trace, 7), 0);
    assert_true(trace_begin(trace, 5) > 0);
    assert_true(trace_begin(trace, 6) > 0);
    trace_end(trace, 0, TRACE_PUSH, 5, 1);
    int64_t later = time_now() + TIME_S; /* it did not wait */
    trace_end(trace, later, TRACE_WAIT, 5, 1);
    trace_end(trace, time_now() - TIME_MS, TRACE_WAIT, 6, 2);
    struct trace_record taken[3];
    assert_int_equal(trace_take(trace, taken, 3), 1);
    assert_int_equal(taken[0].step, 6);
    assert_int_equal(taken[0].block, 2);
    assert_int_equal(taken[0].kind, TRACE_WAIT);
    assert_true(taken[0].duration >= TIME_MS);
    trace_close(&trace);
    assert_null(trace);
}

TEST(records_without_room_are_counted) {
    struct trace *trace = trace_open(1, 100, 3);
    assert_non_null(trace);
    struct trace_record taken[5];
    for (uint64_t step = 1; step <= 5; step++) {
        struct trace_record added = record(step);
        trace_add(trace, &added);
    }
    assert_int_equal(trace_take(trace, taken, 2), 2);
    assert_int_equal(taken[0].step, 1);
    assert_int_equal(taken[1].step, 2);
    assert_int_equal(trace_take(trace, taken, 5), 1);
    assert_int_equal(taken[0].step, 3);
    assert_int_equal(trace_take(trace, taken, 5), 0);
    assert_int_equal(trace_dropped(trace), 2);
    trace_close(&trace);
}

enum { THREADS = 4, EACH = 20000 };

static void *add_many(void *context) {
    for (uint64_t step = 1; step <= EACH; step++) {
        struct trace_record added = record(step);
        trace_add(context, &added);
    }
    return NULL;
}

/* What is taken while others add is whole, and none is lost. */
TEST(threads_add_while_one_takes) {
    struct trace *trace = trace_open(1, EACH, THREADS * EACH);
    assert_non_null(trace);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, trace), 0);
    uint64_t sum = 0;
    for (size_t taken = 0; taken < THREADS * EACH;) {
        struct trace_record records[64];
        size_t count = trace_take(trace, records, 64);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(records[i].kind, TRACE_PUSH);
            sum += records[i].step;
        }
        taken += count;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(sum, (uint64_t)THREADS * EACH * (EACH + 1) / 2);
    assert_int_equal(trace_dropped(trace), 0);
    trace_close(&trace);
}
