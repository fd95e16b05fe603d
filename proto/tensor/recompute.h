/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers' outputs stay in memory from the forward pass to the backward
 * pass, and which are computed anew there (activation_checkpointing; Chen et
 * al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 3). Pure.
 */
#ifndef CAPSTAN_RECOMPUTE_H
#define CAPSTAN_RECOMPUTE_H

#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* Layer l computes output l, the last of which the loss reads. Outputs lie in
 * rooms of a number of floats a sample. One that is kept has a room of its own;
 * the others come in stretches of neighbours, one after the other in memory:
 * the first of each stretch share a room, the second of each, and so on. */
struct recompute {
    uint32_t layers, activations;
    uint32_t activation_of[JOB_MAX_LAYERS]; /* of output l */
    uint32_t width[JOB_MAX_LAYERS];         /* of a room, in floats a sample */
    bool kept[JOB_MAX_LAYERS];
    uint32_t segment[JOB_MAX_LAYERS]; /* the first output of l's stretch */
};

/* MODEL's way: all are kept when model.kept is 0, else that many beside the
 * last, as evenly as they go between the rest. Never more floats than keeping
 * all takes. */
void recompute_plan(struct recompute *plan, const struct job_model *model);

/* Floats a sample of all rooms. */
uint64_t recompute_floats(const struct recompute *plan);

#endif
