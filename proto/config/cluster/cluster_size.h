/* SPDX-License-Identifier: Apache-2.0 */
/* How many workers and ps a description says there are, for what describes one
 * run to several processes to be compared. */
#ifndef CAPSTAN_CLUSTER_SIZE_H
#define CAPSTAN_CLUSTER_SIZE_H

#include "proto/config/cluster/cluster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cluster_size {
    const char *source;  /* as in cluster.h; NULL: nothing is told at all */
    int64_t workers, ps; /* or CLUSTER_UNKNOWN */
};

/* What CLUSTER tells for certain: ranks tell both numbers; a list tells its
 * own, unless it may be a part (given by index, a ps that lists but itself) or
 * is empty, as no process needs to know all others. */
struct cluster_size cluster_size_known(const struct cluster *cluster);

/* Do both tell a number, and not the same one? */
bool cluster_size_differs(const struct cluster_size *a,
                          const struct cluster_size *b);

/* Writes "3 workers and 1 ps by torch"; what is not told is left out. */
void cluster_size_text(const struct cluster_size *known, char *text,
                       size_t size);

#endif
