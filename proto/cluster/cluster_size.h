/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of workers and ps in a description, so that processes of one run
 * can be compared. */
#ifndef CAPSTAN_CLUSTER_SIZE_H
#define CAPSTAN_CLUSTER_SIZE_H

#include "proto/cluster/cluster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cluster_size {
    const char *source;  /* as in cluster.h; NULL: nothing is known */
    int64_t workers, ps; /* or CLUSTER_UNKNOWN */
};

/* The numbers that CLUSTER gives for certain. Ranks give both. A list gives its
 * own number, unless it may be incomplete (given by index, or a ps that lists
 * only itself) or is empty. */
struct cluster_size cluster_size_known(const struct cluster *cluster);

/* True if both give a number and the numbers differ. */
bool cluster_size_differs(const struct cluster_size *a,
                          const struct cluster_size *b);

/* Writes "3 workers and 1 ps by torch"; unknown numbers are left out. */
void cluster_size_text(const struct cluster_size *known, char *text,
                       size_t size);

#endif
