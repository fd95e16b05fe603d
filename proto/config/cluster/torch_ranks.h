/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of torchrun and compatible launchers: RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE. */
#ifndef CAPSTAN_TORCH_RANKS_H
#define CAPSTAN_TORCH_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* True if RANK and WORLD_SIZE are both set. */
bool torch_ranks_set(const struct cluster_input *input);

/* Reads them into CLUSTER, which is empty. Errors: ranks.h. */
enum status torch_ranks_read(struct cluster *cluster,
                             const struct cluster_input *input,
                             struct failure *why) MUST_CHECK;

#endif
