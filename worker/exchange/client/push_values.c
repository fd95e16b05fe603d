/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/client/push_values.h"

#include "proto/plan/optimizer_group.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCKS = 3 };

struct group_state {
    bool given[CLOCKS]; /* by the clock mod CLOCKS */
    double values[CLOCKS][OPTIMIZER_VALUES];
    bool listed;
    Capstan__GroupValues message;
};

struct push_values {
    uint32_t num_groups;
    uint64_t clock;  /* of the newest values */
    unsigned header; /* the clock, mod CLOCKS, of the header that is listed */
    uint32_t num_listed;
    Capstan__GroupValues **list; /* [num_groups] */
    struct group_state groups[]; /* [num_groups] */
};

struct push_values *push_values_open(uint32_t num_groups) {
    struct push_values *all =
        calloc(1, sizeof *all + num_groups * sizeof *all->groups);
    if (!all)
        return NULL;
    all->num_groups = num_groups;
    all->list = calloc(num_groups + 1, sizeof *all->list);
    if (!all->list)
        push_values_close(&all);
    return all;
}

void push_values_close(struct push_values **where) {
    struct push_values *all = *where;
    *where = NULL;
    if (!all)
        return;
    free(all->list);
    free(all);
}

/* The values of the newest clock hold until CLOCK, of which they are, too. */
static void carry_over(struct push_values *all, uint64_t clock) {
    unsigned from = all->clock % CLOCKS;
    uint64_t between = clock - all->clock;
    for (uint64_t c = 0; c < between && c < CLOCKS; c++) {
        unsigned to = (clock - c) % CLOCKS;
        for (uint32_t g = 0; from != to && g < all->num_groups; g++) {
            struct group_state *group = &all->groups[g];
            group->given[to] = group->given[from];
            memcpy(group->values[to], group->values[from],
                   sizeof group->values[to]);
        }
    }
    all->clock = clock;
}

void push_values_set(struct push_values *all, uint64_t clock, uint32_t group,
                     const double *values) {
    if (clock != all->clock)
        carry_over(all, clock);
    all->groups[group].given[clock % CLOCKS] = true;
    memcpy(all->groups[group].values[clock % CLOCKS], values,
           sizeof all->groups[group].values[0]);
}

/* A push of a clock for which nothing was set has the newest values. */
void push_values_begin(struct push_values *all, uint64_t clock) {
    all->header = (clock > all->clock ? all->clock : clock) % CLOCKS;
    all->num_listed = 0;
    for (uint32_t g = 0; g < all->num_groups; g++)
        all->groups[g].listed = false;
}

void push_values_add(struct push_values *all, uint32_t group) {
    struct group_state *state = &all->groups[group];
    if (state->listed || !state->given[all->header])
        return;
    state->listed = true;
    capstan__group_values__init(&state->message);
    state->message.group = group;
    state->message.n_values = OPTIMIZER_VALUES;
    state->message.values = state->values[all->header];
    all->list[all->num_listed++] = &state->message;
}

size_t push_values_list(struct push_values *all, Capstan__GroupValues ***out) {
    *out = all->list;
    return all->num_listed;
}
