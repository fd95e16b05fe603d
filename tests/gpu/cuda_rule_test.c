/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "core/tensor/rule.h"
#include "tests/gpu/cuda_cases.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/rule_oracle.h"

/* Weights, state and gradient of a model, for a kernel or for the CPU. */
struct block {
    size_t elements;
    float *weights, *gradient, *state[RULE_MAX_SLOTS];
};

static void open_block(struct block *block, size_t elements) {
    block->elements = elements;
    block->weights = cuda_floats(elements, 1, 1);
    block->gradient = cuda_floats(elements, 2, 1);
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++) {
        block->state[slot] = cuda_floats(elements, 3 + slot, 1);
        for (size_t i = 0; i < elements; i++) /* some are squares */
            block->state[slot][i] = fabsf(block->state[slot][i]);
    }
}

static void copy_block(struct block *to, const struct block *from) {
    to->elements = from->elements;
    to->weights = cuda_copy(from->weights, from->elements);
    to->gradient = cuda_copy(from->gradient, from->elements);
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        to->state[slot] = cuda_copy(from->state[slot], from->elements);
}

static void close_block(struct block *block) {
    cuda_backend_release(block->weights);
    cuda_backend_release(block->gradient);
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        cuda_backend_release(block->state[slot]);
}

static struct rule_update update_of(const struct rule_case *one,
                                    const struct block *block, uint64_t step,
                                    float scale) {
    struct rule_update update = {
        .step = step,
        .rate = one->rate,
        .scale = scale,
        .elements = block->elements,
        .num_gradients = 1,
        .weights = block->weights,
        .weights_out = block->weights,
    };
    for (unsigned slot = 0; slot < rule_slots(&one->rule); slot++)
        update.state[slot] = update.state_out[slot] = block->state[slot];
    return update;
}

static void on_cpu(const struct rule_case *one, const struct block *block,
                   uint64_t step, float scale) {
    size_t count;
    const void *gradient = block->gradient;
    struct rule_update update = update_of(one, block, step, scale);
    update.gradients = &gradient;
    rule_apply(rule_variants(&count)[0], &one->rule, &update);
}

static void on_machine(const struct rule_case *one, const struct block *block,
                       uint64_t step, float scale, const float *factor,
                       const uint32_t *skip) {
    struct rule_update update = update_of(one, block, step, scale);
    struct cuda_kernels_update on_device = {
        .form = rule_form_of(&one->rule),
        .constants = rule_form_constants(&one->rule, &update),
        .factor = factor,
        .skip = skip,
        .elements = block->elements,
        .gradient = block->gradient,
        .weights = block->weights,
    };
    for (unsigned slot = 0; slot < rule_slots(&one->rule); slot++)
        on_device.state[slot] = block->state[slot];
    assert_runs(cuda_kernels_rule(NULL, &on_device));
}

static void assert_same_bits(const struct rule_case *one,
                             const struct block *got,
                             const struct block *expected) {
    const float *mine[] = {got->weights, got->state[0], got->state[1],
                           got->state[2]};
    const float *cpus[] = {expected->weights, expected->state[0],
                           expected->state[1], expected->state[2]};
    for (unsigned t = 0; t < 4; t++)
        for (size_t i = 0; i < got->elements; i++) {
            float a = mine[t][i], b = cpus[t][i];
            if (memcmp(&a, &b, sizeof a) && !(isnan(a) && isnan(b)))
                fail_msg("%s: tensor %u, element %zu of %zu: %a, not %a",
                         one->name, t, i, got->elements, (double)a, (double)b);
        }
}

static bool has_cpus_bits(const struct rule_case *one) {
    return rule_form_of(&one->rule) != RULE_FTRL_POWER;
}

static void check(const struct rule_case *one, const struct block *before,
                  int orders) {
    struct block first, expected;
    copy_block(&first, before);
    copy_block(&expected, before);
    cuda_set_order(0);
    on_machine(one, &first, 3, 0.25f, NULL, NULL);
    on_cpu(one, &expected, 3, 0.25f);
    if (has_cpus_bits(one))
        assert_same_bits(one, &first, &expected);
    for (int order = 1; order < orders; order++) {
        struct block again;
        copy_block(&again, before);
        cuda_set_order(order);
        on_machine(one, &again, 3, 0.25f, NULL, NULL);
        assert_same_bits(one, &again, &first);
        close_block(&again);
    }
    close_block(&first);
    close_block(&expected);
}

TEST(every_rule_has_the_cpus_bits) {
    for (int i = 0; i < CUDA_SIZES; i++) {
        struct block before;
        open_block(&before, cuda_sizes[i]);
        for (int c = 0; c < RULE_CASES; c++)
            check(&rule_cases[c], &before, CUDA_ORDERS);
        close_block(&before);
    }
}

TEST(special_values_propagate_as_on_the_cpu) {
    enum { COUNT = CUDA_SPECIAL * CUDA_SPECIAL };
    for (unsigned t = 0; t < 2 + RULE_MAX_SLOTS; t++) {
        struct block before;
        open_block(&before, COUNT);
        float *tensors[] = {before.gradient, before.weights, before.state[0],
                            before.state[1], before.state[2]};
        for (size_t i = 0; i < COUNT; i++) {
            tensors[t][i] = cuda_special[i % CUDA_SPECIAL];
            before.gradient[i] =
                t == 0 ? before.gradient[i] : cuda_special[i / CUDA_SPECIAL];
        }
        for (int c = 0; c < RULE_CASES; c++)
            check(&rule_cases[c], &before, 2);
        close_block(&before);
    }
}

/* Fifty rounds with fresh gradients, beside the oracle. */
static void check_rounds(const struct rule_case *one, struct block *block,
                         struct rule_oracle *exact) {
    double largest = 0;
    for (size_t i = 0; i < block->elements; i++) {
        exact[i] =
            (struct rule_oracle){.weight = block->weights[i],
                                 .sum = one->rule.initial_accumulator_value};
        for (unsigned slot = 0; slot < rule_slots(&one->rule); slot++)
            block->state[slot][i] = rule_slot_start(&one->rule, slot);
    }
    for (uint64_t step = 1; step <= 50; step++) {
        philox_uniform(9, step, 0, 1, block->gradient, block->elements);
        on_machine(one, block, step, 0.5f, NULL, NULL);
        for (size_t i = 0; i < block->elements; i++)
            rule_oracle_step(&one->rule, one->rate, step,
                             block->gradient[i] / 2.0, &exact[i]);
    }
    for (size_t i = 0; i < block->elements; i++)
        largest = fmax(largest, fabs(exact[i].weight));
    for (size_t i = 0; i < block->elements; i++)
        assert_near(block->weights[i], exact[i].weight, 1e-5 * largest);
}

TEST(fifty_rounds_agree_with_double) {
    struct rule_oracle exact[300];
    cuda_backend_set_order(5, 0);
    for (int c = 0; c < RULE_CASES; c++) {
        struct block block;
        open_block(&block, 300);
        check_rounds(&rule_cases[c], &block, exact);
        close_block(&block);
    }
}

TEST(a_factor_in_device_memory_multiplies_the_scale) {
    float *factor = cuda_floats(1, 7, 1);
    for (int c = 0; c < RULE_CASES; c++) {
        struct block got, expected;
        open_block(&got, 257);
        copy_block(&expected, &got);
        on_machine(&rule_cases[c], &got, 2, 0.3f, factor, NULL);
        on_machine(&rule_cases[c], &expected, 2, 0.3f * *factor, NULL, NULL);
        assert_same_bits(&rule_cases[c], &got, &expected);
        close_block(&got);
        close_block(&expected);
    }
    cuda_backend_release(factor);
}

TEST(a_skipped_update_changes_nothing) {
    uint32_t *skip = cuda_backend_allocate(sizeof *skip);
    for (int c = 0; c < RULE_CASES; c++) {
        struct block got, before, expected;
        open_block(&got, 257);
        copy_block(&before, &got);
        copy_block(&expected, &got);
        *skip = 1;
        on_machine(&rule_cases[c], &got, 2, 0.3f, NULL, skip);
        assert_same_bits(&rule_cases[c], &got, &before);
        *skip = 0;
        on_machine(&rule_cases[c], &got, 2, 0.3f, NULL, skip);
        on_machine(&rule_cases[c], &expected, 2, 0.3f, NULL, NULL);
        assert_same_bits(&rule_cases[c], &got, &expected);
        close_block(&got);
        close_block(&before);
        close_block(&expected);
    }
    cuda_backend_release(skip);
}

TEST(an_unknown_form_is_refused) {
    struct cuda_kernels_update update = {.form = RULE_FORMS, .elements = 1};
    assert_int_not_equal(cuda_kernels_rule(NULL, &update), 0);
}

TEST(a_state_starts_with_one_value) {
    for (int i = 0; i < CUDA_SIZES; i++)
        for (int order = 0; order < CUDA_ORDERS; order++) {
            float *x = cuda_floats(cuda_sizes[i], 1, 1);
            cuda_set_order(order);
            assert_runs(cuda_kernels_fill(NULL, x, cuda_sizes[i], 0.1f));
            for (size_t k = 0; k < cuda_sizes[i]; k++)
                assert_true(x[k] == 0.1f);
            cuda_backend_release(x);
        }
}

static void check_scale(const float *before, size_t count, float scale,
                        const float *factor) {
    float *expected = cuda_copy(before, count);
    float whole = factor ? scale * *factor : scale;
    for (size_t i = 0; i < count; i++)
        expected[i] *= whole;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *x = cuda_copy(before, count);
        cuda_set_order(order);
        assert_runs(cuda_kernels_scale(NULL, x, count, scale, factor));
        cuda_assert_same_bits(x, expected, count);
        cuda_backend_release(x);
    }
    cuda_backend_release(expected);
}

TEST(scaling_has_the_cpus_bits) {
    float *factor = cuda_floats(1, 7, 1);
    for (int i = 0; i < CUDA_SIZES; i++) {
        float *x = cuda_floats(cuda_sizes[i], 1, 1);
        float *special = cuda_specials(cuda_sizes[i]);
        check_scale(x, cuda_sizes[i], 0.3f, NULL);
        check_scale(x, cuda_sizes[i], 0.3f, factor);
        check_scale(special, cuda_sizes[i], 0.3f, factor);
        check_scale(special, cuda_sizes[i], 0x1p-16f, NULL);
        cuda_backend_release(x);
        cuda_backend_release(special);
    }
    cuda_backend_release(factor);
}
