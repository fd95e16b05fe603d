/* SPDX-License-Identifier: Apache-2.0 */
/* One process of a struct cluster_run, which starts it and waits for it by the
 * functions of cluster_run.h. */
#ifndef CAPSTAN_CLUSTER_PROCESS_H
#define CAPSTAN_CLUSTER_PROCESS_H

#include "tests/cluster/cluster_run.h"

/* Kills PROCESS where it still runs, and frees it; returns the one that its run
 * has started before it, or NULL. */
struct cluster_process *cluster_process_end(struct cluster_process *process);

#endif
