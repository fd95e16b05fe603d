/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "ps/units/shard.h"

#include "tests/lib/test.h"

#include <math.h>

enum { ELEMENTS = 40000, HELD = 2 };

/* One parameter in three blocks; the shard holds the first and the last. */
struct fixture {
    struct layout *layout;
    struct shard *shard;
    float *gradient;
};

static const uint32_t ids[HELD] = {0, 2};

static int setup(void **state) {
    static struct fixture fixture;
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}, .init_bound = 0.5f};
    struct optimizer optimizer = {.type = OPTIMIZER_SGD, .momentum = 0.5};
    if (layout_build(&fixture.layout, &parameter, 1, &failure) ||
        shard_open(&fixture.shard,
                   &(struct shard_settings){fixture.layout, ids, HELD,
                                            &optimizer, NULL},
                   &failure))
        return -1;
    fixture.gradient = malloc(ELEMENTS * sizeof(float) + 1);
    for (int i = 0; i < ELEMENTS; i++)
        fixture.gradient[i] = (float)(i % 7);
    shard_initialise(fixture.shard, 3);
    *state = &fixture;
    return 0;
}

TEARDOWN(teardown) {
    shard_close(&fixture->shard);
    layout_free(&fixture->layout);
    free(fixture->gradient);
}

FIXTURE(setup, teardown);

static float *weights(const struct fixture *fixture, uint32_t b) {
    return buffer_data(shard_tensor(fixture->shard, b, 0));
}

static void update(struct fixture *fixture, uint32_t b, uint64_t step) {
    const void *gradients[] = {fixture->gradient};
    struct unit_round round = {.gradients = gradients,
                               .num_parts = 1,
                               .step = step,
                               .rule_step = step,
                               .rate = 1,
                               .scale = 1};
    assert_ok(shard_units.update(fixture->shard, b, &round, &failure));
}

TEST(blocks_are_those_of_the_plan) {
    const struct layout *layout = fixture->layout;
    assert_int_equal(layout->num_blocks, 3);
    assert_int_equal(shard_blocks(fixture->shard), HELD);
    for (uint32_t b = 0; b < HELD; b++) {
        assert_int_equal(shard_tensors(fixture->shard, b), 2);
        assert_ptr_equal(shard_block(fixture->shard, b),
                         &layout->blocks[ids[b]]);
        assert_int_equal(shard_block_bytes(fixture->shard, b),
                         layout->blocks[ids[b]].elements * sizeof(float));
    }
}

TEST(first_weights_are_those_of_the_layout) {
    float *expected = malloc(ELEMENTS * sizeof *expected);
    for (uint32_t b = 0; b < HELD; b++) {
        layout_init_block(fixture->layout, ids[b], 3, expected);
        assert_memory_equal(weights(fixture, b), expected,
                            shard_block_bytes(fixture->shard, b));
        float *state_of = buffer_data(shard_tensor(fixture->shard, b, 1));
        for (uint32_t i = 0; i < shard_block(fixture->shard, b)->elements; i++)
            assert_true(state_of[i] == 0);
    }
    free(expected);
}

TEST(an_update_is_in_place_without_readers) {
    struct buffer *before = shard_tensor(fixture->shard, 1, 0);
    float first = weights(fixture, 1)[1];
    update(fixture, 1, 1);
    assert_ptr_equal(shard_tensor(fixture->shard, 1, 0), before);
    assert_true(fabsf(weights(fixture, 1)[1] - (first - 1)) < 1e-6f);
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
}

TEST(held_weights_do_not_change) {
    size_t bytes = shard_block_bytes(fixture->shard, 0);
    float *copy = malloc(bytes);
    struct buffer *held = buffer_hold(shard_tensor(fixture->shard, 0, 0));
    memcpy(copy, buffer_data(held), bytes);
    update(fixture, 0, 1);
    update(fixture, 0, 2);
    assert_memory_equal(buffer_data(held), copy, bytes);
    assert_ptr_not_equal(shard_tensor(fixture->shard, 0, 0), held);
    assert_int_equal(shard_copied_bytes(fixture->shard), bytes);
    /* 1, then momentum 0.5 + 1: element 1 has gradient 1. */
    assert_true(fabsf(weights(fixture, 0)[1] - (copy[1] - 2.5f)) < 1e-5f);
    buffer_release(&held);
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
    free(copy);
}

TEST(updated_weights_stay_in_shared_memory) {
    struct buffer *held[80];
    assert_non_null(buffer_segment(shard_tensor(fixture->shard, 0, 0)));
    assert_null(buffer_segment(shard_tensor(fixture->shard, 0, 1)));
    for (int i = 0; i < 80; i++) {
        held[i] = buffer_hold(shard_tensor(fixture->shard, 0, 0));
        update(fixture, 0, (uint64_t)i + 1);
    }
    assert_null(buffer_segment(shard_tensor(fixture->shard, 0, 0)));
    for (int i = 0; i < 80; i++)
        buffer_release(&held[i]);
    float before = weights(fixture, 0)[0]; /* its gradient is 0 */
    update(fixture, 0, 81);
    assert_non_null(buffer_segment(shard_tensor(fixture->shard, 0, 0)));
    assert_true(weights(fixture, 0)[0] == before);
    struct buffer *shown = shard_tensor(fixture->shard, 0, 0);
    update(fixture, 0, 82);
    assert_ptr_equal(shard_tensor(fixture->shard, 0, 0), shown);
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
}

TEST(a_held_buffer_outlives_the_shard) {
    struct buffer *held = buffer_hold(shard_tensor(fixture->shard, 0, 0));
    shard_close(&fixture->shard);
    memset(buffer_data(held), 0, buffer_bytes(held));
    buffer_release(&held);
}

TEST(assigned_weights_may_have_any_alignment) {
    size_t bytes = shard_block_bytes(fixture->shard, 1);
    memmove((char *)fixture->gradient + 1, fixture->gradient, bytes);
    shard_assign(fixture->shard, 1, (char *)fixture->gradient + 1);
    assert_memory_equal(weights(fixture, 1), (char *)fixture->gradient + 1,
                        bytes);
}

TEST(square_sums_are_of_the_scaled_sum) {
    const void *gradients[] = {fixture->gradient, fixture->gradient};
    double expected = 0;
    for (uint32_t i = 0; i < shard_block(fixture->shard, 0)->elements; i++)
        expected += (double)(i % 7) * (i % 7);
    struct unit_round round = {
        .gradients = gradients, .num_parts = 2, .scale = 0.5f};
    double sum = shard_units.square_sum(fixture->shard, 0, &round);
    assert_true(fabs(sum - expected) <= 1e-9 * expected);
}

/* Ftrl has two tensors that start differently, SGD none. */
TEST(each_block_has_the_rule_and_the_state_of_its_group) {
    struct parameter parameters[] = {
        {.name = "a", .num_dims = 1, .dims = {3}, .group = 1},
        {.name = "b", .num_dims = 1, .dims = {2}}};
    const struct optimizer_group groups[] = {
        {.optimizer = {.type = OPTIMIZER_SGD}},
        {.optimizer = {.type = OPTIMIZER_FTRL,
                       .learning_rate_power = -0.5,
                       .initial_accumulator_value = 0.25}}};
    const uint32_t both[] = {0, 1};
    const float gradient[] = {1, 1, 1};
    const void *gradients[] = {gradient};
    struct layout *layout;
    struct shard *shard;
    assert_ok(layout_build(&layout, parameters, 2, &failure));
    struct shard_settings settings = {layout, both, 2, &groups[0].optimizer,
                                      groups};
    assert_ok(shard_open(&shard, &settings, &failure));
    shard_initialise(shard, 1);
    for (uint32_t b = 0; b < 2; b++) { /* the last parameter is first */
        struct unit_round round = {.gradients = gradients,
                                   .num_parts = 1,
                                   .step = 1,
                                   .rule_step = 1,
                                   .rate = 0.5,
                                   .scale = 1};
        bool ftrl = !strcmp(shard_parameter(shard, b)->name, "a");
        assert_int_equal(shard_tensors(shard, b), ftrl ? 3 : 1);
        if (ftrl)
            assert_true(*(float *)buffer_data(shard_tensor(shard, b, 1)) ==
                        0.25f);
        assert_ok(shard_units.update(shard, b, &round, &failure));
        /* Ftrl: -gradient / (sqrt(0.25 + 1) / rate) */
        float expected = ftrl ? -0.5f / sqrtf(1.25f) : -0.5f;
        float found = *(float *)buffer_data(shard_tensor(shard, b, 0));
        if (!(fabsf(found - expected) < 1e-6f))
            fail_msg("block %u: found %g, expected %g", b, found, expected);
    }
    shard_close(&shard);
    layout_free(&layout);
}

TEST(a_shard_may_be_empty) {
    struct optimizer optimizer = {.type = OPTIMIZER_ADAM};
    struct shard_settings settings = {.layout = fixture->layout,
                                      .optimizer = &optimizer};
    struct shard *empty;
    assert_ok(shard_open(&empty, &settings, &failure));
    shard_initialise(empty, 1);
    assert_int_equal(shard_blocks(empty), 0);
    shard_close(&empty);
    assert_null(empty);
}
