/* SPDX-License-Identifier: Apache-2.0 */
/* The trailer is one vector of floats. Counts are exact in them. A double is
 * sent as the float nearest to it and the float nearest to the rest, which
 * together have 48 bits; ranks other than 0 add zeros. Assigned values may have
 * any bits, so they are broadcast. */
#include "worker/exchange/allreduce/round_trailer.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRAILER_SAVE,
    TRAILER_OVERFLOW,
    TRAILER_FIRST /* then for each group, then for each parameter: */
};
enum { GROUP_FLOATS = 2 * OPTIMIZER_VALUES };
enum { COUNTS, HAS_BYTES, PARAMETER_FLOATS };

/* What the compute thread says of a round. */
struct own_part {
    uint8_t *kinds;  /* [num_parameters], enum contribution */
    float *assigned; /* [assigned_floats] */
    double (*values)[OPTIMIZER_VALUES]; /* [num_groups] */
    bool has_values;
};

struct round_trailer {
    const struct layout *layout;
    const struct optimizer_group *plan_groups;
    struct optimizer_group *groups; /* [num_groups], of the round */
    uint32_t num_groups;
    size_t *assigned_at; /* [num_parameters] */
    size_t assigned_floats, floats;
    float *sums, *assigned; /* of the round */
    struct own_part own[2]; /* by the round's parity */
};

static bool open_own(const struct round_trailer *trailer,
                     struct own_part *own) {
    own->kinds = calloc(trailer->layout->num_parameters, sizeof *own->kinds);
    own->assigned = calloc(trailer->assigned_floats + 1, sizeof *own->assigned);
    own->values = calloc(trailer->num_groups + 1, sizeof *own->values);
    return own->kinds && own->assigned && own->values;
}

static size_t place_assigned(struct round_trailer *trailer) {
    size_t floats = 0;
    for (uint32_t p = 0; p < trailer->layout->num_parameters; p++) {
        const struct parameter *parameter = &trailer->layout->parameters[p];
        trailer->assigned_at[p] = floats;
        if (parameter->kind == PARAMETER_ASSIGNED)
            floats += parameter->elements;
    }
    return floats;
}

struct round_trailer *round_trailer_open(const struct layout *layout,
                                         const struct optimizer_group *groups,
                                         uint32_t num_groups) {
    struct round_trailer *trailer = calloc(1, sizeof *trailer);
    if (!trailer)
        return NULL;
    trailer->layout = layout;
    trailer->plan_groups = groups;
    trailer->num_groups = num_groups;
    trailer->floats = TRAILER_FIRST + num_groups * GROUP_FLOATS +
                      (size_t)layout->num_parameters * PARAMETER_FLOATS;
    trailer->assigned_at =
        calloc(layout->num_parameters, sizeof *trailer->assigned_at);
    if (trailer->assigned_at)
        trailer->assigned_floats = place_assigned(trailer);
    trailer->groups = calloc(num_groups + 1, sizeof *trailer->groups);
    trailer->sums = calloc(trailer->floats, sizeof *trailer->sums);
    trailer->assigned =
        calloc(trailer->assigned_floats + 1, sizeof *trailer->assigned);
    if (!trailer->assigned_at || !trailer->groups || !trailer->sums ||
        !trailer->assigned || !open_own(trailer, &trailer->own[0]) ||
        !open_own(trailer, &trailer->own[1]))
        round_trailer_close(&trailer);
    return trailer;
}

void round_trailer_close(struct round_trailer **where) {
    struct round_trailer *trailer = *where;
    *where = NULL;
    if (!trailer)
        return;
    for (unsigned i = 0; i < 2; i++) {
        free(trailer->own[i].kinds);
        free(trailer->own[i].assigned);
        free(trailer->own[i].values);
    }
    free(trailer->assigned_at);
    free(trailer->groups);
    free(trailer->sums);
    free(trailer->assigned);
    free(trailer);
}

void round_trailer_contribute(struct round_trailer *trailer, uint64_t round,
                              uint32_t parameter, enum contribution kind,
                              const void *values) {
    struct own_part *own = &trailer->own[round & 1];
    own->kinds[parameter] = (uint8_t)kind;
    if (values)
        memcpy(own->assigned + trailer->assigned_at[parameter], values,
               trailer->layout->parameters[parameter].elements *
                   sizeof *own->assigned);
}

/* Values that are not set again in the round after are copied there by the
 * caller, who sets all or none. */
void round_trailer_set(struct round_trailer *trailer, uint64_t round,
                       uint32_t group, const double *values) {
    struct own_part *own = &trailer->own[round & 1];
    own->has_values = true;
    memcpy(own->values[group], values, sizeof own->values[group]);
}

static float *parameter_floats(const struct round_trailer *trailer,
                               uint32_t parameter) {
    return trailer->sums + TRAILER_FIRST + trailer->num_groups * GROUP_FLOATS +
           (size_t)parameter * PARAMETER_FLOATS;
}

/* Rank 0's values; they are the plan's until it has set some. */
static void write_values(struct round_trailer *trailer,
                         const struct own_part *own) {
    float *to = trailer->sums + TRAILER_FIRST;
    for (uint32_t g = 0; g < trailer->num_groups; g++) {
        double values[OPTIMIZER_VALUES];
        optimizer_group_get(&trailer->plan_groups[g], values);
        if (own->has_values)
            memcpy(values, own->values[g], sizeof values);
        for (unsigned v = 0; v < OPTIMIZER_VALUES; v++) {
            *to++ = (float)values[v];
            *to++ = (float)(values[v] - (double)(float)values[v]);
        }
    }
}

static void read_values(struct round_trailer *trailer) {
    const float *from = trailer->sums + TRAILER_FIRST;
    for (uint32_t g = 0; g < trailer->num_groups; g++) {
        double values[OPTIMIZER_VALUES];
        for (unsigned v = 0; v < OPTIMIZER_VALUES; v++, from += 2)
            values[v] = (double)from[0] + (double)from[1];
        trailer->groups[g] = trailer->plan_groups[g];
        optimizer_group_put(&trailer->groups[g], values);
    }
}

static void write_own(struct round_trailer *trailer, const struct own_part *own,
                      bool is_rank_0, bool request_save) {
    memset(trailer->sums, 0, trailer->floats * sizeof *trailer->sums);
    trailer->sums[TRAILER_SAVE] = request_save;
    if (is_rank_0)
        write_values(trailer, own);
    for (uint32_t p = 0; p < trailer->layout->num_parameters; p++) {
        float *floats = parameter_floats(trailer, p);
        floats[HAS_BYTES] = own->kinds[p] == CONTRIBUTION_FULL;
        floats[COUNTS] = own->kinds[p] == CONTRIBUTION_FULL ||
                         own->kinds[p] == CONTRIBUTION_ZERO;
        if (own->kinds[p] == CONTRIBUTION_OVERFLOWED)
            trailer->sums[TRAILER_OVERFLOW] = 1;
    }
}

enum status round_trailer_sum(struct round_trailer *trailer,
                              struct group *ranks, uint64_t round,
                              bool request_save, struct failure *why) {
    const struct own_part *own = &trailer->own[round & 1];
    bool is_rank_0 = ranks->rank == 0;
    write_own(trailer, own, is_rank_0, request_save);
    enum status status =
        group_all_reduce(ranks, trailer->sums, trailer->floats, why);
    if (status || !trailer->assigned_floats) {
        read_values(trailer);
        return status;
    }
    read_values(trailer);
    if (is_rank_0)
        memcpy(trailer->assigned, own->assigned,
               trailer->assigned_floats * sizeof *trailer->assigned);
    return group_broadcast(ranks, trailer->assigned, trailer->assigned_floats,
                           0, why);
}

bool round_trailer_is_saved(const struct round_trailer *trailer) {
    return trailer->sums[TRAILER_SAVE] > 0;
}

bool round_trailer_overflowed(const struct round_trailer *trailer) {
    return trailer->sums[TRAILER_OVERFLOW] > 0;
}

bool round_trailer_has_bytes(const struct round_trailer *trailer,
                             uint32_t parameter) {
    return parameter_floats(trailer, parameter)[HAS_BYTES] > 0;
}

float round_trailer_scale(const struct round_trailer *trailer,
                          uint32_t parameter) {
    float counts = parameter_floats(trailer, parameter)[COUNTS];
    return counts > 0 ? 1.0f / counts : 1.0f;
}

const float *round_trailer_values(const struct round_trailer *trailer,
                                  uint32_t parameter) {
    return trailer->assigned + trailer->assigned_at[parameter];
}

const struct optimizer_group *round_trailer_group(
    const struct round_trailer *trailer, uint32_t parameter) {
    uint32_t group = trailer->layout->parameters[parameter].group;
    return group < trailer->num_groups ? &trailer->groups[group] : NULL;
}

const struct optimizer_group *round_trailer_first_group(
    const struct round_trailer *trailer) {
    return trailer->num_groups ? &trailer->groups[0] : NULL;
}
