/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/roster.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

static struct roster roster;

static int setup(void **state) {
    (void)state;
    return roster_open(&roster, true, 2, 2, 30 * TIME_S) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    roster_close(&roster);
    return 0;
}

FIXTURE(setup, teardown);

static enum roster_claim_result claim(struct roster_slot *slot,
                                      uint64_t incarnation, int64_t now) {
    struct roster_claim claim = {incarnation, 77, 2222, "host", "host:2222", 0};
    return roster_claim(slot, &claim, now);
}

TEST(slots_are_trainers_by_rank_then_ps_by_index) {
    static const enum cluster_role roles[] = {
        CLUSTER_CHIEF, CLUSTER_WORKER, CLUSTER_WORKER, CLUSTER_PS, CLUSTER_PS};
    assert_int_equal(roster.count, 5);
    assert_int_equal(roster.num_ranks, 3);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(roster.slots[i].role, roles[i]);
        assert_int_equal(roster.slots[i].rank, i < 3 ? i : ROSTER_NO_RANK);
    }
    assert_ptr_equal(roster_find(&roster, CLUSTER_WORKER, 1), &roster.slots[2]);
    assert_ptr_equal(roster_ps(&roster, 1), &roster.slots[4]);
    assert_null(roster_find(&roster, CLUSTER_WORKER, 2));
    assert_null(roster_find(&roster, CLUSTER_EVALUATOR, 0));
    struct roster coordinating;
    assert_true(roster_open(&coordinating, false, 1, 1, TIME_S));
    assert_int_equal(coordinating.slots[0].role, CLUSTER_WORKER);
    assert_int_equal(coordinating.slots[0].rank, 0);
    roster_close(&coordinating);
}

TEST(a_joiner_takes_a_free_slot) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    assert_int_equal(claim(slot, 5, 0), ROSTER_GRANTED);
    assert_int_equal(slot->state, ROSTER_HELD);
    assert_string_equal(slot->address, "host:2222");
    assert_int_equal(slot->pid, 77);
    assert_ptr_equal(roster_find_member(&roster, 5), slot);
    assert_int_equal(claim(slot, 5, 1), ROSTER_ALREADY_HELD);
    assert_int_equal(roster_count(&roster, CLUSTER_PS, ROSTER_HELD), 1);
    assert_int_equal(roster_count(&roster, CLUSTER_ROLES, ROSTER_ABSENT), 4);
}

TEST(a_live_member_keeps_its_slot) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    assert_int_equal(claim(slot, 6, TIME_S), ROSTER_WAIT);
    roster_mark_alive(slot, TIME_S + 1);
    assert_int_equal(claim(slot, 6, TIME_S + 2), ROSTER_REFUSED);
    assert_null(roster_find_expired(&roster, 5 * TIME_S));
    assert_ptr_equal(roster_find_member(&roster, 5), slot);
    assert_null(roster_find_member(&roster, 6));
}

/* As a process that is stopped, or behind a cut link. */
TEST(a_silent_member_beside_a_claim_lives_as_long_as_any) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    assert_int_equal(claim(slot, 6, TIME_S), ROSTER_WAIT);
    assert_null(roster_find_expired(&roster, 30 * TIME_S));
    assert_int_equal(claim(slot, 6, 30 * TIME_S), ROSTER_WAIT);
    assert_ptr_equal(roster_find_expired(&roster, 30 * TIME_S + 1), slot);
    roster_remove(slot);
    assert_int_equal(claim(slot, 6, 31 * TIME_S), ROSTER_GRANTED);
}

TEST(a_claimed_member_whose_connection_was_closed_is_dead_sooner) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    roster_mark_closed(slot, TIME_S);
    assert_null(roster_find_expired(&roster, 20 * TIME_S)); /* no claim */
    assert_int_equal(claim(slot, 6, 2 * TIME_S), ROSTER_WAIT);
    roster_mark_alive(slot, 2 * TIME_S + 1); /* sent before, read late */
    assert_int_equal(claim(slot, 6, 2 * TIME_S + 2), ROSTER_WAIT);
    assert_null(roster_find_expired(&roster, 3 * TIME_S));
    assert_ptr_equal(roster_find_expired(&roster, 3 * TIME_S + 1), slot);
    roster_remove(slot);
    assert_int_equal(slot->state, ROSTER_VACATED);
    assert_null(roster_find_member(&roster, 5));
    assert_null(roster_find_expired(&roster, 100 * TIME_S));
    assert_int_equal(claim(slot, 6, 4 * TIME_S), ROSTER_GRANTED);
    claim(slot, 7, 5 * TIME_S);
    assert_null(
        roster_find_expired(&roster, 20 * TIME_S)); /* its own is open */
}

TEST(a_claimed_member_that_returns_keeps_its_slot) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    roster_mark_closed(slot, TIME_S);
    claim(slot, 6, TIME_S + 1);
    roster_mark_returned(slot);
    roster_mark_alive(slot, 2 * TIME_S);
    assert_null(roster_find_expired(&roster, 20 * TIME_S));
    assert_int_equal(claim(slot, 6, 3 * TIME_S), ROSTER_REFUSED);
}

/* Its claim was under way when it was declared dead. */
TEST(a_removed_member_does_not_return) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    roster_remove(slot);
    assert_int_equal(claim(slot, 5, TIME_S), ROSTER_REMOVED);
    assert_int_equal(slot->state, ROSTER_VACATED);
    assert_int_equal(claim(slot, 6, TIME_S), ROSTER_GRANTED);
    assert_int_equal(claim(slot, 5, TIME_S), ROSTER_REMOVED);
}

TEST(silence_alone_means_death_at_the_limit) {
    struct roster_slot *slot = roster_find(&roster, CLUSTER_WORKER, 0);
    claim(slot, 5, TIME_S);
    assert_null(roster_find_expired(&roster, 31 * TIME_S));
    assert_ptr_equal(roster_find_expired(&roster, 31 * TIME_S + 1), slot);
    roster_mark_alive(slot, 31 * TIME_S + 1);
    assert_null(roster_find_expired(&roster, 31 * TIME_S + 2));
}

TEST(a_message_of_the_member_clears_earlier_claims) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    claim(slot, 6, TIME_S);
    roster_mark_alive(slot, 2 * TIME_S);
    roster_mark_closed(slot, 3 * TIME_S);
    assert_null(roster_find_expired(&roster, 20 * TIME_S));
    assert_int_equal(claim(slot, 7, 20 * TIME_S), ROSTER_WAIT); /* anew */
    assert_ptr_equal(roster_find_expired(&roster, 20 * TIME_S), slot);
}

TEST(free_slots_have_no_member) {
    assert_null(roster_find_member(&roster, 0));
    assert_null(roster_find_expired(&roster, INT64_MAX));
}

TEST(slots_have_readable_names) {
    char text[64];
    roster_name(&roster.slots[0], text, sizeof text);
    assert_string_equal(text, "the chief's trainer");
    roster_name(&roster.slots[2], text, sizeof text);
    assert_string_equal(text, "worker 1");
    roster_name(&roster.slots[3], text, sizeof text);
    assert_string_equal(text, "ps 0");
}

TEST(long_names_are_truncated) {
    char name[1000];
    memset(name, 'h', sizeof name - 1);
    name[sizeof name - 1] = 0;
    struct roster_claim claim = {5, 1, 2, name, name, 0};
    struct roster_slot *slot = roster_ps(&roster, 0);
    assert_int_equal(roster_claim(slot, &claim, 0), ROSTER_GRANTED);
    assert_int_equal(strlen(slot->host), sizeof slot->host - 1);
    assert_int_equal(strlen(slot->address), sizeof slot->address - 1);
}

TEST(alternating_claimants_do_not_keep_a_dead_member) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    claim(slot, 5, 0);
    roster_mark_closed(slot, TIME_S);
    for (int64_t i = 0; i <= 8; i++)
        assert_int_equal(
            claim(slot, 6 + (uint64_t)i % 2, TIME_S + i * TIME_S / 4),
            ROSTER_WAIT);
    assert_null(roster_find_expired(&roster, 3 * TIME_S));
    assert_ptr_equal(roster_find_expired(&roster, 3 * TIME_S + 1), slot);
}

TEST(alternating_claimants_are_refused_while_the_member_lives) {
    struct roster_slot *slot = roster_ps(&roster, 0);
    bool refused[2] = {false, false};
    claim(slot, 5, 0);
    for (int64_t i = 1; i <= 5; i++) {
        roster_mark_alive(slot, i * TIME_S / 2);
        for (int who = 0; who < 2; who++)
            if (!refused[who]) /* else it has left */
                refused[who] =
                    claim(slot, 6 + (uint64_t)who, i * TIME_S / 2 + 1 + who) ==
                    ROSTER_REFUSED;
        assert_null(roster_find_expired(&roster, i * TIME_S / 2 + 10));
    }
    assert_true(refused[0] && refused[1]);
}
