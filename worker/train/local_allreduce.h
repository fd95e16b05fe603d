/* SPDX-License-Identifier: Apache-2.0 */
/* A step's gradients as one sum over a team's devices, parameter by parameter,
 * the last first, while the first layers' are still computed. */
#ifndef CAPSTAN_LOCAL_ALLREDUCE_H
#define CAPSTAN_LOCAL_ALLREDUCE_H

#include "worker/train/local_group.h"

/* The trainer's thread: the sums come into its arena, and SAID (may be NULL)
 * hears of each parameter. The marks of this turn's parameters count from
 * BEGIN. */
enum status local_allreduce_run(struct local_group *local_group, uint64_t begin,
                                void (*on_reduced)(void *context,
                                                   uint32_t parameter),
                                void *context, struct failure *why) MUST_CHECK;

/* MEMBER has failed in what all do together: others are not left waiting, and
 * what they fail with then is not the cause. */
void local_allreduce_abort(struct local_group_member *member);

/* The thread of MEMBER: its part of that, if the team gathers at all. Failed or
 * not, its mark is then at the end. */
void local_allreduce_run_member(struct local_group_member *member,
                                uint64_t begin);

#endif
