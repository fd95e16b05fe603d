/* SPDX-License-Identifier: Apache-2.0 */
/* Half precision at a ps: rounds with a push whose gradients were not finite
 * are skipped whole, and answers tell what losses are scaled by next. */
#define STATE struct server_fixture *fixture

#include "ps/server.h"

#include "core/tensor/schedule.h"
#include "tests/lib/server_fixture.h"
#include "tests/lib/test.h"

#include <math.h>

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL

static uint32_t all[] = {0, 1, 3};

static void push_overflowed(struct server_fixture *fixture, uint32_t rank,
                            uint64_t clock, double at) {
    Capstan__DataHeader header =
        server_fixture_header(fixture, PUSH, rank, clock, all, 3);
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW;
    header.loss_scale = at;
    server_fixture_send(fixture, fixture->trainers[rank], &header, NULL, 0);
}

/* Answers of RANK's CLOCK: the scale of the next step, and how many were
 * skipped. */
static void expect_scale(struct server_fixture *fixture, uint32_t rank,
                         double scale, uint64_t skipped) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        server_fixture_receive_reply(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__WEIGHTS);
    assert_true(header->loss_scale == scale);
    assert_int_equal(header->skipped, skipped);
    link_release(&frame);
}

static void scale_losses(struct server_fixture *fixture) {
    fixture->job.fp16 = (struct job_fp16){.enabled = true,
                                          .initial_scale_power = 8,
                                          .loss_scale_window = 2,
                                          .hysteresis = 1,
                                          .min_loss_scale = 1};
}

FIXTURE(server_fixture_setup, server_fixture_teardown);

TEST(a_round_with_an_overflowed_push_changes_nothing) {
    scale_losses(fixture);
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    push_overflowed(fixture, 1, 1, 256);
    server_fixture_handle_messages(fixture, 2);
    const float zeros[] = {0, 0, 0}, means[] = {-3, -4, -6};
    server_fixture_expect_weights(fixture, 0, 1, zeros, 3);
    server_fixture_expect_weights(fixture, 1, 1, zeros, 3);
    server_fixture_push(fixture, 0, 2, all, 3, 2);
    server_fixture_push(fixture, 1, 2, all, 3, 4);
    server_fixture_handle_messages(fixture, 2);
    server_fixture_expect_weights(fixture, 0, 2, means, 3);
    server_fixture_expect_weights(fixture, 1, 2, means, 3);
}

SERVER_BF16(a_round_with_an_overflowed_push_changes_nothing);
SERVER_THREADS(a_round_with_an_overflowed_push_changes_nothing);

TEST(replies_carry_the_scale_of_the_next_step) {
    scale_losses(fixture);
    server_fixture_open(fixture, 2);
    Capstan__DataHeader pull =
        server_fixture_header(fixture, PULL, 0, 0, all, 3);
    server_fixture_send(fixture, fixture->trainers[0], &pull, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    expect_scale(fixture, 0, 256, 0);
    push_overflowed(fixture, 0, 1, 256);
    push_overflowed(fixture, 1, 1, 256);
    server_fixture_handle_messages(fixture, 2);
    expect_scale(fixture, 0, 128, 1);
    expect_scale(fixture, 1, 128, 1);
    for (uint64_t clock = 2; clock <= 3; clock++) {
        server_fixture_push(fixture, 0, clock, all, 3, 2);
        server_fixture_push(fixture, 1, clock, all, 3, 2);
        server_fixture_handle_messages(fixture, 2);
        expect_scale(fixture, 0, clock == 3 ? 256 : 128, 1);
        expect_scale(fixture, 1, clock == 3 ? 256 : 128, 1);
    }
}

SERVER_THREADS(replies_carry_the_scale_of_the_next_step);

/* Rates by the steps that were applied: the second of them here is the third
 * round. */
TEST(skipped_steps_do_not_count_for_the_rule) {
    scale_losses(fixture);
    fixture->job.schedule = (struct schedule){.type = SCHEDULE_WARMUP,
                                              .warmup_linear = true,
                                              .warmup_max_lr = 4,
                                              .warmup_num_steps = 4};
    server_fixture_open(fixture, 1);
    push_overflowed(fixture, 0, 1, 256);
    server_fixture_push(fixture, 0, 2, all, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    expect_scale(fixture, 0, 128, 1);
    server_fixture_handle_messages(fixture, 1);
    const float once[] = {(float)-schedule_rate(&fixture->job.schedule, 1)};
    server_fixture_expect_weights(fixture, 0, 2, once, 1);
    server_fixture_push(fixture, 0, 3, all, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    const float twice[] = {once[0] -
                           (float)schedule_rate(&fixture->job.schedule, 2)};
    server_fixture_expect_weights(fixture, 0, 3, twice, 1);
}

SERVER_THREADS(skipped_steps_do_not_count_for_the_rule);

/* The first step that Adam applies is as long as the rate, if it is its
 * first. */
TEST(skipped_steps_do_not_count_for_adam) {
    scale_losses(fixture);
    fixture->job.optimizer = (struct optimizer){
        .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    server_fixture_open(fixture, 1);
    push_overflowed(fixture, 0, 1, 256);
    server_fixture_push(fixture, 0, 2, all, 1, 3);
    server_fixture_handle_messages(fixture, 2);
    expect_scale(fixture, 0, 128, 1);
    expect_scale(fixture, 0, 128, 1);
    float weight = server_fixture_weight(fixture, 0, 0);
    if (!(fabsf(weight + 1) < 1e-5f))
        fail_msg("%.9g", (double)weight);
}

TEST(an_overflowed_clipped_round_sums_to_zero) {
    scale_losses(fixture);
    fixture->job.gradient_clipping = 1;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    push_overflowed(fixture, 1, 1, 256);
    server_fixture_handle_messages(fixture, 2);
    assert_int_equal(fixture->summed_round, 1);
    for (int i = 0; i < 3; i++)
        assert_true(fixture->sums[i] == 0);
    assert_ok(server_set_norm(fixture->server, 1, 0, &failure));
    assert_ok(server_drain(fixture->server, &failure));
    const float zeros[] = {0, 0, 0};
    server_fixture_expect_weights(fixture, 0, 1, zeros, 3);
    server_fixture_expect_weights(fixture, 1, 1, zeros, 3);
}

SERVER_THREADS(an_overflowed_clipped_round_sums_to_zero);
