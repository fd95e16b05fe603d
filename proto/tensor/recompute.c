/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/recompute.h"

/* KEPT of HIDDEN outputs, the others in stretches between them, of which none
 * is longer than another by more than one. The last ones are the longer: that
 * of the model's end is still there when the backward pass begins. */
static void choose(struct recompute *plan, uint32_t hidden, uint32_t kept) {
    uint32_t rest = hidden - kept, at = 0;
    for (uint32_t i = 1; i <= kept; i++) {
        uint64_t before = (uint64_t)i * rest / (kept + 1);
        at = (uint32_t)before + i - 1;
        plan->kept[at] = true;
    }
    plan->kept[hidden] = true;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Shared rooms first, then those of the outputs that are kept. */
static void place(struct recompute *plan, const uint32_t *widths) {
    uint32_t length = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        plan->stretch[l] = l - length;
        length = plan->kept[l] ? 0 : length + 1;
        if (plan->kept[l])
            continue;
        uint32_t room = length - 1;
        plan->room[l] = room;
        plan->width[room] = larger(plan->width[room], widths[l]);
        plan->rooms = larger(plan->rooms, length);
    }
    for (uint32_t l = 0; l < plan->layers; l++)
        if (plan->kept[l]) {
            plan->room[l] = plan->rooms++;
            plan->width[plan->room[l]] = widths[l];
        }
}

void recompute_plan(struct recompute *plan, const struct job_model *model) {
    uint32_t hidden = model->num_layers - 2;
    bool all = !model->kept || model->kept >= hidden;
    *plan = (struct recompute){.layers = hidden + 1};
    choose(plan, hidden, all ? hidden : model->kept);
    place(plan, model->layers + 1);
}

uint64_t recompute_floats(const struct recompute *plan) {
    uint64_t floats = 0;
    for (uint32_t r = 0; r < plan->rooms; r++)
        floats += plan->width[r];
    return floats;
}
