/* SPDX-License-Identifier: Apache-2.0 */
/* When a block's round closes and who is answered then, event by event. */
#include "ps/consistency/exchange.h"

#include "tests/lib/exchange_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void a_round_closes_with_its_last_contribution(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 10), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture.count, 0);
    assert_int_equal(exchange_fixture_push(0, 1, 1, 20), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture.count, 3);
    assert_int_equal(exchange_fixture.actions[0].kind, EXCHANGE_UPDATE);
    assert_int_equal(exchange_fixture.actions[0].version, 1);
    for (uint32_t r = 0; r < 2; r++) {
        struct exchange_action *reply = &exchange_fixture.actions[1 + r];
        assert_int_equal(reply->kind, EXCHANGE_REPLY);
        assert_int_equal(reply->rank, r);
        assert_int_equal(reply->clock, 1);
        assert_int_equal(reply->seq, 10 * (r + 1));
    }
}

static void blocks_close_for_themselves(void **state) {
    (void)state;
    exchange_fixture_synchronous(2, 2);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture_push(1, 0, 1, 1);
    exchange_fixture_push(1, 1, 1, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_version(exchange_fixture.exchange, 0), 0);
    assert_int_equal(exchange_version(exchange_fixture.exchange, 1), 1);
    assert_int_equal(exchange_highest(exchange_fixture.exchange), 1);
}

static void a_late_push_is_answered_and_not_applied(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 1);
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 2), EXCHANGE_KNOWN);
    struct exchange_action reply;
    assert_int_equal(exchange_fixture.count, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, &reply), 1);
    assert_int_equal(reply.seq, 2);
    assert_int_equal(exchange_version(exchange_fixture.exchange, 0), 1);
}

static void a_push_that_comes_twice_counts_once(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 1), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 2), EXCHANGE_KNOWN);
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 1, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_fixture.actions[1].seq,
                     2); /* the newest question */
}

static void a_push_out_of_order_is_refused(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 1);
    assert_int_equal(exchange_fixture_push(0, 0, 2, 1), EXCHANGE_REFUSED);
    assert_int_equal(exchange_fixture_push(0, 0, 0, 1), EXCHANGE_REFUSED);
    assert_int_equal(exchange_fixture_push(0, 0, UINT64_MAX, 1),
                     EXCHANGE_REFUSED);
    assert_int_equal(exchange_fixture.count, 0);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 1), EXCHANGE_TAKEN);
}

static void a_late_copy_does_not_take_a_later_requests_place(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture_push(0, 1, 1, 1);
    exchange_fixture_push(0, 0, 2, 2);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 3), EXCHANGE_KNOWN);
    exchange_fixture_push(0, 1, 2, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 2);
    assert_int_equal(exchange_fixture.actions[1].rank, 0);
    assert_int_equal(exchange_fixture.actions[1].clock, 2);
}

static void a_dead_workers_contribution_taken_stays_taken(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 3);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture_push(0, 1, 1, 1);
    exchange_fixture.slots[0] = (struct gate_slot){0, 0, false};
    exchange_fixture_see();
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 2, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 2);
    assert_int_equal(
        ledger_row(exchange_ledger(exchange_fixture.exchange), 0)[0].clock, 1);
}

static void a_death_closes_the_rounds_that_waited_for_it(void **state) {
    (void)state;
    exchange_fixture_synchronous(2, 2);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture.slots[1].live = false;
    exchange_fixture_see();
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL),
                     1); /* block 1 has none */
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 1);
    assert_int_equal(exchange_version(exchange_fixture.exchange, 1), 0);
}

static void a_round_waits_for_nobody_who_joined_later(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    exchange_fixture.slots[1] = (struct gate_slot){777, 3, true};
    exchange_fixture_see();
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    exchange_fixture_push(0, 0, 2, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    exchange_fixture_push(0, 0, 3, 3);
    assert_int_equal(exchange_fixture.count, 0);
    assert_int_equal(exchange_fixture_push(0, 1, 3, 1), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
}

static void rounds_of_the_dead_close_evenly_for_who_comes_after(void **state) {
    (void)state;
    exchange_fixture_synchronous(2, 1);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture.slots[0].live = false;
    exchange_fixture.slots[0].incarnation = 0;
    exchange_fixture_see(); /* nobody lives: block 1 stays at 0 */
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 0);
    exchange_fixture.slots[0] = (struct gate_slot){200, 3, true};
    exchange_fixture_see();
    static const uint32_t blocks[] = {1, 0, 1}, versions[] = {1, 2, 2};
    assert_int_equal(exchange_fixture.count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(exchange_fixture.actions[i].kind, EXCHANGE_UPDATE);
        assert_int_equal(exchange_fixture.actions[i].block, blocks[i]);
        assert_int_equal(exchange_fixture.actions[i].version, versions[i]);
    }
}

static void a_joiner_pushes_nothing_below_its_first_round(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    exchange_fixture_push(0, 1, 1, 1);
    exchange_fixture.slots[1] = (struct gate_slot){777, 3, true};
    exchange_fixture_see();
    assert_int_equal(exchange_fixture_push(0, 1, 1, 1), EXCHANGE_REFUSED);
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
}

static void a_joiner_reads_the_round_before_its_first(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    exchange_fixture.slots[1] = (struct gate_slot){777, 2, true};
    exchange_fixture_see();
    exchange_pull(exchange_fixture.exchange, 0, 1, 1, 5);
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 0, 1, 1);
    struct exchange_action reply;
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, &reply), 2);
    assert_int_equal(reply.rank, 1);
    assert_int_equal(reply.seq, 5);
}

static void a_successor_is_not_answered_what_it_did_not_ask(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 2);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture.slots[0] = (struct gate_slot){777, 3, true};
    exchange_fixture_see();
    exchange_fixture_push(0, 1, 1, 1);
    struct exchange_action reply;
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, &reply), 1);
    assert_int_equal(reply.rank, 1);
}

static void an_ask_tells_what_has_to_be_sent_again(void **state) {
    (void)state;
    exchange_fixture_synchronous(2, 2);
    exchange_fixture_push(0, 0, 1, 1);
    assert_true(exchange_ask(exchange_fixture.exchange, 0, 0, 1, 7));
    assert_false(exchange_ask(exchange_fixture.exchange, 1, 0, 1, 7));
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 1, 1, 1);
    struct exchange_action *reply = &exchange_fixture.actions[1];
    assert_int_equal(reply->rank, 0);
    assert_int_equal(reply->seq, 7);
}

static void a_frozen_ps_closes_one_more_round(void **state) {
    (void)state;
    exchange_fixture_synchronous(2, 1);
    exchange_fixture_push(0, 0, 1, 1); /* block 1 is a round behind */
    assert_int_equal(exchange_freeze(exchange_fixture.exchange), 1);
    exchange_fixture_push(0, 0, 2, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_fixture_push(0, 0, 3, 3), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture.count, 0);
    assert_int_equal(exchange_freeze(exchange_fixture.exchange),
                     1); /* asked again */
    exchange_cut(exchange_fixture.exchange, 2);
    exchange_fixture_settle();
    struct exchange_action snapshot;
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SNAPSHOT, &snapshot), 1);
    assert_int_equal(snapshot.block, 0);
    assert_int_equal(snapshot.version, 2);
    assert_int_equal(exchange_fixture.actions[0].kind,
                     EXCHANGE_SNAPSHOT); /* first */
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    exchange_fixture_push(1, 0, 1, 4);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SNAPSHOT, NULL), 0);
    exchange_fixture_push(1, 0, 2, 5);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SNAPSHOT, &snapshot), 1);
    assert_int_equal(snapshot.block, 1);
}

static void a_row_has_only_what_the_weights_have(void **state) {
    (void)state;
    struct ledger_entry row[2];
    exchange_fixture_synchronous(1, 2);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_row(exchange_fixture.exchange, 0, 0, row);
    assert_int_equal(row[0].clock, 0);
    exchange_fixture_push(0, 1, 1, 1);
    exchange_fixture_push(0, 1, 2, 2); /* held for the open round */
    exchange_row(exchange_fixture.exchange, 0, 1, row);
    assert_int_equal(row[0].clock, 1);
    assert_int_equal(row[1].clock, 1);
    assert_int_equal(row[1].incarnation, 101);
}

static void round_zero_only_lifts_the_freeze(void **state) {
    (void)state;
    exchange_fixture_synchronous(1, 1);
    exchange_freeze(exchange_fixture.exchange);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture_push(0, 0, 2, 2);
    assert_int_equal(exchange_fixture.count, 0);
    exchange_cut(exchange_fixture.exchange, 0);
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SNAPSHOT, NULL), 0);
}

static bool every_third(const void *context, uint64_t round) {
    (void)context;
    return round % 3 == 0;
}

static void planned_rounds_are_snapshot_as_they_close(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .planned = every_third};
    exchange_fixture_open(&settings);
    for (uint64_t clock = 1; clock < 10; clock++) {
        exchange_fixture_push(0, 0, clock, clock);
        assert_int_equal(exchange_fixture_acted(EXCHANGE_SNAPSHOT, NULL),
                         clock % 3 == 0);
        assert_int_equal(exchange_fixture.actions[0].kind, EXCHANGE_UPDATE);
    }
}

static void a_clipped_round_waits_for_its_norm(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 2, .num_ranks = 1, .clip = true};
    exchange_fixture_open(&settings);
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture.count, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SUM, NULL), 1);
    exchange_fixture_push(0, 0, 1, 2);
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(1, 0, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SUM, NULL), 1);
    exchange_norm(exchange_fixture.exchange, 1);
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 2);
    exchange_norm(exchange_fixture.exchange,
                  0); /* an old one changes nothing */
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 0, 2, 3);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SUM, NULL), 1);
}

static void a_resumed_run_counts_on(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .start = 500};
    exchange_fixture_open(&settings);
    assert_int_equal(exchange_fixture_push(0, 0, 1, 1), EXCHANGE_REFUSED);
    exchange_pull(exchange_fixture.exchange, 0, 0, 500, 1);
    exchange_fixture_settle();
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 1);
    assert_int_equal(exchange_fixture_push(0, 0, 501, 2), EXCHANGE_TAKEN);
    assert_int_equal(exchange_highest(exchange_fixture.exchange), 501);
}

static void with_staleness_a_push_is_applied_and_its_answer_held(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 2, .staleness = 1};
    exchange_fixture_open(&settings);
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture.count, 2);
    exchange_fixture_push(0, 0, 2, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL),
                     0); /* two ahead of rank 1 */
    exchange_fixture_push(0, 1, 1, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 2);
    exchange_fixture.slots[1].live = false;
    exchange_fixture_push(0, 0, 3, 3);
    exchange_fixture_push(0, 0, 4, 4);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 0);
    exchange_fixture_see();
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 1);
}

#define EXCHANGE_TEST(f) cmocka_unit_test_teardown(f, exchange_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        EXCHANGE_TEST(a_round_closes_with_its_last_contribution),
        EXCHANGE_TEST(blocks_close_for_themselves),
        EXCHANGE_TEST(a_late_push_is_answered_and_not_applied),
        EXCHANGE_TEST(a_push_that_comes_twice_counts_once),
        EXCHANGE_TEST(a_push_out_of_order_is_refused),
        EXCHANGE_TEST(a_late_copy_does_not_take_a_later_requests_place),
        EXCHANGE_TEST(a_dead_workers_contribution_taken_stays_taken),
        EXCHANGE_TEST(a_death_closes_the_rounds_that_waited_for_it),
        EXCHANGE_TEST(a_round_waits_for_nobody_who_joined_later),
        EXCHANGE_TEST(rounds_of_the_dead_close_evenly_for_who_comes_after),
        EXCHANGE_TEST(a_joiner_pushes_nothing_below_its_first_round),
        EXCHANGE_TEST(a_joiner_reads_the_round_before_its_first),
        EXCHANGE_TEST(a_successor_is_not_answered_what_it_did_not_ask),
        EXCHANGE_TEST(an_ask_tells_what_has_to_be_sent_again),
        EXCHANGE_TEST(a_frozen_ps_closes_one_more_round),
        EXCHANGE_TEST(a_row_has_only_what_the_weights_have),
        EXCHANGE_TEST(round_zero_only_lifts_the_freeze),
        EXCHANGE_TEST(planned_rounds_are_snapshot_as_they_close),
        EXCHANGE_TEST(a_clipped_round_waits_for_its_norm),
        EXCHANGE_TEST(a_resumed_run_counts_on),
        EXCHANGE_TEST(with_staleness_a_push_is_applied_and_its_answer_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
