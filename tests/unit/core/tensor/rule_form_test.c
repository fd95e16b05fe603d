/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/rule_form.h"

#include "core/tensor/rule.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/test.h"

#include <math.h>

enum { CASES = sizeof rule_cases / sizeof *rule_cases };

TEST(every_form_belongs_to_a_rule) {
    bool seen[RULE_FORMS] = {false};
    for (int c = 0; c < CASES; c++)
        seen[rule_form_of(&rule_cases[c].rule)] = true;
    for (int form = 0; form < RULE_FORMS; form++)
        assert_true(seen[form]);
    /* A momentum that may rise above 0 needs its buffer before. */
    struct optimizer later = {.type = OPTIMIZER_SGD, .keeps_momentum = true};
    assert_int_equal(rule_form_of(&later), RULE_SGD_MOMENTUM);
}

/* Kingma and Ba 2015, algorithm 1, in double. */
TEST(adam_constants_correct_the_bias_of_the_averages) {
    struct optimizer adam = {
        .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    for (uint64_t step = 1; step < 2000; step *= 3) {
        struct rule_update update = {.step = step, .rate = 0.01, .scale = 1};
        struct rule_constants c = rule_form_constants(&adam, &update);
        double rate = 0.01 / (1 - pow(0.9, (double)step));
        double root = 1 / sqrt(1 - pow(0.999, (double)step));
        assert_true(c.rate == (float)rate);
        assert_true(c.root_scale == (float)root);
        assert_true(c.weight_keep == 1);
    }
}

TEST(maximize_negates_the_gradient) {
    struct optimizer sgd = {.type = OPTIMIZER_SGD, .maximize = true};
    struct rule_update update = {.step = 1, .rate = 0.1, .scale = 0.5f};
    assert_true(rule_form_constants(&sgd, &update).scale == -0.5f);
}
