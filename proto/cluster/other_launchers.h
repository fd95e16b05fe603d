/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers whose variables show that other processes exist, but do not
 * describe the cluster: they are no source, or too little is set. */
#ifndef CAPSTAN_OTHER_LAUNCHERS_H
#define CAPSTAN_OTHER_LAUNCHERS_H

#include "proto/cluster/cluster_input.h"

/* For a process without a source: fails if a variable gives a rank, a role or a
 * size above one, because each of the processes would train a model of its own.
 * Variables that mean one process, or that show only what a batch system
 * allocated, do not count. Errors: not_alone, rank_missing,
 * world_size_missing. */
enum status other_launchers_check(const struct cluster_input *input,
                                  struct failure *why) MUST_CHECK;

#endif
