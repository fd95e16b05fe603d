/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "ps/consistency/gate.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { RANKS = 3 };

struct fixture {
    struct gate gate;
    struct ledger ledger; /* of one block */
};

static int setup(void **state) {
    static struct fixture fixture;
    *state = &fixture;
    bool all = gate_open(&fixture.gate, 0, RANKS) &&
               ledger_open(&fixture.ledger, 1, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        fixture.gate.slots[r] = (struct gate_slot){100 + r, 1, true};
    return all ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    gate_close(&fixture->gate);
    ledger_close(&fixture->ledger);
    return 0;
}

FIXTURE(setup, teardown);

static void push(struct fixture *fixture, uint32_t rank, uint64_t clock) {
    ledger_record(&fixture->ledger, 0, rank,
                  fixture->gate.slots[rank].incarnation, clock);
}

static bool full(const struct fixture *fixture, uint64_t round) {
    return gate_round_full(&fixture->gate, &fixture->ledger, 0, round);
}

static bool may_read(const struct fixture *fixture, uint64_t clock) {
    return gate_may_read(&fixture->gate, &fixture->ledger, 0, 0, clock);
}

TEST(only_the_holder_of_a_rank_is_known) {
    assert_true(gate_is_current(&fixture->gate, 1, 101));
    assert_false(gate_is_current(&fixture->gate, 1, 100));
    assert_false(gate_is_current(&fixture->gate, RANKS, 100));
    assert_false(gate_is_current(&fixture->gate, UINT32_MAX, 100));
    fixture->gate.slots[1].incarnation = 0;
    assert_false(gate_is_current(&fixture->gate, 1, 0));
}

TEST(a_round_waits_for_every_live_trainer) {
    push(fixture, 0, 1);
    push(fixture, 1, 1);
    assert_false(full(fixture, 1));
    push(fixture, 2, 1);
    assert_true(full(fixture, 1));
    assert_false(full(fixture, 2));
}

TEST(a_round_does_not_wait_for_later_joiners) {
    fixture->gate.slots[2].from = 3;
    push(fixture, 0, 1);
    push(fixture, 1, 1);
    assert_true(full(fixture, 1));
    push(fixture, 0, 3);
    push(fixture, 1, 3);
    assert_true(full(fixture, 2));
    assert_false(full(fixture, 3));
    assert_int_equal(gate_clock(&fixture->gate, &fixture->ledger, 0, 2), 2);
}

TEST(a_later_joiner_does_not_lead_before) {
    fixture->gate.slots[0] = (struct gate_slot){200, 3, true};
    assert_int_equal(gate_lead(&fixture->gate, 2), 1);
    assert_int_equal(gate_lead(&fixture->gate, 3), 0);
    fixture->gate.slots[0].live = false;
    assert_int_equal(gate_lead(&fixture->gate, 3), 1);
}

TEST(a_round_does_not_wait_for_dead_trainers) {
    fixture->gate.slots[1].live = false;
    push(fixture, 0, 1);
    push(fixture, 2, 1);
    assert_true(full(fixture, 1));
}

TEST(a_former_holders_clock_is_not_its_successors) {
    push(fixture, 1, 9);
    fixture->gate.slots[1] = (struct gate_slot){999, 4, true};
    assert_int_equal(gate_clock(&fixture->gate, &fixture->ledger, 0, 1), 3);
}

TEST(synchronous_pulls_get_their_round) {
    assert_true(gate_may_read(&fixture->gate, &fixture->ledger, 0, 4, 4));
    assert_true(gate_may_read(&fixture->gate, &fixture->ledger, 0, 5, 4));
    assert_false(gate_may_read(&fixture->gate, &fixture->ledger, 0, 3, 4));
}

TEST(the_slowest_live_trainer_bounds_all_others) {
    fixture->gate.staleness = 2;
    assert_true(may_read(fixture, 2));
    assert_false(may_read(fixture, 3));
    push(fixture, 0, 3);
    push(fixture, 1, 3);
    assert_false(may_read(fixture, 3));
    push(fixture, 2, 1);
    assert_true(may_read(fixture, 3));
    fixture->gate.slots[2].live = false;
    assert_true(may_read(fixture, 5));
    assert_false(may_read(fixture, 6));
}

TEST(the_slowest_trainer_never_waits) {
    fixture->gate.staleness = 1;
    push(fixture, 0, 90);
    push(fixture, 1, 90);
    push(fixture, 2, 3);
    assert_true(may_read(fixture, 3));
    assert_true(may_read(fixture, 4));
}

TEST(without_a_bound_no_trainer_waits) {
    fixture->gate.staleness = GATE_ASYNCHRONOUS;
    assert_true(may_read(fixture, UINT64_MAX));
}

/* Against the definition, over random clocks and slots. */
TEST(staleness_bounds_match_the_definition) {
    struct philox_sequence random;
    seed_open(&random);
    for (int trial = 0; trial < 20000; trial++) {
        uint64_t clocks[RANKS], staleness = 1 + philox_below(&random, 4);
        uint64_t clock = philox_below(&random, 10), lowest = UINT64_MAX;
        uint64_t round = 1 + philox_below(&random, 9);
        bool expected = true;
        fixture->gate.staleness = staleness;
        for (uint32_t r = 0; r < RANKS; r++) {
            struct gate_slot *slot = &fixture->gate.slots[r];
            *slot = (struct gate_slot){1 + philox_below(&random, 2),
                                       1 + philox_below(&random, 5),
                                       philox_below(&random, 3) > 0};
            uint64_t pushed = slot->from + philox_below(&random, 5);
            ledger_record(&fixture->ledger, 0, r, 1, pushed);
            clocks[r] = slot->incarnation == 1 ? pushed : slot->from - 1;
            if (slot->live && clocks[r] < lowest)
                lowest = clocks[r];
            if (slot->live && slot->from <= round && clocks[r] < round)
                expected = false;
        }
        assert_int_equal(full(fixture, round), expected);
        assert_int_equal(may_read(fixture, clock),
                         lowest == UINT64_MAX || clock <= lowest + staleness);
    }
}
