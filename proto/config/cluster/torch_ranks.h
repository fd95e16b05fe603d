/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of torchrun and of whoever sets what it sets: RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE. */
#ifndef CAPSTAN_TORCH_RANKS_H
#define CAPSTAN_TORCH_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* True when RANK and WORLD_SIZE are both there: the others alone mean nothing.
 */
bool torch_ranks_set(const struct cluster_input *input);

/* Reads them into CLUSTER, which is empty. Errors: ranks.h. */
enum status torch_ranks_read(struct cluster *cluster,
                             const struct cluster_input *input,
                             struct failure *why) MUST_CHECK;

#endif
