/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/recompute.h"

/* Keeps KEPT of HIDDEN outputs; the other layers form segments whose lengths
 * differ by at most one. The last segments are the longer ones, because the
 * last one's outputs are still in memory when the backward pass begins. */
static void choose_kept(struct recompute *plan, uint32_t hidden,
                        uint32_t kept) {
    uint32_t rest = hidden - kept, at = 0;
    for (uint32_t i = 1; i <= kept; i++) {
        uint64_t before = (uint64_t)i * rest / (kept + 1);
        at = (uint32_t)before + i - 1;
        plan->kept[at] = true;
    }
    plan->kept[hidden] = true;
}

static uint32_t recompute_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Shared buffers first, then the buffers of kept outputs. */
static void assign_activations(struct recompute *plan, const uint32_t *widths) {
    uint32_t length = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        plan->segment[l] = l - length;
        length = plan->kept[l] ? 0 : length + 1;
        if (plan->kept[l])
            continue;
        uint32_t activation_of = length - 1;
        plan->activation_of[l] = activation_of;
        plan->width[activation_of] =
            recompute_larger(plan->width[activation_of], widths[l]);
        plan->activations = recompute_larger(plan->activations, length);
    }
    for (uint32_t l = 0; l < plan->layers; l++)
        if (plan->kept[l]) {
            plan->activation_of[l] = plan->activations++;
            plan->width[plan->activation_of[l]] = widths[l];
        }
}

void recompute_plan(struct recompute *plan, const struct job_widths *widths,
                    uint32_t kept) {
    uint32_t hidden = widths->count - 2;
    bool all = !kept || kept >= hidden;
    *plan = (struct recompute){.layers = hidden + 1};
    choose_kept(plan, hidden, all ? hidden : kept);
    assign_activations(plan, widths->items + 1);
}

uint64_t recompute_floats(const struct recompute *plan) {
    uint64_t floats = 0;
    for (uint32_t r = 0; r < plan->activations; r++)
        floats += plan->width[r];
    return floats;
}
