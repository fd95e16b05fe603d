/* SPDX-License-Identifier: Apache-2.0 */
/* A unit of a holder: a block of parameters, or a partition of tables.
 * Versions, messages and snapshots treat them alike; what differs stands in one
 * table of functions for each kind. One thread at a time works on a unit. */
#ifndef CAPSTAN_UNIT_H
#define CAPSTAN_UNIT_H

#include "core/store/checkpoint_reader.h"
#include "core/tensor/optimizer.h"
#include "proto/holder/snapshots.h"

#include <stdbool.h>
#include <stdint.h>

struct row_part;

/* What trainers have pushed in one round, in rank order. */
struct unit_round {
    const void *const *gradients; /* [num_parts], of a block; */
    const struct row_part *parts; /* of a partition */
    unsigned num_parts;
    const struct row_part *assigned; /* [num_assigned]: rows of a partition that
                                        are set before gradients are applied */
    unsigned num_assigned;
    uint64_t step;      /* the unit's update number, from 1 */
    uint64_t rule_step; /* of them those to which some rank brought bytes */
    double rate;        /* AVERAGED: the share by which values move */
    float scale;        /* of the sum of the gradients */
    const struct optimizer *optimizer; /* with the slots of the block's, or of
                                          tables that name none; NULL: that
                                          one */
    /* Of a block. */
    enum job_wire wire; /* encoding of the gradients */
    bool checked;       /* a sum of gradients that is not finite is a failure */
    /* Of a partition. */
    double factor; /* of the groups' own rates; `rate` is of the run's */
};

/* A snapshot of a unit. */
struct unit_cut {
    uint64_t id;
    uint64_t step; /* the unit's last update */
    Capstan__Snapshot__Form form;
};

/* Unit U is the holder's U-th of its kind. */
struct unit_table {
    /* Applies ROUND. If there is no memory for a copy, or the gradient of a
     * block is NaN or infinite, the failure says so. */
    enum status (*update)(void *holder, uint32_t u,
                          const struct unit_round *round,
                          struct failure *why) MUST_CHECK;
    /* The sum of the squares of ROUND's scaled sum of gradients, added in a
     * fixed order; NaN without memory. */
    double (*square_sum)(void *holder, uint32_t u,
                         const struct unit_round *round);
    /* What a checkpoint of the same layout and optimizers has of it. */
    enum status (*restore)(void *holder, uint32_t u,
                           struct checkpoint_reader *reader,
                           struct failure *why) MUST_CHECK;
    /* Sets in BLOCK views of its tensors, or of its rows: those of a delta are
     * what changed since the unit's base, if it has one, and those of a copy
     * what changed since the copy that is its base. */
    void (*cut)(void *holder, uint32_t u, const struct unit_cut *cut,
                struct snapshots_block *block);
};

/* All borrowed. */
struct unit {
    const struct unit_table *table;
    void *holder;
    uint32_t u;
};

#endif
