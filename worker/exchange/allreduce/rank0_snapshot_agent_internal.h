/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a rank0_snapshot_agent: for rank0_snapshot_agent.c, the
 * communication thread's side, and rank0_snapshot_storage.c, the reducer's. */
#ifndef CAPSTAN_RANK0_SNAPSHOT_AGENT_INTERNAL_H
#define CAPSTAN_RANK0_SNAPSHOT_AGENT_INTERNAL_H

#include "core/store/checkpoint_reader.h"
#include "core/store/manifest.h"
#include "proto/holder/snapshot_agent.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"
#include "worker/exchange/allreduce/weights_server.h"

#include <pthread.h>

struct rank0_snapshot_agent {
    struct rank0_snapshot_agent_settings settings;
    struct reducer_storage storage;
    struct row_reducer_storage rows;
    /* `round` NULL: none yet. */
    struct rank0_snapshot_agent_callbacks callbacks;
    struct snapshot_agent *snapshot_agent;
    struct weights_server *weights_server;

    /* The reducer's thread only. */
    struct checkpoint_reader *reader;
    struct manifest manifest;
    struct loss_scaler scaler;           /* saved with the next blocks */
    struct shard_rows_source *row_views; /* [num_stacks] */
    bool limit_logged;                   /* for this round */

    /* Both threads, and the writer's when it frees a copy, under the mutex: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool cancelled;
    uint64_t entered; /* the highest round that may be running */
    uint64_t limit;   /* no round above it may start */
    uint64_t copied;  /* bytes of blocks that are not written yet */
    uint64_t copy_limit;
};

/* The callbacks that the reducer calls on its own thread. */
struct reducer_storage rank0_snapshot_storage_functions(
    struct rank0_snapshot_agent *agent);

struct row_reducer_storage rank0_snapshot_storage_rows(
    struct rank0_snapshot_agent *agent);

#endif
