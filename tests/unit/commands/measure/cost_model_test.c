/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/cost_model.h"

#include "tests/lib/test.h"

#include <math.h>

/* 100 MB between hosts of 100 MB/s each way: once is a second. */
static struct cost_model_case plain(uint32_t workers, uint32_t ps) {
    return (struct cost_model_case){.parameters = 25e6,
                                    .element_bytes = 4,
                                    .link = 100e6,
                                    .intra_host = INFINITY,
                                    .workers = workers,
                                    .per_host = 1,
                                    .ps = ps};
}

static void near(double found, double wanted) {
    if (!(fabs(found - wanted) <= 1e-6 * fmax(1, fabs(wanted))))
        fail_msg("%.9g, not %.9g", found, wanted);
}

static double seconds(struct cost_model_case given, enum cost_model_mode mode) {
    return cost_model_step(&given, mode).seconds;
}

TEST(a_ps_round_takes_the_longer_of_both_links) {
    near(seconds(plain(2, 2), COST_MODEL_PS), 1);
    near(seconds(plain(3, 1), COST_MODEL_PS), 3);
    near(seconds(plain(1, 3), COST_MODEL_PS), 1);
    struct cost_model_case given = plain(8, 4);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_PS_LINK);
    near(cost_model_step(&given, COST_MODEL_PS).rate, 4);
    given.clip = true;
    near(seconds(given, COST_MODEL_PS), 4);
    near(seconds(given, COST_MODEL_PS_ASYNC), 2);
    given.clip = false;
    double ring = seconds(given, COST_MODEL_RING);
    given.element_bytes = 2;
    near(seconds(given, COST_MODEL_PS), 1);
    near(seconds(given, COST_MODEL_RING), ring);
}

TEST(a_ps_may_have_a_link_of_its_own) {
    struct cost_model_case given = plain(2, 2);
    given.ps_link = 25e6;
    near(seconds(given, COST_MODEL_PS), 4);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_PS_LINK);
    near(seconds(given, COST_MODEL_RING), 1);
    given.ps_link = INFINITY;
    near(seconds(given, COST_MODEL_PS), 1);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_WORKER_LINK);
}

/* 10 MB a message: the last ones' answers take 0.1 s each. */
TEST(the_last_messages_are_answered_after_their_arrival) {
    struct cost_model_case given = plain(2, 2);
    given.reply_bytes = 10e6;
    near(seconds(given, COST_MODEL_PS), 1.2);
    near(seconds(given, COST_MODEL_PS_ASYNC), 1.2);
    near(cost_model_step(&given, COST_MODEL_PS).bound, 1);
    near(seconds(given, COST_MODEL_RING), 1);
    given.workers = 3;
    given.ps = 1;
    near(seconds(given, COST_MODEL_PS), 3.3);
    given.ps_link = INFINITY;
    near(seconds(given, COST_MODEL_PS), 1.1);
    given.ps_link = 0;
    given.clip = true;
    near(seconds(given, COST_MODEL_PS), 6);
}

TEST(the_fullest_ps_limits_a_round) {
    struct cost_model_case given = plain(8, 4);
    given.max_ps_share = 0.3;
    near(seconds(given, COST_MODEL_PS), 2.4);
    near(cost_model_step(&given, COST_MODEL_PS).bound, 2);
    near(seconds(given, COST_MODEL_PS_ASYNC), 2);
    given.workers = 2; /* their own links are busier */
    near(seconds(given, COST_MODEL_PS), 1);
}

TEST(a_ring_moves_all_but_an_nth_twice) {
    near(seconds(plain(1, 1), COST_MODEL_RING), 0);
    struct cost_model_case alone = plain(1, 1);
    near(cost_model_step(&alone, COST_MODEL_RING).efficiency, 1);
    near(seconds(plain(2, 1), COST_MODEL_RING), 1);
    near(seconds(plain(4, 1), COST_MODEL_RING), 1.5);
    struct cost_model_case given = plain(4, 1);
    given.latency = 0.01;
    near(seconds(given, COST_MODEL_RING), 1.5 + 6 * 0.01);
    near(seconds(given, COST_MODEL_HALVING), 1.5 + 4 * 0.01);
    near(seconds(given, COST_MODEL_PS), 4 + 2 * 0.01);
    given.clip = true;
    near(seconds(given, COST_MODEL_PS), 8 + 4 * 0.01);
}

/* 6 workers: 2 fold into 4 and out again. */
TEST(halving_folds_ranks_beyond_a_power_of_two) {
    struct cost_model_case given = plain(6, 1);
    given.latency = 0.01;
    near(seconds(given, COST_MODEL_HALVING), 1.5 + 2 + 6 * 0.01);
}

/* 16 devices on 4 hosts; 1000 MB/s inside. Between hosts 2 * 3/4 of a second,
 * inside 2 * 3/4 of a tenth; by ps each host's link has four devices' gradients
 * to carry. */
TEST(devices_of_a_host_share_its_link) {
    struct cost_model_case given = plain(16, 16);
    given.per_host = 4;
    given.intra_host = 1000e6;
    near(seconds(given, COST_MODEL_RING), 1.5 + 0.15);
    near(seconds(given, COST_MODEL_PS), 4);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_WORKER_LINK);
    given.workers = 4; /* one host: nothing between hosts */
    near(seconds(given, COST_MODEL_RING), 0.15);
    assert_int_equal(cost_model_step(&given, COST_MODEL_RING).limit,
                     COST_MODEL_INTRA_HOST_LINK);
    given.workers = 5; /* the second host has one of them */
    near(seconds(given, COST_MODEL_RING), 1 + 0.15);
}

TEST(compute_overlaps_communication) {
    struct cost_model_case given = plain(2, 2);
    given.compute = 0.6;
    near(seconds(given, COST_MODEL_RING), 1.6);
    given.overlap = 0.5;
    near(seconds(given, COST_MODEL_RING), 0.6 + 0.7);
    given.compute = 6;
    near(seconds(given, COST_MODEL_RING), 6);
    near(seconds(given, COST_MODEL_PS), 6);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_COMPUTE);
    near(cost_model_step(&given, COST_MODEL_PS).efficiency, 1);
    given.input = 7;
    near(seconds(given, COST_MODEL_PS), 7);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_INPUT);
    near(cost_model_step(&given, COST_MODEL_PS).efficiency, 1);
}

/* 25e6 elements at 40 ns: a second for each gradient. */
TEST(the_update_costs_a_ps_per_gradient_and_a_ring_once) {
    struct cost_model_case given = plain(8, 2);
    given.update = 40e-9 * 2;
    near(seconds(given, COST_MODEL_PS), 8);
    assert_int_equal(cost_model_step(&given, COST_MODEL_PS).limit,
                     COST_MODEL_PS_ARITHMETIC);
    near(seconds(given, COST_MODEL_RING), 1.75 + 2);
    assert_int_equal(cost_model_step(&given, COST_MODEL_RING).limit,
                     COST_MODEL_COMPUTE);
    near(seconds(given, COST_MODEL_PS_ASYNC), 8);
    near(cost_model_step(&given, COST_MODEL_PS).efficiency, 0.25);
}

TEST(without_rounds_workers_wait_only_for_a_saturated_ps) {
    struct cost_model_case given = plain(8, 4);
    given.compute = 3;
    given.overlap = 0;
    near(seconds(given, COST_MODEL_PS), 5);
    near(seconds(given, COST_MODEL_PS_ASYNC), 4);
    given.compute = 0.5;
    near(seconds(given, COST_MODEL_PS_ASYNC), 2);
}

/* n^2/(2(n-1)) of 8 is 4.57. */
TEST(the_ps_wins_from_n_squared_by_two_n_less_two_on) {
    struct cost_model_case given = plain(8, 1);
    near(cost_model_crossover_wire(&given, COST_MODEL_RING), 64 / 14.0);
    assert_int_equal(cost_model_crossover(&given, COST_MODEL_RING), 5);
    given.workers = 2;
    near(cost_model_crossover_wire(&given, COST_MODEL_RING), 2);
    assert_int_equal(cost_model_crossover(&given, COST_MODEL_RING), 2);
    given.compute = 100; /* hides all of it */
    given.overlap = 0.5;
    assert_int_equal(cost_model_crossover(&given, COST_MODEL_RING), 1);
}

/* Of the exchange alone: what there is of ps does not matter, what a ps has to
 * compute and wait for does. */
TEST(communication_alone_has_its_own_crossover) {
    struct cost_model_case given = plain(8, 4);
    near(cost_model_crossover_wire(&given, COST_MODEL_RING), 64 / 14.0);
    given.latency = 0.01;
    near(cost_model_crossover_wire(&given, COST_MODEL_RING),
         8 / (1.75 + 14 * 0.01 - 2 * 0.01));
    given.latency = 0;
    given.update = 40e-9 * 2;
    near(cost_model_crossover_wire(&given, COST_MODEL_RING), 16 / 1.75);
}

TEST(clipping_or_a_shared_link_leave_no_crossover) {
    struct cost_model_case given = plain(8, 1);
    given.clip = true;
    assert_true(isinf(cost_model_crossover_wire(&given, COST_MODEL_RING)));
    assert_int_equal(cost_model_crossover(&given, COST_MODEL_RING), 0);
    given.clip = false;
    given.per_host = 4;
    assert_int_equal(cost_model_crossover(&given, COST_MODEL_RING), 0);
}

/* C / (C + T) = 7/8 at C = 7 T; with the share h of C hidden
 * C / (C + T - h C) = 7/8 at C = 7 T / (1 + 7 h). */
TEST(the_compute_time_for_an_efficiency_is_found) {
    struct cost_model_case given = plain(4, 4);
    near(cost_model_compute_for_efficiency(&given, COST_MODEL_RING, 0.875),
         7 * 1.5);
    near(cost_model_compute_for_efficiency(&given, COST_MODEL_PS, 0.875), 7);
    given.overlap = 0.5;
    near(cost_model_compute_for_efficiency(&given, COST_MODEL_RING, 0.875),
         7 * 1.5 / 4.5);
    given.compute = 7 * 1.5 / 4.5;
    near(cost_model_step(&given, COST_MODEL_RING).efficiency, 0.875);
    given.input = 100; /* a slow reader is another matter */
    near(cost_model_compute_for_efficiency(&given, COST_MODEL_RING, 0.875),
         7 * 1.5 / 4.5);
}
