/* SPDX-License-Identifier: Apache-2.0 */
/* Model specs of the trainers: model, data and devices. Rank 0's spec defines
 * the run. If another trainer differs before there is a plan, the run ends; a
 * later joiner that differs ends alone. */
#ifndef CAPSTAN_MODEL_SPEC_H
#define CAPSTAN_MODEL_SPEC_H

#include "chief/run.h"

#include <stdbool.h>

/* The trainer in SLOT sends its model spec. */
void model_spec_receive(struct run *run, struct roster_slot *slot,
                        const Capstan__ModelSpec *model_spec);

/* Have all members joined and all trainers sent their model spec? */
bool model_spec_is_complete(const struct run *run);

#endif
