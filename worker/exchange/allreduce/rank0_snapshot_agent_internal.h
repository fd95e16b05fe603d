/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a rank0_snapshot_agent: for rank0_snapshot_agent.c, the
 * communication thread's side, and rank0_snapshot_storage.c, the reducer's. */
#ifndef CAPSTAN_RANK0_SNAPSHOT_AGENT_INTERNAL_H
#define CAPSTAN_RANK0_SNAPSHOT_AGENT_INTERNAL_H

#include "proto/store/checkpoint_reader.h"
#include "proto/store/dir_lock.h"
#include "proto/store/manifest.h"
#include "worker/exchange/allreduce/async_shard_writer.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"
#include "worker/exchange/allreduce/weights_server.h"

#include <pthread.h>

struct rank0_snapshot_agent {
    struct rank0_snapshot_agent_settings settings;
    struct reducer_storage storage;
    /* `round` NULL: none yet. */
    struct rank0_snapshot_agent_callbacks callbacks;
    struct async_shard_writer *async_shard_writer;
    struct weights_server *weights_server;
    char host[256];
    bool shares_folder;
    struct dir_lock *dir_lock; /* on this host's own directory, or NULL */

    /* The reducer's thread only. */
    struct checkpoint_reader *reader;
    struct manifest manifest;
    uint64_t saving;           /* id of the round being handed over */
    struct loss_scaler scaler; /* saved with it */
    bool skipped_round;        /* the round is not saved */
    bool limit_logged;

    /* Both threads, under the mutex: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int descriptor;
    bool cancelled;
    uint64_t entered; /* the highest round that may be running */
    uint64_t limit;   /* no round above it may start */
    uint64_t requested_id, requested_round; /* an unplanned round to save */
    bool requested_held_sent;               /* it was reported as held */
    /* Id of a requested round that is handed over, to be reported. */
    uint64_t held;
    uint64_t skipped; /* planned round that is skipped, to be reported */
};

/* The callbacks that the reducer calls on its own thread. */
struct reducer_storage rank0_snapshot_storage_functions(
    struct rank0_snapshot_agent *rank0_snapshot_agent);

#endif
