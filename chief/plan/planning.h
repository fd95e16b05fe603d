/* SPDX-License-Identifier: Apache-2.0 */
/* From declarations to a plan: what is trained, which ps holds which block,
 * where the run starts. */
#ifndef CAPSTAN_PLANNING_H
#define CAPSTAN_PLANNING_H

#include "chief/run.h"

/* Plans and tells everyone once all are here and have declared; lets training
 * begin once all ps hold their blocks, and job.init's weights in them. */
void planning_step(struct run *run);

/* Sends the plan to a trainer that came later. */
void planning_send(struct run *run, struct roster_slot *slot);

/* A ps holds its blocks. When all do, job.init's weights are wanted in them,
 * unless the run resumes. */
void planning_receive_ready(struct run *run, struct roster_slot *slot,
                            const Capstan__Ready *ready);

#endif
