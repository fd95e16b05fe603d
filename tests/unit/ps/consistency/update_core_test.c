/* SPDX-License-Identifier: Apache-2.0 */
/* When a block's round closes and who is answered then, event by event. */
#include "ps/consistency/update_core.h"

#include "tests/lib/test.h"
#include "tests/lib/update_core_fixture.h"

#include <string.h>

FIXTURE(NULL, update_core_fixture_teardown);

TEST(a_round_closes_with_its_last_contribution) {
    update_core_fixture_synchronous(1, 2);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 10),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture.count, 0);
    assert_int_equal(update_core_fixture_push(0, 1, 1, 20),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture.count, 3);
    assert_int_equal(update_core_fixture.actions[0].kind, UPDATE_CORE_UPDATE);
    assert_int_equal(update_core_fixture.actions[0].version, 1);
    for (uint32_t r = 0; r < 2; r++) {
        struct update_core_action *reply = &update_core_fixture.actions[1 + r];
        assert_int_equal(reply->kind, UPDATE_CORE_REPLY);
        assert_int_equal(reply->rank, r);
        assert_int_equal(reply->clock, 1);
        assert_int_equal(reply->seq, 10 * (r + 1));
    }
}

TEST(blocks_close_independently) {
    update_core_fixture_synchronous(2, 2);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture_push(1, 0, 1, 1);
    update_core_fixture_push(1, 1, 1, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_version(update_core_fixture.update_core, 0),
                     0);
    assert_int_equal(update_core_version(update_core_fixture.update_core, 1),
                     1);
    assert_int_equal(update_core_highest(update_core_fixture.update_core), 1);
}

TEST(a_late_push_is_answered_and_not_applied) {
    update_core_fixture_synchronous(1, 1);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 2),
                     UPDATE_CORE_DUPLICATE);
    struct update_core_action reply;
    assert_int_equal(update_core_fixture.count, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply), 1);
    assert_int_equal(reply.seq, 2);
    assert_int_equal(update_core_version(update_core_fixture.update_core, 0),
                     1);
}

static void open_with_backup(uint32_t ranks, uint32_t backup_workers) {
    struct update_core_settings settings = {
        .num_blocks = 1, .num_ranks = ranks, .backup_workers = backup_workers};
    update_core_fixture_open(&settings);
}

TEST(with_a_backup_worker_a_round_closes_without_the_slowest) {
    struct update_core_action reply;
    open_with_backup(3, 1);
    update_core_fixture_push(0, 2, 1, 1);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 0, 1, 2);
    assert_int_equal(update_core_fixture_single_update().version, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply), 2);
    assert_false(reply.late);
    update_core_fixture_push(0, 2, 2, 3);
    update_core_fixture_push(0, 0, 2, 4);
    assert_int_equal(update_core_fixture_push(0, 1, 1, 5), UPDATE_CORE_LATE);
    assert_int_equal(update_core_fixture.count, 1);
    reply = update_core_fixture.actions[0];
    assert_int_equal(reply.kind, UPDATE_CORE_REPLY);
    assert_true(reply.late);
    assert_int_equal(reply.version, 2);
    assert_int_equal(update_core_fixture_push(0, 1, 3, 6),
                     UPDATE_CORE_ACCEPTED);
}

TEST(a_late_push_is_found_by_a_query_too) {
    open_with_backup(2, 1);
    update_core_fixture_push(0, 0, 1, 1);
    assert_true(update_core_query(update_core_fixture.update_core, 0, 1, 1, 7));
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 1);
    assert_false(
        update_core_query(update_core_fixture.update_core, 0, 1, 2, 8));
}

TEST(what_follows_enough_contributions_is_late_while_the_round_is_open) {
    struct update_core_action reply;
    open_with_backup(2, 1);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_freeze(update_core_fixture.update_core), 1);
    update_core_fixture_push(0, 0, 2, 2);
    update_core_fixture_push(0, 0, 3, 3);
    assert_int_equal(update_core_fixture_push(0, 1, 3, 4), UPDATE_CORE_LATE);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_set_snapshot_round(update_core_fixture.update_core, 2);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply), 2);
    assert_int_equal(reply.rank, 1);
    assert_int_equal(reply.clock, 3);
    assert_true(reply.late);
}

TEST(fewer_live_trainers_than_a_round_needs_are_enough) {
    open_with_backup(3, 1);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture.count, 0);
    for (uint32_t r = 1; r < 3; r++)
        update_core_fixture.slots[r].live = false;
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture_single_update().version, 1);
}

TEST(a_repeated_push_counts_once) {
    update_core_fixture_synchronous(1, 2);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 1),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 2),
                     UPDATE_CORE_DUPLICATE);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 1, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture.actions[1].seq,
                     2); /* the newest question */
}

TEST(a_push_out_of_order_is_refused) {
    update_core_fixture_synchronous(1, 1);
    assert_int_equal(update_core_fixture_push(0, 0, 2, 1), UPDATE_CORE_REFUSED);
    assert_int_equal(update_core_fixture_push(0, 0, 0, 1), UPDATE_CORE_REFUSED);
    assert_int_equal(update_core_fixture_push(0, 0, UINT64_MAX, 1),
                     UPDATE_CORE_REFUSED);
    assert_int_equal(update_core_fixture.count, 0);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 1),
                     UPDATE_CORE_ACCEPTED);
}

TEST(a_late_duplicate_does_not_replace_a_later_request) {
    update_core_fixture_synchronous(1, 2);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture_push(0, 1, 1, 1);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 3),
                     UPDATE_CORE_DUPLICATE);
    update_core_fixture_push(0, 1, 2, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 2);
    assert_int_equal(update_core_fixture.actions[1].rank, 0);
    assert_int_equal(update_core_fixture.actions[1].clock, 2);
}

TEST(an_accepted_contribution_of_a_dead_worker_counts) {
    update_core_fixture_synchronous(1, 3);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture_push(0, 1, 1, 1);
    update_core_fixture.slots[0] = (struct gate_slot){0, 0, false};
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 2, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 2);
    assert_int_equal(
        ledger_row(update_core_ledger(update_core_fixture.update_core), 0)[0]
            .clock,
        1);
}

TEST(a_death_closes_the_rounds_that_waited_for_it) {
    update_core_fixture_synchronous(2, 2);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture.slots[1].live = false;
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL),
                     1); /* block 1 has none */
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 1);
    assert_int_equal(update_core_version(update_core_fixture.update_core, 1),
                     0);
}

TEST(a_round_does_not_wait_for_later_joiners) {
    update_core_fixture_synchronous(1, 2);
    update_core_fixture.slots[1] = (struct gate_slot){777, 3, true};
    update_core_fixture_set_view();
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    update_core_fixture_push(0, 0, 3, 3);
    assert_int_equal(update_core_fixture.count, 0);
    assert_int_equal(update_core_fixture_push(0, 1, 3, 1),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
}

TEST(rounds_without_live_trainers_close_empty_on_all_blocks) {
    update_core_fixture_synchronous(2, 1);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture.slots[0].live = false;
    update_core_fixture.slots[0].incarnation = 0;
    update_core_fixture_set_view(); /* nobody lives: block 1 stays at 0 */
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 0);
    update_core_fixture.slots[0] = (struct gate_slot){200, 3, true};
    update_core_fixture_set_view();
    static const uint32_t blocks[] = {1, 0, 1}, versions[] = {1, 2, 2};
    assert_int_equal(update_core_fixture.count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(update_core_fixture.actions[i].kind,
                         UPDATE_CORE_UPDATE);
        assert_int_equal(update_core_fixture.actions[i].block, blocks[i]);
        assert_int_equal(update_core_fixture.actions[i].version, versions[i]);
    }
}

TEST(a_joiner_pushes_nothing_below_its_first_round) {
    update_core_fixture_synchronous(1, 2);
    update_core_fixture_push(0, 1, 1, 1);
    update_core_fixture.slots[1] = (struct gate_slot){777, 3, true};
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture_push(0, 1, 1, 1), UPDATE_CORE_REFUSED);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
}

TEST(a_joiner_pulls_the_round_before_its_first) {
    update_core_fixture_synchronous(1, 2);
    update_core_fixture.slots[1] = (struct gate_slot){777, 2, true};
    update_core_fixture_set_view();
    update_core_pull(update_core_fixture.update_core, 0, 1, 1, 5);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 0, 1, 1);
    struct update_core_action reply;
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply), 2);
    assert_int_equal(reply.rank, 1);
    assert_int_equal(reply.seq, 5);
}

TEST(a_successor_gets_no_reply_to_its_predecessors_request) {
    update_core_fixture_synchronous(1, 2);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture.slots[0] = (struct gate_slot){777, 3, true};
    update_core_fixture_set_view();
    update_core_fixture_push(0, 1, 1, 1);
    struct update_core_action reply;
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply), 1);
    assert_int_equal(reply.rank, 1);
}

TEST(a_query_is_answered_with_the_missing_blocks) {
    update_core_fixture_synchronous(2, 2);
    update_core_fixture_push(0, 0, 1, 1);
    assert_true(update_core_query(update_core_fixture.update_core, 0, 0, 1, 7));
    assert_false(
        update_core_query(update_core_fixture.update_core, 1, 0, 1, 7));
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 1, 1, 1);
    struct update_core_action *reply = &update_core_fixture.actions[1];
    assert_int_equal(reply->rank, 0);
    assert_int_equal(reply->seq, 7);
}

TEST(a_frozen_ps_closes_one_more_round) {
    update_core_fixture_synchronous(2, 1);
    update_core_fixture_push(0, 0, 1, 1); /* block 1 is a round behind */
    assert_int_equal(update_core_freeze(update_core_fixture.update_core), 1);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture_push(0, 0, 3, 3),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture.count, 0);
    assert_int_equal(update_core_freeze(update_core_fixture.update_core),
                     1); /* asked again */
    update_core_set_snapshot_round(update_core_fixture.update_core, 2);
    update_core_fixture_collect();
    struct update_core_action snapshot;
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, &snapshot),
                     1);
    assert_int_equal(snapshot.block, 0);
    assert_int_equal(snapshot.version, 2);
    assert_int_equal(update_core_fixture.actions[0].kind,
                     UPDATE_CORE_SNAPSHOT); /* first */
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    update_core_fixture_push(1, 0, 1, 4);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, NULL), 0);
    update_core_fixture_push(1, 0, 2, 5);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, &snapshot),
                     1);
    assert_int_equal(snapshot.block, 1);
}

TEST(a_ledger_row_has_only_what_the_weights_have) {
    struct ledger_entry row[2];
    update_core_fixture_synchronous(1, 2);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_ledger_row(update_core_fixture.update_core, 0, 0, row);
    assert_int_equal(row[0].clock, 0);
    update_core_fixture_push(0, 1, 1, 1);
    update_core_fixture_push(0, 1, 2, 2); /* held for the open round */
    update_core_ledger_row(update_core_fixture.update_core, 0, 1, row);
    assert_int_equal(row[0].clock, 1);
    assert_int_equal(row[1].clock, 1);
    assert_int_equal(row[1].incarnation, 101);
}

TEST(round_zero_only_ends_the_freeze) {
    update_core_fixture_synchronous(1, 1);
    update_core_freeze(update_core_fixture.update_core);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_set_snapshot_round(update_core_fixture.update_core, 0);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, NULL), 0);
}

static bool every_third(const void *context, uint64_t round) {
    (void)context;
    return round % 3 == 0;
}

TEST(planned_rounds_are_snapshot_when_they_close) {
    struct update_core_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .planned = every_third};
    update_core_fixture_open(&settings);
    for (uint64_t clock = 1; clock < 10; clock++) {
        update_core_fixture_push(0, 0, clock, clock);
        assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, NULL),
                         clock % 3 == 0);
        assert_int_equal(update_core_fixture.actions[0].kind,
                         UPDATE_CORE_UPDATE);
    }
}

TEST(a_clipped_round_waits_for_its_norm) {
    struct update_core_settings settings = {
        .num_blocks = 2, .num_ranks = 1, .clip = true};
    update_core_fixture_open(&settings);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture.count, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SUM, NULL), 1);
    update_core_fixture_push(0, 0, 1, 2);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(1, 0, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SUM, NULL), 1);
    update_core_set_norm(update_core_fixture.update_core, 1);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 2);
    update_core_set_norm(update_core_fixture.update_core,
                         0); /* an old one changes nothing */
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 0, 2, 3);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SUM, NULL), 1);
}

TEST(a_resumed_run_continues_counting) {
    struct update_core_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .start = 500};
    update_core_fixture_open(&settings);
    assert_int_equal(update_core_fixture_push(0, 0, 1, 1), UPDATE_CORE_REFUSED);
    update_core_pull(update_core_fixture.update_core, 0, 0, 500, 1);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 1);
    assert_int_equal(update_core_fixture_push(0, 0, 501, 2),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_highest(update_core_fixture.update_core), 501);
}

TEST(with_staleness_a_push_is_applied_and_its_reply_deferred) {
    struct update_core_settings settings = {
        .num_blocks = 1, .num_ranks = 2, .staleness = 1};
    update_core_fixture_open(&settings);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture.count, 2);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL),
                     0); /* two ahead of rank 1 */
    update_core_fixture_push(0, 1, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 2);
    update_core_fixture.slots[1].live = false;
    update_core_fixture_push(0, 0, 3, 3);
    update_core_fixture_push(0, 0, 4, 4);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 0);
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 1);
}

/* Block 0 has weights, block 1 is a partition. */
static void open_rows(uint32_t ranks, uint64_t staleness) {
    struct update_core_settings settings = {
        .num_blocks = 2, .num_ranks = ranks, .staleness = staleness};
    update_core_fixture_open(&settings);
}

static void look_up(uint32_t rank, uint64_t clock, uint64_t seq) {
    update_core_lookup(update_core_fixture.update_core, 1, rank, clock, seq,
                       false);
    update_core_fixture_collect();
}

static void look_up_early(uint32_t rank, uint64_t clock, uint64_t seq) {
    update_core_lookup(update_core_fixture.update_core, 1, rank, clock, seq,
                       true);
    update_core_fixture_collect();
}

/* The last event had one answer to a lookup: RANK's SEQ, at VERSION, and after
 * the update to it. */
static void expect_lookup(uint32_t rank, uint64_t seq, uint64_t version) {
    struct update_core_action lookup = {0};
    unsigned updates = 0;
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, &lookup), 1);
    assert_int_equal(lookup.block, 1);
    assert_int_equal(lookup.rank, rank);
    assert_int_equal(lookup.seq, seq);
    assert_int_equal(lookup.version, version);
    for (unsigned i = 0; i < update_core_fixture.count; i++) {
        updates += update_core_fixture.actions[i].kind == UPDATE_CORE_UPDATE;
        if (update_core_fixture.actions[i].kind == UPDATE_CORE_LOOKUP)
            assert_int_equal(
                updates, update_core_fixture_count(UPDATE_CORE_UPDATE, NULL));
    }
}

TEST(a_lookup_before_any_push_reads_at_once) {
    open_rows(2, 0);
    look_up(1, 0, 5);
    assert_int_equal(update_core_fixture.count, 1);
    expect_lookup(1, 5, 0);
}

TEST(a_lookup_waits_for_its_readers_own_push) {
    static const uint64_t staleness[] = {0, 2, GATE_ASYNCHRONOUS};
    for (unsigned i = 0; i < 3; i++) {
        open_rows(1, staleness[i]);
        look_up(0, 1, 7);
        assert_int_equal(update_core_fixture.count, 0);
        update_core_fixture_push(0, 0, 1, 8); /* another block's */
        assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL),
                         0);
        update_core_fixture_push(1, 0, 1, 9);
        expect_lookup(0, 7, 1);
        update_core_fixture_push(1, 0, 2, 10); /* answered once */
        assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL),
                         0);
        update_core_fixture_teardown(NULL);
    }
}

TEST(an_early_lookup_waits_for_the_push_before) {
    static const uint64_t staleness[] = {2, GATE_ASYNCHRONOUS};
    for (unsigned i = 0; i < 2; i++) {
        open_rows(1, staleness[i]);
        look_up_early(0, 1, 7); /* of step 1, which is not pushed */
        expect_lookup(0, 7, 0);
        look_up_early(0, 2, 8);
        assert_int_equal(update_core_fixture.count, 0);
        update_core_fixture_push(1, 0, 1, 9);
        expect_lookup(0, 8, 1);
        update_core_fixture_teardown(NULL);
    }
    open_rows(1, 0);
    look_up_early(0, 1, 7);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(1, 0, 1, 8);
    expect_lookup(0, 7, 1);
}

/* Staleness 1: it reads for the step after push 2, as a lookup after it. */
TEST(an_early_lookup_is_no_staler_than_another) {
    open_rows(2, 1);
    update_core_fixture_push(1, 0, 1, 1);
    look_up_early(0, 2, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL), 0);
    update_core_fixture_push(1, 1, 1, 1);
    expect_lookup(0, 2, 2);
}

TEST(a_lookup_waits_for_the_others_of_its_round) {
    open_rows(2, 0);
    update_core_fixture_push(1, 0, 1, 1);
    look_up(0, 1, 2);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(1, 1, 1, 1);
    expect_lookup(0, 2, 1);
    update_core_fixture_push(1, 0, 2, 3);
    look_up(0, 2, 4);
    update_core_fixture.slots[1].live = false;
    update_core_fixture_set_view(); /* nobody is left to wait for */
    expect_lookup(0, 4, 2);
}

TEST(a_lookup_waits_for_whoever_is_too_far_behind) {
    open_rows(2, 1);
    update_core_fixture_push(1, 0, 1, 1);
    look_up(0, 1, 2);
    expect_lookup(0, 2, 1);
    look_up(0, 2, 3); /* before its push */
    update_core_fixture_push(1, 0, 2, 4);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL), 0);
    update_core_fixture_push(1, 1, 1, 1);
    expect_lookup(0, 3, 3);
}

TEST(a_newer_lookup_takes_the_place_of_an_older) {
    open_rows(1, 0);
    look_up(0, 1, 1);
    look_up(0, 1, 2); /* sent again */
    update_core_fixture_push(1, 0, 1, 3);
    expect_lookup(0, 2, 1);
}

TEST(a_late_lookup_does_not_take_the_place_of_a_newer) {
    open_rows(1, 0);
    look_up(0, 2, 2);
    look_up(0, 1, 1);
    update_core_fixture_push(1, 0, 1, 3);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL), 0);
    update_core_fixture_push(1, 0, 2, 4);
    expect_lookup(0, 2, 2);
}

TEST(a_lookup_and_a_push_are_both_answered) {
    struct update_core_action reply = {0};
    for (unsigned first = 0; first < 2; first++) {
        open_rows(2, 0);
        if (first)
            look_up(0, 1, 20);
        update_core_fixture_push(1, 0, 1, 10);
        if (!first)
            look_up(0, 1, 20);
        update_core_query(update_core_fixture.update_core, 1, 0, 1, 30);
        update_core_fixture_collect();
        assert_int_equal(update_core_fixture.count, 0);
        update_core_fixture_push(1, 1, 1, 40);
        expect_lookup(0, 20, 1);
        assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, &reply),
                         2);
        assert_int_equal(update_core_fixture.actions[1].rank, 0);
        assert_int_equal(update_core_fixture.actions[1].seq, 30);
        update_core_fixture_teardown(NULL);
    }
}

TEST(a_successor_gets_no_rows_of_its_predecessors_lookup) {
    open_rows(2, 0);
    look_up(0, 1, 1);
    update_core_fixture.slots[0] = (struct gate_slot){777, 1, true};
    update_core_fixture_set_view();
    update_core_fixture_push(1, 0, 1, 1);
    update_core_fixture_push(1, 1, 1, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, NULL), 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_LOOKUP, NULL), 0);
    look_up(0, 1, 2);
    expect_lookup(0, 2, 1);
}

static bool first_block(const void *context, uint32_t block) {
    (void)context;
    return block == 0;
}

static bool round_2(const void *context, uint64_t round) {
    (void)context;
    return round == 2;
}

/* Two ranks have pushed round 2, at which a snapshot is planned: the trainers
 * keep block 0's weights, the ps block 1's. */
static void reach_snapshot(void) {
    struct update_core_settings settings = {.num_blocks = 2,
                                            .num_ranks = 3,
                                            .planned = round_2,
                                            .kept_by_trainers = first_block};
    update_core_fixture_open(&settings);
    for (uint64_t clock = 1; clock <= 2; clock++)
        for (uint32_t r = 0; r < 3; r++)
            for (uint32_t b = 0; b < 2; b++)
                update_core_fixture_push(b, r, clock, clock);
}

/* Else its first blocks were in the planned snapshot, the rest in the other. */
TEST(a_request_replaces_a_planned_round_as_a_whole) {
    struct update_core_settings settings = {
        .num_blocks = 2, .num_ranks = 1, .planned = round_2};
    update_core_fixture_open(&settings);
    struct update_core *core = update_core_fixture.update_core;
    for (uint32_t b = 0; b < 2; b++)
        update_core_fixture_push(b, 0, 1, 1);
    assert_int_equal(update_core_freeze(core), 1);
    assert_int_equal(update_core_due(core), 2);
    update_core_fixture_push(0, 0, 2, 2);
    assert_int_equal(update_core_version(core, 0), 1);
    update_core_set_snapshot_round(core, 2);
    update_core_fixture_collect();
    assert_int_equal(update_core_version(core, 0), 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, NULL), 1);
}

static bool is_block_0(const void *context, uint32_t block) {
    (void)context;
    return block == 0;
}

/* It has no weights yet that a checkpoint could hold. */
TEST(a_snapshot_waits_for_the_first_values) {
    struct update_core_settings settings = {.num_blocks = 2,
                                            .num_ranks = 1,
                                            .staleness = 1,
                                            .awaits_values = is_block_0};
    struct update_core_action action;
    update_core_fixture_open(&settings);
    struct update_core *core = update_core_fixture.update_core;
    update_core_hold_now(core);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, &action),
                     1);
    assert_int_equal(action.block, 1);
    update_core_pull(core, 0, 0, 0, 1);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 0); /* nor one to send */
    for (uint32_t b = 0; b < 2; b++)
        update_core_assign(core, b, 0, 0, 1);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, &action),
                     1);
    assert_int_equal(action.block, 0);
}

static unsigned wants(uint32_t rank) {
    struct update_core_action want;
    unsigned count = update_core_fixture_count(UPDATE_CORE_WANT, &want);
    if (count) {
        assert_int_equal(want.block, 0);
        assert_int_equal(want.rank, rank);
        assert_int_equal(want.version, 2);
    }
    return count;
}

TEST(a_snapshot_waits_for_weights_that_trainers_keep) {
    struct update_core_action action;
    reach_snapshot(); /* the last push was block 1's */
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SNAPSHOT, &action),
                     1);
    assert_int_equal(action.block, 1);
    for (uint32_t r = 0; r < 3; r++)
        update_core_fixture_push(0, r, 3, 3);
    assert_int_equal(update_core_fixture.count, 0); /* it closes no round */
    struct update_core *core = update_core_fixture.update_core;
    assert_int_equal(update_core_assign(core, 0, 1, 1, 9),
                     UPDATE_CORE_DUPLICATE); /* of another round */
    assert_int_equal(update_core_assign(core, 0, 1, 2, 9),
                     UPDATE_CORE_ACCEPTED);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.actions[0].kind, UPDATE_CORE_SNAPSHOT);
    assert_int_equal(update_core_fixture.actions[0].version, 2);
    assert_int_equal(update_core_fixture.actions[1].kind, UPDATE_CORE_UPDATE);
    assert_int_equal(update_core_fixture.actions[1].version, 3);
    assert_int_equal(update_core_assign(core, 0, 0, 2, 9),
                     UPDATE_CORE_DUPLICATE); /* late */
    update_core_hold_now(core);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_WANT, &action), 1);
    assert_int_equal(action.version, 3);
}

TEST(the_lowest_live_rank_of_the_round_is_asked) {
    reach_snapshot();
    struct update_core *core = update_core_fixture.update_core;
    assert_true(update_core_query(core, 0, 0, 2, 7)); /* its reply is lost */
    update_core_fixture_collect();
    assert_int_equal(wants(0), 1);
    assert_true(update_core_query(core, 0, 1, 2, 7));
    update_core_fixture_collect();
    assert_int_equal(wants(1), 0);
    update_core_fixture.slots[0] = (struct gate_slot){900, 3, true};
    update_core_fixture_set_view(); /* a successor: it was not in the round */
    assert_int_equal(wants(1), 1);
    update_core_fixture.slots[1].live = false;
    update_core_fixture.slots[2].live = false;
    update_core_fixture_set_view(); /* both have finished */
    assert_int_equal(wants(1), 1);
    update_core_pull(core, 0, 0, 2, 8);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture.count, 0); /* the successor waits */
    assert_true(update_core_want_again(core));
    update_core_fixture_collect();
    assert_int_equal(wants(1), 1);
    assert_int_equal(update_core_assign(core, 0, 1, 2, 9),
                     UPDATE_CORE_ACCEPTED);
    update_core_fixture_collect();
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 1);
    assert_false(update_core_want_again(core));
}

static bool is_awaited(uint32_t rank, uint64_t expected) {
    uint64_t round;
    bool awaits =
        update_core_awaits(update_core_fixture.update_core, rank, &round);
    assert_int_equal(round, expected);
    return awaits;
}

TEST(the_lowest_open_round_tells_whom_it_awaits) {
    update_core_fixture_synchronous(2, 3);
    for (uint32_t r = 0; r < 3; r++)
        assert_true(is_awaited(r, 1));
    update_core_fixture_push(0, 0, 1, 1);
    assert_true(is_awaited(0, 1)); /* to the other block */
    update_core_fixture_push(1, 0, 1, 2);
    assert_false(is_awaited(0, 1));
    for (uint32_t r = 1; r < 3; r++)
        update_core_fixture_push(0, r, 1, 3);
    assert_true(is_awaited(1, 1)); /* block 1 is the lowest */
    update_core_fixture.slots[1].live = false;
    update_core_fixture_set_view();
    assert_false(is_awaited(1, 1));
    update_core_fixture.slots[2] = (struct gate_slot){900, 5, true};
    update_core_fixture_set_view(); /* it begins later */
    assert_false(is_awaited(2, 2));
}

/* Of marks a digit for each rank. */
static unsigned waits(uint64_t expected) {
    uint8_t marks[UPDATE_CORE_FIXTURE_RANKS];
    uint64_t step;
    unsigned digits = 0;
    bool some =
        update_core_waits(update_core_fixture.update_core, marks, &step);
    assert_int_equal(step, expected);
    for (uint32_t r = 0; r < UPDATE_CORE_FIXTURE_RANKS; r++)
        digits = 10 * digits + marks[r];
    assert_int_equal(some, digits > 0);
    return digits;
}

TEST(a_bound_of_staleness_tells_who_waits_for_whom) {
    open_rows(3, 2);
    assert_int_equal(waits(0), 0);
    for (uint64_t step = 1; step <= 2; step++)
        update_core_fixture_push(0, 0, step, step);
    assert_int_equal(waits(0), 0); /* as far as the bound allows */
    update_core_fixture_push(0, 0, 3, 3);
    assert_int_equal(waits(1), 122);
    update_core_fixture_push(0, 1, 1, 1);
    assert_int_equal(waits(1), 102);
    look_up(1, 4, 5); /* of the other block, where nobody has pushed */
    assert_int_equal(waits(2), 332);
    update_core_fixture.slots[2].live = false;
    update_core_fixture_set_view();
    assert_int_equal(waits(2), 230); /* rank 0 waits for nobody any more */
}

TEST(without_a_bound_nobody_waits_for_another) {
    open_rows(3, GATE_ASYNCHRONOUS);
    for (uint64_t step = 1; step <= 5; step++)
        update_core_fixture_push(0, 0, step, step);
    assert_int_equal(waits(0), 0);
    update_core_fixture_teardown(NULL);
    update_core_fixture_synchronous(2, 3);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(waits(0), 0);
}
