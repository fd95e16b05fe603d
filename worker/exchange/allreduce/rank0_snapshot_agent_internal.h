/* SPDX-License-Identifier: Apache-2.0 */
/* What a keeper is made of: for rank0_snapshot_agent.c, the communication
 * thread's side, and rank0_snapshot_agent_saves.c, the reducer's. */
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
    struct rank0_snapshot_agent_callbacks
        callbacks; /* `round` NULL: none yet */
    struct async_shard_writer *async_shard_writer;
    struct weights_server *weights_server;
    char host[256];
    bool shares_folder;
    struct dir_lock *dir_lock; /* on a folder of this host's own, or NULL */

    /* The reducer's thread alone. */
    struct checkpoint_reader *reader;
    struct manifest manifest;
    uint64_t saving;           /* id of the round that is handed over */
    struct loss_scaler scaler; /* goes with it */
    bool skipped_round;        /* it is not to be saved */
    bool limit_logged;

    /* Both threads', by the mutex: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int descriptor;
    bool cancelled;
    uint64_t entered; /* the highest round that may be under way */
    uint64_t limit;   /* none above is entered */
    uint64_t requested_id,
        requested_round;      /* a round to save beside the plan */
    bool requested_held_sent; /* its being held was told */
    uint64_t held;    /* id of an asked round that is handed over, to be told */
    uint64_t skipped; /* planned round that is left out, to be told */
};

/* What the reducer calls, on its own thread. */
struct reducer_storage rank0_snapshot_storage_functions(
    struct rank0_snapshot_agent *rank0_snapshot_agent);

#endif
