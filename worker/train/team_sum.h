/* SPDX-License-Identifier: Apache-2.0 */
/* A step's gradients as one sum over a team's devices, parameter by parameter,
 * the last first, while the first layers' are still computed. */
#ifndef CAPSTAN_TEAM_SUM_H
#define CAPSTAN_TEAM_SUM_H

#include "worker/train/team.h"

/* The trainer's thread: the sums come into its arena, and SAID (may be NULL)
 * hears of each parameter. The marks of this turn's parameters count from
 * BEGIN. */
enum status team_sum_lead(struct team *team, uint64_t begin,
                          void (*said)(void *context, uint32_t parameter),
                          void *context, struct failure *why) MUST_CHECK;

/* MEMBER has failed in what all do together: others are not left waiting, and
 * what they fail with then is not the cause. */
void team_sum_fail(struct team_member *member);

/* The thread of MEMBER: its part of that, if the team gathers at all. Failed or
 * not, its mark is then at the end. */
void team_sum_follow(struct team_member *member, uint64_t begin);

#endif
