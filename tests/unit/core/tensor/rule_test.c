/* SPDX-License-Identifier: Apache-2.0 */
/* The rules beside an oracle in double precision (tests/lib/rule_oracle.h) over
 * many rounds. */
#include "core/tensor/rule.h"

#include "core/tensor/philox.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/rule_oracle.h"
#include "tests/lib/test.h"

#include <math.h>

enum { ELEMENTS = 300, ROUNDS = 50, TRAINERS = 3 };

static const struct rule_loops *best_loops(void) {
    size_t count;
    return rule_variants(&count)[0];
}

/* A block under test, updated in place, and its oracle. */
struct pair {
    float weights[ELEMENTS], slots[RULE_MAX_SLOTS][ELEMENTS];
    struct rule_oracle exact[ELEMENTS];
};

static void start(struct pair *pair, const struct optimizer *rule) {
    memset(pair, 0, sizeof *pair);
    philox_uniform(1, 0, 0, 1, pair->weights, ELEMENTS);
    for (unsigned slot = 0; slot < rule_slots(rule); slot++)
        for (size_t i = 0; i < ELEMENTS; i++)
            pair->slots[slot][i] = rule_slot_start(rule, slot);
    for (size_t i = 0; i < ELEMENTS; i++) {
        pair->exact[i].weight = pair->weights[i];
        pair->exact[i].sum = rule->initial_accumulator_value;
    }
}

static void step_block(struct pair *pair, const struct rule_case *one,
                       uint64_t step, const void *const *gradients) {
    struct rule_update update = {
        .step = step,
        .rate = one->rate,
        .scale = 1.0f / TRAINERS,
        .elements = ELEMENTS,
        .num_gradients = TRAINERS,
        .gradients = gradients,
        .weights = pair->weights,
        .weights_out = pair->weights,
    };
    for (unsigned slot = 0; slot < rule_slots(&one->rule); slot++)
        update.state[slot] = update.state_out[slot] = pair->slots[slot];
    rule_apply(best_loops(), &one->rule, &update);
}

/* One round with fresh gradients on both sides. */
static void step_both(struct pair *pair, const struct rule_case *one,
                      uint64_t step) {
    float gradients[TRAINERS][ELEMENTS];
    const void *messages[TRAINERS];
    for (unsigned k = 0; k < TRAINERS; k++) {
        philox_uniform(2, step * TRAINERS + k, 0, 1, gradients[k], ELEMENTS);
        messages[k] = gradients[k];
    }
    step_block(pair, one, step, messages);
    for (size_t i = 0; i < ELEMENTS; i++) {
        double mean = 0;
        for (unsigned k = 0; k < TRAINERS; k++)
            mean += gradients[k][i] / (double)TRAINERS;
        rule_oracle_step(&one->rule, one->rate, step, mean, &pair->exact[i]);
    }
}

static void check_weights(const struct pair *pair, const char *name) {
    double largest = 0;
    for (size_t i = 0; i < ELEMENTS; i++)
        largest = fmax(largest, fabs(pair->exact[i].weight));
    for (size_t i = 0; i < ELEMENTS; i++) {
        double difference = fabs(pair->weights[i] - pair->exact[i].weight);
        if (!(difference <= 1e-5 * largest))
            fail_msg("%s: weight %zu is off by %g, the largest is %g", name, i,
                     difference, largest);
    }
}

TEST(fifty_rounds_agree_with_a_double_oracle) {
    for (int c = 0; c < RULE_CASES; c++) {
        struct pair pair;
        start(&pair, &rule_cases[c].rule);
        for (uint64_t step = 1; step <= ROUNDS; step++)
            step_both(&pair, &rule_cases[c], step);
        check_weights(&pair, rule_cases[c].name);
    }
}

/* TensorFlow's own expectations, of its Ftrl test (ftrl_test.py): two pairs of
 * weights with constant gradients, rate 3, accumulator from 0.1. */
static const struct {
    double l1, l2;
    int rounds;
    float first[4], expected[4];
} published_ftrl[] = {
    {0,
     0,
     3,
     {0, 0, 0, 0},
     {-2.60260963f, -4.29698515f, -0.28432083f, -0.56694895f}},
    {0,
     0,
     3,
     {1, 2, 4, 3},
     {-2.55607247f, -3.98729396f, -0.28232238f, -0.56096673f}},
    {0.001,
     0,
     10,
     {1, 2, 4, 3},
     {-7.66718769f, -10.91273689f, -0.93460727f, -1.86147261f}},
    {0.001,
     2,
     10,
     {1, 2, 4, 3},
     {-0.24059935f, -0.46829352f, -0.02406147f, -0.04830509f}},
};

TEST(ftrl_gives_the_values_published_by_tensorflow) {
    const float gradient[4] = {0.1f, 0.2f, 0.01f, 0.02f};
    const void *gradients[] = {gradient};
    for (size_t c = 0; c < sizeof published_ftrl / sizeof *published_ftrl;
         c++) {
        struct optimizer ftrl = {.type = OPTIMIZER_FTRL,
                                 .learning_rate_power = -0.5,
                                 .l1 = published_ftrl[c].l1,
                                 .l2 = published_ftrl[c].l2};
        float weights[4], accum[4] = {0.1f, 0.1f, 0.1f, 0.1f}, linear[4] = {0};
        memcpy(weights, published_ftrl[c].first, sizeof weights);
        struct rule_update update = {.rate = 3,
                                     .scale = 1,
                                     .elements = 4,
                                     .num_gradients = 1,
                                     .gradients = gradients,
                                     .weights = weights,
                                     .weights_out = weights,
                                     .state = {accum, linear},
                                     .state_out = {accum, linear}};
        for (int round = 0; round < published_ftrl[c].rounds; round++) {
            update.step++;
            rule_apply(best_loops(), &ftrl, &update);
        }
        for (int i = 0; i < 4; i++)
            if (!(fabsf(weights[i] - published_ftrl[c].expected[i]) <=
                  1e-6f * fmaxf(1, fabsf(weights[i]))))
                fail_msg("case %zu: %.9g", c, (double)weights[i]);
    }
}

static void applied_unchanged(const struct optimizer *rule, double rate,
                              unsigned num_gradients) {
    float gradient[ELEMENTS], in[1 + RULE_MAX_SLOTS][ELEMENTS],
        out[1 + RULE_MAX_SLOTS][ELEMENTS];
    philox_uniform(3, 0, 0, 1, gradient, ELEMENTS);
    philox_uniform(3, 1, 0, 1, in[0], sizeof in / sizeof(float));
    const void *gradients[] = {gradient};
    struct rule_update update = {.step = 1,
                                 .rate = rate,
                                 .scale = 1,
                                 .elements = ELEMENTS,
                                 .num_gradients = num_gradients,
                                 .gradients = gradients,
                                 .weights = in[0],
                                 .weights_out = out[0]};
    unsigned slots = rule_slots(rule);
    for (unsigned slot = 0; slot < slots; slot++) {
        update.state[slot] = in[1 + slot];
        update.state_out[slot] = out[1 + slot];
    }
    rule_apply(best_loops(), rule, &update);
    assert_memory_equal(out, in, (1 + slots) * sizeof in[0]);
}

TEST(no_gradient_leaves_weights_and_state_unchanged) {
    for (int c = 0; c < RULE_CASES; c++)
        applied_unchanged(&rule_cases[c].rule, rule_cases[c].rate, 0);
}

TEST(ftrl_at_rate_0_leaves_weights_and_state_unchanged) {
    for (int c = 0; c < RULE_CASES; c++)
        if (rule_cases[c].rule.type == OPTIMIZER_FTRL)
            applied_unchanged(&rule_cases[c].rule, 0, 1);
}

TEST(a_variance_rounded_below_0_is_0) {
    struct rule_case centered = {
        "centered",
        0.001,
        {.type = OPTIMIZER_RMSPROP, .alpha = 0.5, .eps = 1, .centered = true}};
    struct pair pair;
    start(&pair, &centered.rule);
    float gradient[ELEMENTS];
    for (size_t i = 0; i < ELEMENTS; i++)
        gradient[i] = 0.1f + (float)i;
    const void *gradients[TRAINERS] = {gradient, gradient, gradient};
    for (uint64_t step = 1; step <= 200; step++)
        step_block(&pair, &centered, step, gradients);
    for (size_t i = 0; i < ELEMENTS; i++)
        assert_true(isfinite(pair.weights[i]));
}

TEST(slots_are_named_as_in_torch_and_tensorflow) {
    struct optimizer rule = {.type = OPTIMIZER_SGD};
    assert_int_equal(rule_slots(&rule), 0);
    assert_null(rule_slot_name(&rule, 0));
    rule.momentum = 0.9;
    assert_int_equal(rule_slots(&rule), 1);
    assert_string_equal(rule_slot_name(&rule, 0), "momentum_buffer");
    rule.type = OPTIMIZER_RMSPROP;
    rule.centered = true;
    assert_int_equal(rule_slots(&rule), 3);
    assert_string_equal(rule_slot_name(&rule, 0), "square_avg");
    assert_string_equal(rule_slot_name(&rule, 1), "momentum_buffer");
    assert_string_equal(rule_slot_name(&rule, 2), "grad_avg");
    rule.type = OPTIMIZER_ADAMW;
    rule.amsgrad = true;
    assert_int_equal(rule_slots(&rule), 3);
    assert_string_equal(rule_slot_name(&rule, 2), "max_exp_avg_sq");
    assert_null(rule_slot_name(&rule, 3));
    rule.type = OPTIMIZER_FTRL;
    rule.initial_accumulator_value = 0.1;
    assert_string_equal(rule_slot_name(&rule, 1), "linear");
    assert_true(rule_slot_start(&rule, 0) == 0.1f);
    assert_true(rule_slot_start(&rule, 1) == 0);
}

TEST(square_sums_agree_with_double) {
    enum { COUNT = 2 * RULE_PIECE + 1001 };
    float *values = test_malloc(2 * COUNT * sizeof *values);
    philox_uniform(4, 0, 0, 3, values, 2 * COUNT);
    const void *gradients[] = {values, values + COUNT};
    for (unsigned n = 1; n <= 2; n++) {
        double pieces[3], exact[3] = {0};
        struct rule_update update = {.gradients = gradients,
                                     .num_gradients = n,
                                     .scale = 0.5f,
                                     .elements = COUNT};
        rule_square_sums(best_loops(), &update, pieces);
        for (size_t i = 0; i < COUNT; i++) {
            double sum = values[i] + (n == 2 ? (double)values[COUNT + i] : 0);
            exact[i / RULE_PIECE] += sum * sum / 4;
        }
        for (int p = 0; p < 3; p++)
            assert_true(fabs(pieces[p] - exact[p]) <= 1e-7 * exact[p]);
    }
    test_free(values);
}

TEST(a_variant_is_selected_by_name) {
    static const char *const all[] = {"plain", "avx2", "avx512"};
    const struct rule_loops *loops;
    size_t count;
    const struct rule_loops *const *here = rule_variants(&count);
    assert_ok(rule_choose(&loops, NULL, &failure));
    assert_ptr_equal(loops, here[0]);
    assert_ok(rule_choose(&loops, "", &failure));
    assert_ptr_equal(loops, here[0]);
    for (size_t v = 0; v < 3; v++) {
        enum status status = rule_choose(&loops, all[v], &failure);
        assert_int_equal(status, v < count ? STATUS_OK : STATUS_CONFIG);
        if (!status)
            assert_string_equal(rule_variant_name(loops), all[v]);
        else
            assert_contains(failure.text, "does not have; it has plain");
    }
    assert_error(rule_choose(&loops, "AVX2", &failure), FAILURE_BAD_VARIABLE);
    assert_string_equal(failure.text,
                        "CAPSTAN_CPU is 'AVX2'; allowed are plain, "
                        "avx2, avx512, or unset for the best that "
                        "the processor has");
}

/* The rate is the share that the mean takes. */
TEST(an_average_moves_towards_the_mean) {
    static const float rates[] = {0, 0.25f, 1};
    const float a[] = {1, 2, 3}, b[] = {3, 6, 9}, before[] = {8, 8, 8};
    const void *const gradients[] = {a, b};
    for (int r = 0; r < 3; r++) {
        float after[3];
        struct rule_update update = {.rate = rates[r],
                                     .scale = 0.5f,
                                     .elements = 3,
                                     .num_gradients = 2,
                                     .gradients = gradients,
                                     .weights = before,
                                     .weights_out = after};
        rule_average(best_loops(), &update);
        for (int i = 0; i < 3; i++)
            assert_true(after[i] ==
                        (1 - rates[r]) * 8 + rates[r] * (a[i] + b[i]) / 2);
        update.num_gradients = 0;
        rule_average(best_loops(), &update);
        assert_memory_equal(after, before, sizeof after);
    }
}
