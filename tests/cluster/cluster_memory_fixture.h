/* SPDX-License-Identifier: Apache-2.0 */
/* A chief that coordinates, workers and perhaps a ps, whose memory is looked
 * at.
 */
#ifndef CAPSTAN_CLUSTER_MEMORY_FIXTURE_H
#define CAPSTAN_CLUSTER_MEMORY_FIXTURE_H

#include "tests/cluster/cluster_run.h"

enum { CLUSTER_MEMORY_FIXTURE_WORKERS = 2 };

struct cluster_memory_fixture {
    struct cluster_process *chief, *ps,
        *workers[CLUSTER_MEMORY_FIXTURE_WORKERS];
};

/* Describes a cluster with a ps and starts that first, alone: it listens, and
 * waits for its chief. */
struct cluster_process *cluster_memory_fixture_start_ps(
    struct cluster_run *run);

/* Starts the others, with PS (NULL: none), for the folder's job. */
struct cluster_memory_fixture cluster_memory_fixture_start(
    struct cluster_run *run, struct cluster_process *ps);

/* The rounds behind the chief's next line about them. */
unsigned cluster_memory_fixture_next_round(
    const struct cluster_memory_fixture *cluster);

/* Resident bytes of the memory that the process writes: its anonymous pages,
 * and what it shares by memory of its own. What others show it is theirs. */
double cluster_memory_fixture_resident_bytes(
    const struct cluster_process *process);

#endif
