/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/mlp.h"

#include "tests/lib/test.h"

static uint64_t all_floats(const struct job_widths *widths) {
    uint64_t floats = 0;
    for (uint32_t l = 1; l < widths->count; l++)
        floats += widths->items[l];
    return floats;
}

static struct job_widths random_widths(unsigned *seed) {
    struct job_widths widths = {.count = 2 + rand_r(seed) % 63};
    for (uint32_t l = 0; l < widths.count; l++)
        widths.items[l] = 1 + rand_r(seed) % 1000;
    return widths;
}

/* Whoever writes output l into its room may not write over one that is kept, or
 * over one of its own stretch. */
static void expect_apart(const struct recompute *plan, uint32_t l) {
    for (uint32_t k = 0; k < plan->layers; k++)
        if (k != l && (plan->kept[l] || plan->kept[k] ||
                       plan->segment[k] == plan->segment[l]))
            assert_int_not_equal(plan->activation_of[k],
                                 plan->activation_of[l]);
}

static void expect_segment(const struct recompute *plan, uint32_t l) {
    assert_true(plan->segment[l] <= l);
    assert_true(!plan->segment[l] || plan->kept[plan->segment[l] - 1]);
    for (uint32_t k = plan->segment[l]; k < l; k++)
        assert_false(plan->kept[k]);
}

TEST(every_output_is_kept_or_recomputable) {
    unsigned seed = 7;
    for (int i = 0; i < 2000; i++) {
        struct job_widths widths = random_widths(&seed);
        struct recompute plan;
        uint32_t kept = 0, hidden = widths.count - 2;
        uint32_t asked = rand_r(&seed) % (widths.count + 2);
        recompute_plan(&plan, &widths, asked);
        assert_int_equal(plan.layers, hidden + 1);
        assert_true(plan.kept[hidden]);
        for (uint32_t l = 0; l < plan.layers; l++) {
            assert_true(plan.activation_of[l] < plan.activations);
            assert_true(plan.width[plan.activation_of[l]] >=
                        widths.items[l + 1]);
            expect_apart(&plan, l);
            expect_segment(&plan, l);
            kept += plan.kept[l];
        }
        bool all = !asked || asked >= hidden;
        assert_int_equal(kept, 1 + (all ? hidden : asked));
        assert_true(recompute_floats(&plan) <= all_floats(&widths));
        if (all)
            assert_int_equal(recompute_floats(&plan), all_floats(&widths));
    }
}

TEST(kept_outputs_are_spread_evenly) {
    struct job_widths widths = {.count = 18};
    struct recompute plan;
    for (uint32_t l = 0; l < widths.count; l++)
        widths.items[l] = 100;
    recompute_plan(&plan, &widths, 3);
    /* 16 hidden: 3 + k + 3 + k + 3 + k + 4 */
    assert_true(plan.kept[3] && plan.kept[7] && plan.kept[11]);
    assert_int_equal(plan.activations, 1 + 3 + 4);
    assert_int_equal(recompute_floats(&plan), 800);
}
