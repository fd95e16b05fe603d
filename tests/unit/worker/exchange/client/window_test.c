/* SPDX-License-Identifier: Apache-2.0 */
/* What a client sends to which ps and when, without a link; beside a naive
 * model where whatever is sent may be lost. */
#include "worker/exchange/client/window.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { BLOCKS = 12, PS = 2, BYTES = 100, ASK_AFTER = 1000 };

/* Even blocks are on ps 0, odd ones on ps 1. */
static const uint16_t block_ps[BLOCKS] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
static const uint32_t block_bytes[BLOCKS] = {BYTES, BYTES, BYTES, BYTES,
                                             BYTES, BYTES, BYTES, BYTES,
                                             BYTES, BYTES, BYTES, BYTES};
static struct window_request request;

static struct window *open_window(uint64_t credit, uint32_t group) {
    struct window_settings settings = {.num_blocks = BLOCKS,
                                       .num_ps = PS,
                                       .block_ps = block_ps,
                                       .block_bytes = block_bytes,
                                       .credit = credit,
                                       .group_bytes = group,
                                       .query_after = ASK_AFTER};
    struct window *window = window_open(&settings);
    assert_non_null(window);
    return window;
}

static bool next(struct window *window, int64_t now) {
    return window_next(window, now, &request);
}

static void expect(struct window *window, int64_t now, enum window_kind kind,
                   uint32_t first, uint32_t count) {
    assert_true(next(window, now));
    assert_int_equal(request.kind, kind);
    assert_int_equal(request.ps, block_ps[first]);
    assert_int_equal(request.count, count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(request.blocks[i], first + PS * i);
}

TEST(blocks_are_sent_in_order_in_groups) {
    struct window *window = open_window(10000, 3 * BYTES);
    assert_false(next(window, 0));
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 3);
    assert_int_equal(request.bytes, 3 * BYTES);
    assert_int_equal(request.clock, 1);
    expect(window, 0, WINDOW_PUSH, 6, 3);
    expect(window, 0, WINDOW_PUSH, 1, 3);
    expect(window, 0, WINDOW_PUSH, 7, 3);
    assert_false(next(window, 0));
    assert_int_equal(window_outstanding(window), BLOCKS);
    window_close(&window);
}

TEST(a_group_smaller_than_a_block_holds_one) {
    struct window *window = open_window(10000, 1);
    window_enqueue(window, 0, 4, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    expect(window, 0, WINDOW_PUSH, 2, 1);
    window_close(&window);
}

TEST(credit_bounds_the_bytes_in_flight_to_each_ps) {
    struct window *window = open_window(2 * BYTES, 10 * BYTES);
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 2);
    expect(window, 0, WINDOW_PUSH, 1, 2); /* the other's own credit */
    assert_false(next(window, 0));
    assert_true(window_received(window, 2, 1, 5));
    expect(window, 5, WINDOW_PUSH, 4, 1);
    assert_false(next(window, 5));
    window_close(&window);
}

TEST(credit_below_a_block_allows_one_block) {
    struct window *window = open_window(1, 10 * BYTES);
    window_enqueue(window, 0, 4, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    expect(window, 0, WINDOW_PUSH, 1, 1);
    assert_false(next(window, 0));
    window_received(window, 0, 1, 0);
    expect(window, 0, WINDOW_PUSH, 2, 1);
    window_close(&window);
}

TEST(an_empty_contribution_needs_no_credit) {
    struct window *window = open_window(1, 10 * BYTES);
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH_EMPTY, 1);
    expect(window, 0, WINDOW_PUSH_EMPTY, 0, 6);
    expect(window, 0, WINDOW_PUSH_EMPTY, 1, 6);
    window_close(&window);
    window = open_window(1, 10 * BYTES);
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH_OVERFLOWED, 1);
    expect(window, 0, WINDOW_PUSH_OVERFLOWED, 0, 6);
    window_close(&window);
    window = open_window(1, 10 * BYTES);
    window_enqueue(window, 0, BLOCKS, WINDOW_PULL, 1);
    expect(window, 0, WINDOW_PULL, 0, 6);
    window_close(&window);
}

TEST(silence_triggers_a_query) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 4, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 2);
    expect(window, 0, WINDOW_PUSH, 1, 2);
    assert_int_equal(window_deadline(window), ASK_AFTER);
    assert_false(next(window, ASK_AFTER - 1));
    window_received(window, 0, 1, 500);
    expect(window, ASK_AFTER, WINDOW_QUERY, 1, 2);
    assert_false(next(window, ASK_AFTER));
    expect(window, 500 + ASK_AFTER, WINDOW_QUERY, 2, 1);
    assert_int_equal(window_deadline(window), 2 * ASK_AFTER);
    window_close(&window);
}

TEST(a_query_is_about_one_clock) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    window_enqueue(window, 2, 1, WINDOW_PUSH, 2);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    expect(window, 0, WINDOW_PUSH, 2, 1);
    expect(window, ASK_AFTER, WINDOW_QUERY, 0, 1);
    assert_int_equal(request.clock, 1);
    window_received(window, 0, 1, ASK_AFTER);
    expect(window, 2 * ASK_AFTER, WINDOW_QUERY, 2, 1);
    assert_int_equal(request.clock, 2);
    window_close(&window);
}

TEST(only_missing_blocks_are_resent_in_order) {
    struct window *window = open_window(3 * BYTES, 10 * BYTES);
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 3);
    expect(window, 0, WINDOW_PUSH, 1, 3);
    window_missing(window, 2, 7);  /* of another clock */
    window_missing(window, 10, 1); /* not even sent */
    assert_false(next(window, 1));
    window_missing(window, 2, 1);
    window_missing(window, 2, 1);
    expect(window, 1, WINDOW_PUSH, 2, 1);
    assert_false(next(window, 1));
    window_close(&window);
}

TEST(a_reconnected_ps_is_queried_at_once) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    window_reconnected(window, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    window_reconnected(window, 0);
    expect(window, 0, WINDOW_QUERY, 0, 1);
    window_close(&window);
}

TEST(unanswered_pulls_are_repeated) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 4, WINDOW_PULL, 3);
    expect(window, 0, WINDOW_PULL, 0, 2);
    expect(window, 0, WINDOW_PULL, 1, 2);
    window_received(window, 0, 3, 0);
    expect(window, ASK_AFTER, WINDOW_PULL, 2, 1);
    expect(window, ASK_AFTER, WINDOW_PULL, 1, 2);
    window_close(&window);
}

TEST(repeated_pulls_do_not_reset_the_silence_of_a_ps) {
    struct window *window = open_window(10000, 10 * BYTES);
    uint32_t ps;
    int64_t since;
    window_enqueue(window, 0, 1, WINDOW_PULL, 3);
    expect(window, 10, WINDOW_PULL, 0, 1);
    expect(window, 10 + ASK_AFTER, WINDOW_PULL, 0, 1);
    assert_true(window_silent(window, &ps, &since));
    assert_int_equal(since, 10);
    window_close(&window);
}

TEST(a_reply_counts_once_and_for_its_clock) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 2);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    assert_false(window_received(window, 0, 1, 0));
    assert_false(window_received(window, 2, 2, 0));
    assert_true(window_received(window, 0, 2, 0));
    assert_false(window_received(window, 0, 2, 0));
    assert_int_equal(window_outstanding(window), 0);
    assert_int_equal(window_deadline(window), INT64_MAX);
    window_close(&window);
}

/* An answer may come while the block waits to be sent again. */
TEST(a_reply_cancels_the_resend) {
    struct window *window = open_window(10000, 10 * BYTES);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    window_missing(window, 0, 1);
    assert_true(window_received(window, 0, 1, 5));
    assert_false(next(window, 5));
    window_close(&window);
}

TEST(a_failed_send_is_queued_again) {
    struct window *window = open_window(2 * BYTES, 10 * BYTES);
    uint32_t ps;
    int64_t since;
    window_enqueue(window, 0, BLOCKS, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 2);
    window_requeue(window, &request, 5);
    assert_true(window_silent(window, &ps, &since));
    assert_int_equal(ps, 0);
    assert_int_equal(since, 5);
    expect(window, 6, WINDOW_PUSH, 0, 2);
    expect(window, 6, WINDOW_PUSH, 1, 2);
    assert_false(next(window, 6));
    window_close(&window);
}

/* A read that could not leave stands behind a push that awaits credit. */
TEST(no_retry_is_due_while_credit_is_awaited) {
    struct window *window = open_window(BYTES, BYTES);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    window_enqueue(window, 4, 1, WINDOW_PULL, 1);
    expect(window, 0, WINDOW_PULL, 4, 1);
    window_requeue(window, &request, 0);
    window_enqueue(window, 2, 1, WINDOW_PUSH, 1);
    assert_false(next(window, 1));
    assert_int_equal(window_deadline(window), ASK_AFTER);
    window_close(&window);
}

/* It was a query that could not leave, and then an answer came. */
TEST(a_request_that_comes_before_a_retry_is_due_then) {
    struct window_settings settings = {.num_blocks = BLOCKS,
                                       .num_ps = PS,
                                       .block_ps = block_ps,
                                       .block_bytes = block_bytes,
                                       .credit = 10000,
                                       .group_bytes = 10 * BYTES,
                                       .query_after = ASK_AFTER,
                                       .retry_after = 7};
    struct window *window = window_open(&settings);
    assert_non_null(window);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    expect(window, ASK_AFTER, WINDOW_QUERY, 0, 1);
    window_requeue(window, &request, ASK_AFTER);
    assert_true(window_received(window, 0, 1, ASK_AFTER));
    window_enqueue(window, 0, 1, WINDOW_PULL, 2);
    assert_false(next(window, ASK_AFTER));
    assert_int_equal(window_deadline(window), ASK_AFTER + 7);
    expect(window, ASK_AFTER + 7, WINDOW_PULL, 0, 1);
    window_close(&window);
}

TEST(the_longest_silent_ps_is_named) {
    struct window *window = open_window(10000, 10 * BYTES);
    uint32_t ps;
    int64_t since;
    window_enqueue(window, 0, 4, WINDOW_PUSH, 1);
    expect(window, 10, WINDOW_PUSH, 0, 2);
    expect(window, 20, WINDOW_PUSH, 1, 2);
    assert_true(window_silent(window, &ps, &since));
    assert_int_equal(ps, 0);
    assert_int_equal(since, 10);
    window_received(window, 0, 1, 30);
    assert_true(window_silent(window, &ps, &since));
    assert_int_equal(ps, 1);
    assert_int_equal(since, 20);
    window_add_pause(window, 100); /* this process stood still */
    assert_true(window_silent(window, &ps, &since));
    assert_int_equal(ps, 1);
    assert_int_equal(since, 120);
    window_close(&window);
}

/* Blocks 0 to 3 are of weights, 4 to 7 pushes of four partitions, 8 to 11 their
 * lookups. BYTES are in use until the window closes. */
static struct window *open_window_with_rows(const uint32_t *bytes,
                                            uint64_t credit) {
    struct window_settings settings = {.num_blocks = BLOCKS,
                                       .num_ps = PS,
                                       .first_push = 4,
                                       .first_lookup = 8,
                                       .block_ps = block_ps,
                                       .block_bytes = bytes,
                                       .credit = credit,
                                       .group_bytes = 10 * BYTES,
                                       .query_after = ASK_AFTER};
    struct window *window = window_open(&settings);
    assert_non_null(window);
    return window;
}

TEST(a_request_is_for_weights_or_pushes_of_rows_or_lookups) {
    struct window *window = open_window_with_rows(block_bytes, 10000);
    window_enqueue(window, 0, 8, WINDOW_PUSH, 1);
    window_enqueue(window, 8, 4, WINDOW_PULL, 1);
    for (uint32_t p = 0; p < PS; p++) {
        expect(window, 0, WINDOW_PUSH, p, 2);
        expect(window, 0, WINDOW_PUSH, 4 + p, 2);
        expect(window, 0, WINDOW_PULL, 8 + p, 2);
    }
    assert_false(next(window, 0));
    window_close(&window);
    window = open_window_with_rows(block_bytes, 10000);
    window_enqueue(window, 0, 4, WINDOW_PULL, 1);
    window_enqueue(window, 8, 4, WINDOW_PULL, 1);
    for (uint32_t p = 0; p < PS; p++) {
        expect(window, 0, WINDOW_PULL, p, 2);
        expect(window, 0, WINDOW_PULL, 8 + p, 2);
    }
    assert_false(next(window, 0));
    window_close(&window);
}

/* Five partitions; a batch has no rows of that between. */
TEST(lookups_with_a_gap_between_them_are_one_request) {
    static const struct window_settings settings = {.num_blocks = BLOCKS,
                                                    .num_ps = PS,
                                                    .first_push = 2,
                                                    .first_lookup = 7,
                                                    .block_ps = block_ps,
                                                    .block_bytes = block_bytes,
                                                    .group_bytes = 2 * BYTES,
                                                    .query_after = ASK_AFTER};
    struct window *window = window_open(&settings);
    assert_non_null(window);
    window_enqueue(window, 7, 1, WINDOW_PULL, 1);
    window_enqueue(window, 11, 1, WINDOW_PULL, 1);
    assert_true(next(window, 0));
    assert_int_equal(request.count, 2);
    assert_int_equal(request.blocks[0], 7);
    assert_int_equal(request.blocks[1], 11);
    assert_false(next(window, 0));
    window_close(&window);
}

TEST(a_query_is_about_weights_and_rows_and_no_lookup) {
    struct window *window = open_window_with_rows(block_bytes, 10000);
    window_enqueue(window, 0, 8, WINDOW_PUSH, 1);
    window_enqueue(window, 8, 4, WINDOW_PULL, 1);
    while (next(window, 0))
        ;
    expect(window, ASK_AFTER, WINDOW_QUERY, 0, 4);
    expect(window, ASK_AFTER, WINDOW_QUERY, 1, 4);
    window_missing(window, 6, 1); /* a push of rows is sent again */
    expect(window, ASK_AFTER, WINDOW_PUSH, 6, 1);
    assert_false(next(window, ASK_AFTER));
    window_close(&window);
}

TEST(unanswered_lookups_are_repeated_apart_from_weights) {
    struct window *window = open_window_with_rows(block_bytes, 10000);
    window_enqueue(window, 0, 4, WINDOW_PULL, 3);
    window_enqueue(window, 8, 4, WINDOW_PULL, 3);
    while (next(window, 0))
        ;
    expect(window, ASK_AFTER, WINDOW_PULL, 0, 2);
    expect(window, ASK_AFTER, WINDOW_PULL, 1, 2);
    assert_true(window_received(window, 0, 3, ASK_AFTER));
    assert_true(window_received(window, 2, 3, ASK_AFTER));
    assert_true(window_received(window, 8, 3, ASK_AFTER));
    expect(window, 2 * ASK_AFTER, WINDOW_PULL, 10, 1);
    assert_true(window_received(window, 10, 3, 2 * ASK_AFTER));
    assert_false(window_received(window, 10, 3, 2 * ASK_AFTER));
    assert_int_equal(window_outstanding(window), 4);
    window_close(&window);
}

TEST(a_push_of_rows_takes_the_credit_of_its_present_bytes) {
    uint32_t bytes[BLOCKS];
    memcpy(bytes, block_bytes, sizeof bytes);
    struct window *window = open_window_with_rows(bytes, 3 * BYTES);
    window_enqueue(window, 4, 4, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 4, 2);
    assert_int_equal(request.bytes, 2 * BYTES);
    expect(window, 0, WINDOW_PUSH, 5, 2);
    for (uint32_t b = 4; b < 8; b++)
        assert_true(window_received(window, b, 1, 0));
    bytes[4] = 3 * BYTES; /* each is idle */
    bytes[5] = 0;
    window_enqueue(window, 4, 4, WINDOW_PUSH, 2);
    expect(window, 0, WINDOW_PUSH, 4, 1);
    assert_int_equal(request.bytes, 3 * BYTES);
    expect(window, 0, WINDOW_PUSH, 5, 2);
    assert_int_equal(request.bytes, BYTES);
    assert_false(next(window, 0));
    assert_true(window_received(window, 4, 2, 0));
    expect(window, 0, WINDOW_PUSH, 6, 1);
    assert_int_equal(request.bytes, BYTES);
    window_close(&window);
}

/* A ps that loses, doubles and delays, in front of a window: every block is
 * answered in the end, credit holds, order holds, nothing is applied twice. */
struct naive_ps {
    uint64_t applied[BLOCKS];
    unsigned times[BLOCKS];
    bool answering[BLOCKS];
};

static struct naive_ps naive;

static void take(struct window *window, struct philox_sequence *random,
                 int64_t now) {
    for (uint32_t i = 0; i < request.count; i++) {
        uint32_t b = request.blocks[i];
        bool has = naive.applied[b] >= request.clock;
        if (request.kind == WINDOW_QUERY && !has) {
            window_missing(window, b, request.clock);
            continue;
        }
        if (!has) {
            naive.applied[b] = request.clock;
            naive.times[b]++;
        }
        naive.answering[b] = true;
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        if (!naive.answering[b] || philox_below(random, 2))
            continue;
        naive.answering[b] = philox_below(random, 8) == 0; /* once more */
        if (philox_below(random, 6))
            window_received(window, b, naive.applied[b], now);
    }
}

static void check_request(uint64_t credit) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request.count; i++) {
        assert_int_equal(block_ps[request.blocks[i]], request.ps);
        assert_true(!i || request.blocks[i] > request.blocks[i - 1]);
        bytes += BYTES;
    }
    if (request.kind == WINDOW_PUSH)
        assert_true(bytes <= (credit < BYTES ? BYTES : credit));
}

TEST(every_block_is_answered_under_message_loss) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 300; history++) {
        uint64_t credit = 1 + philox_below(&random, 8 * BYTES);
        struct window *window =
            open_window(credit, 1 + philox_below(&random, 5 * BYTES));
        memset(&naive, 0, sizeof naive);
        int64_t now = 0;
        for (uint64_t clock = 1; clock <= 5; clock++) {
            window_enqueue(window, 0, BLOCKS, WINDOW_PUSH, clock);
            while (window_outstanding(window)) {
                assert_true(now < INT64_C(1000000));
                now += philox_below(&random, 200);
                while (next(window, now)) {
                    check_request(credit);
                    uint32_t fate = philox_below(&random, 8);
                    if (fate == 0)
                        window_requeue(window, &request, now);
                    else if (fate > 1) /* 1: lost on the way */
                        take(window, &random, now);
                    if (fate == 0)
                        break;
                }
            }
            for (uint32_t b = 0; b < BLOCKS; b++)
                assert_int_equal(naive.times[b], clock);
        }
        window_close(&window);
    }
}

/* Answers the blocks of the last request. */
static void answer(struct window *window, uint64_t clock) {
    for (uint32_t i = 0; i < request.count; i++)
        assert_true(window_received(window, request.blocks[i], clock, 0));
}

TEST(wanted_weights_leave_while_the_next_push_is_outstanding) {
    struct window *window = open_window(10000, 10000);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    window_wanted(window, 0, 1); /* before the answer */
    assert_false(next(window, 0));
    answer(window, 1);
    assert_false(next(window, 0)); /* the caller applies the mean */
    window_enqueue(window, 0, 1, WINDOW_PUSH, 2);
    expect(window, 0, WINDOW_STORE, 0, 1);
    assert_int_equal(request.clock, 1);
    window_requeue(window, &request, 0);
    assert_int_equal(window_deadline(window), 0); /* when it is tried again */
    expect(window, 0, WINDOW_STORE, 0, 1);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    window_wanted(window, 0, 1); /* the ps asks again */
    expect(window, 0, WINDOW_STORE, 0, 1);
    request.blocks[0] = 0;
    request.count = 1;
    window_wanted(window, 0, 1);
    answer(window, 2);
    assert_false(next(window, 0)); /* they are changed by now */
    window_wanted(window, 0, 1);
    window_enqueue(window, 0, 1, WINDOW_PUSH, 3);
    expect(window, 0, WINDOW_PUSH, 0, 1);
    answer(window, 3);
    window_wanted(window, 0, 3);
    assert_false(next(window, 0));
    window_settle(window); /* after the last step */
    expect(window, 0, WINDOW_STORE, 0, 1);
    window_wanted(window, 0, 3);
    expect(window, 0, WINDOW_STORE, 0, 1);
    window_close(&window);
}
