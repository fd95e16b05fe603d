/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers declare: the model that they train, the data that they read,
 * the devices that they compute on. Rank 0's word counts, and the others agree
 * with it or the run ends; who joins later agrees, or ends alone. */
#ifndef CAPSTAN_MODEL_SPEC_H
#define CAPSTAN_MODEL_SPEC_H

#include "chief/run.h"

#include <stdbool.h>

/* The trainer in SLOT declares. */
void model_spec_receive(struct run *run, struct roster_slot *slot,
                        const Capstan__ModelSpec *model_spec);

/* Are all here, and have all trainers declared? */
bool model_spec_is_complete(const struct run *run);

#endif
