/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/trace_sender.h"

#include "tests/lib/test.h"

#include <stdlib.h>

/* The member's clock is AHEAD of the chief's; the heartbeat takes OUT, its
 * answer BACK, and the chief has it for 10 ms. Returns the member's time. */
static int64_t exchange(struct trace_sender *sender, int64_t at, int64_t ahead,
                        int64_t out, int64_t back) {
    Capstan__Heartbeat answer = CAPSTAN__HEARTBEAT__INIT;
    int64_t taken = at + out, sent = taken + 10 * TIME_MS;
    answer.echo = at + ahead;
    answer.echo_taken = taken;
    answer.sent_at = sent;
    trace_sender_take_answer(sender, &answer, sent + back + ahead);
    return sent + back + ahead;
}

TEST(without_an_answer_there_is_no_offset) {
    struct trace_sender sender = {.count = 0};
    Capstan__Heartbeat answer = CAPSTAN__HEARTBEAT__INIT;
    int64_t offset;
    uint64_t bound;
    trace_sender_take_answer(&sender, &answer, TIME_S); /* it echoes nothing */
    assert_false(trace_sender_offset(&sender, TIME_S, &offset, &bound));
}

TEST(the_error_is_within_its_bound) {
    static const int64_t aheads[] = {1000 * TIME_S, -700 * TIME_S};
    for (int i = 0; i < 2; i++) {
        struct trace_sender sender = {.count = 0};
        int64_t offset, now = 0;
        uint64_t bound;
        for (int k = 1; k < 100; k++) /* the best is not the last */
            now = exchange(&sender, (2000 + k) * TIME_S, aheads[i],
                           (k == 90 ? 1 : 7) * TIME_MS,
                           (k == 90 ? 2 : 3) * TIME_MS);
        assert_true(trace_sender_offset(&sender, now, &offset, &bound));
        int64_t error = offset + aheads[i];
        assert_true(error >= -(int64_t)bound && error <= (int64_t)bound);
        /* Half of 3 ms, and 15 ppm of 9 s. */
        assert_in_range(bound, 1500 * TIME_US, 1650 * TIME_US);
    }
}

TEST(an_old_sample_is_worth_less) {
    struct trace_sender sender = {.count = 0};
    int64_t offset;
    uint64_t bound;
    exchange(&sender, 1 * TIME_S, 50 * TIME_S, TIME_MS, TIME_MS);
    int64_t now =
        exchange(&sender, 1001 * TIME_S, 50 * TIME_S, 3 * TIME_MS, TIME_MS);
    assert_true(trace_sender_offset(&sender, now, &offset, &bound));
    assert_in_range(bound, 2 * TIME_MS, 2 * TIME_MS + TIME_US);
}

TEST(clocks_within_the_bound_are_the_same) {
    struct trace_sender sender = {.count = 0};
    int64_t offset;
    uint64_t bound;
    int64_t now = exchange(&sender, TIME_S, 0, 5 * TIME_MS, TIME_MS);
    assert_true(trace_sender_offset(&sender, now, &offset, &bound));
    assert_int_equal(offset, 0);
    assert_in_range(bound, 3 * TIME_MS, 3 * TIME_MS + TIME_US);
    sender.same_clock = true;
    assert_true(trace_sender_offset(&sender, now, &offset, &bound));
    assert_int_equal(bound, 0);
}

TEST(pieces_have_all_records_and_the_last_says_so) {
    enum { COUNT = 2 * TRACE_SENDER_RECORDS + 10 };
    struct trace *trace = trace_open(1, COUNT, COUNT - 3);
    struct trace_sender *sender = calloc(1, sizeof *sender);
    Capstan__Trace piece;
    assert_true(trace && sender);
    for (uint64_t step = 1; step <= COUNT; step++)
        trace_add(trace,
                  &(struct trace_record){.step = step, .kind = TRACE_APPLY});
    size_t bytes = 0, pieces = 0;
    while (trace_sender_next(sender, trace, 0, &piece)) {
        bytes += piece.records.len;
        pieces++;
        assert_int_equal(piece.dropped, 3);
        assert_int_equal(piece.last, pieces == 3);
    }
    assert_int_equal(pieces, 3);
    assert_int_equal(bytes, (COUNT - 3) * sizeof(struct trace_record));
    trace_close(&trace);
    free(sender);
}

TEST(a_process_without_records_says_so_once) {
    struct trace_sender sender = {.count = 0};
    Capstan__Trace piece;
    assert_true(trace_sender_next(&sender, NULL, 0, &piece));
    assert_true(piece.last && !piece.records.len);
    assert_false(trace_sender_next(&sender, NULL, 0, &piece));
}
