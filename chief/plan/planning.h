/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the plan from the model specs: what is trained, which ps holds which
 * block, and where the run starts. */
#ifndef CAPSTAN_PLANNING_H
#define CAPSTAN_PLANNING_H

#include "chief/run.h"

/* Makes and sends the plan once all members have joined and all trainers have
 * sent their model spec. Starts training once all ps hold their blocks, with
 * the weights of job.init if set. */
void planning_step(struct run *run);

/* Sends the plan to a trainer that joined later. */
void planning_send(struct run *run, struct roster_slot *slot);

/* A ps holds its blocks. Once all do, job.init is loaded into them, unless the
 * run resumes. */
void planning_receive_ready(struct run *run, struct roster_slot *slot,
                            const Capstan__Ready *ready);

#endif
