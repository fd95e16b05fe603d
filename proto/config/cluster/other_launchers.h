/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers that are no source of a cluster description, though they tell a
 * process that there are others. */
#ifndef CAPSTAN_OTHER_LAUNCHERS_H
#define CAPSTAN_OTHER_LAUNCHERS_H

#include "proto/config/cluster/cluster_input.h"

/* For a process that no source describes: fails when a variable tells a rank, a
 * role or a size above one all the same, as each of the processes started would
 * else train a model of its own. What says that there is one process, and what
 * a batch system allocates, is no such variable. Errors: not_alone,
 * rank_missing, world_size_missing. */
enum status other_launchers_check(const struct cluster_input *input,
                                  struct failure *why) MUST_CHECK;

#endif
