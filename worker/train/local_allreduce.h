/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of a step's gradients over a local group's devices, parameter by
 * parameter, the last first, while the first layers are still being
 * computed. */
#ifndef CAPSTAN_LOCAL_ALLREDUCE_H
#define CAPSTAN_LOCAL_ALLREDUCE_H

#include "worker/train/local_group.h"

/* The compute thread: puts the sums into its arena and calls ON_REDUCED (may
 * be NULL) for each parameter. Sequence numbers of this step's parameters count
 * from BEGIN. */
enum status local_allreduce_run(struct local_group *group, uint64_t begin,
                                void (*on_reduced)(void *context,
                                                   uint32_t parameter),
                                void *context, struct failure *why) MUST_CHECK;

/* MEMBER has failed in a joint operation: releases the waits of all others,
 * whose own errors are then not reported as the cause. */
void local_allreduce_abort(struct local_group_member *member);

/* MEMBER's thread: its part of local_allreduce_run, if the group gathers.
 * Whether it fails or not, `gathered` is then at the step's end. */
void local_allreduce_run_member(struct local_group_member *member,
                                uint64_t begin);

#endif
