/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/network_bound.h"

#include "tests/lib/test.h"

/* 784-512-512-10 in float32. */
static const double DEMO = 669706 * 4.0;

static void expect(struct network_bound_case given, double steps) {
    double found = network_bound_steps_per_second(&given);
    if (!(found >= steps - 0.05 && found <= steps + 0.05))
        fail_msg("%u ps, %u trainers: %.3f steps/s, not %.1f", given.num_ps,
                 given.num_trainers, found, steps);
}

/* M = 2.68 MB, 1 Gbit/s: a round of 2 and 2 takes 22.4 ms. */
TEST(the_bound_of_four_hosts_matches_the_design) {
    expect((struct network_bound_case){2, 2, DEMO, 0, 1, true, false, false},
           44.6);
    expect((struct network_bound_case){3, 1, DEMO, 0, 1, true, false, false},
           44.63 / 3);
    expect((struct network_bound_case){1, 3, DEMO, 0, 1, true, false, false},
           44.6);
    expect((struct network_bound_case){2, 2, DEMO, 0, 10, true, false, false},
           446.3);
}

TEST(a_ring_sends_all_but_its_own_share_twice) {
    expect((struct network_bound_case){.num_trainers = 4,
                                       .bytes = DEMO,
                                       .link_gbits = 1,
                                       .synchronous = true,
                                       .allreduce = true},
           44.63 / 1.5);
    expect((struct network_bound_case){.num_trainers = 2,
                                       .bytes = DEMO,
                                       .link_gbits = 1,
                                       .synchronous = true,
                                       .allreduce = true},
           44.63);
    expect((struct network_bound_case){.num_trainers = 1,
                                       .bytes = DEMO,
                                       .link_gbits = 1,
                                       .synchronous = true,
                                       .allreduce = true},
           0);
}

/* Rows go to each other rank, and are counted so. */
TEST(rows_of_tables_cross_as_often_as_weights_or_once) {
    expect((struct network_bound_case){3, 1, DEMO / 2, DEMO / 2, 1, true, false,
                                       false},
           44.63 / 3);
    expect((struct network_bound_case){.num_trainers = 4,
                                       .bytes = DEMO / 2,
                                       .row_bytes = DEMO / 4,
                                       .link_gbits = 1,
                                       .synchronous = true,
                                       .allreduce = true},
           44.63);
}

TEST(without_rounds_all_trainers_pushes_count) {
    expect((struct network_bound_case){2, 2, DEMO, 0, 1, false, false, false},
           89.3);
    expect((struct network_bound_case){3, 1, DEMO, 0, 1, false, false, false},
           44.6);
    expect((struct network_bound_case){1, 3, DEMO, 0, 1, false, false, false},
           44.6);
}

TEST(clipping_doubles_and_bf16_halves_the_bound) {
    expect((struct network_bound_case){2, 2, DEMO, 0, 1, true, true, false},
           22.3);
    expect(
        (struct network_bound_case){2, 2, DEMO / 2, 0, 1, true, false, false},
        89.3);
}

TEST(unknown_rates_give_no_bound) {
    expect((struct network_bound_case){2, 2, DEMO, 0, 0, true, false, false},
           0);
    expect((struct network_bound_case){2, 2, 0, 0, 1, true, false, false}, 0);
    expect((struct network_bound_case){2, 0, DEMO, 0, 1, true, false, false},
           0);
}

TEST(link_payload_and_link_rate_are_inverse) {
    double payload = network_bound_payload(1);
    assert_true(payload > 119.5e6 && payload < 119.6e6);
    double back = network_bound_link_gbits(payload);
    assert_true(back > 0.999999 && back < 1.000001);
}
