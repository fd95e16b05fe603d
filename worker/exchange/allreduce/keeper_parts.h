/* SPDX-License-Identifier: Apache-2.0 */
/* What a keeper is made of: for keeper.c, the communication thread's side, and
 * keeper_saves.c, the reducer's. */
#ifndef CAPSTAN_KEEPER_PARTS_H
#define CAPSTAN_KEEPER_PARTS_H

#include "proto/store/checkpoint_reader.h"
#include "proto/store/claim.h"
#include "proto/store/manifest.h"
#include "worker/exchange/allreduce/keeper.h"
#include "worker/exchange/allreduce/lender.h"
#include "worker/exchange/allreduce/saver.h"

#include <pthread.h>

struct keeper {
    struct keeper_settings settings;
    struct reducer_keeper calls;
    struct keeper_callbacks callbacks; /* `round` NULL: none yet */
    struct saver *saver;
    struct lender *lender;
    char host[256];
    bool shares_folder;
    struct claim *claim; /* on a folder of this host's own, or NULL */

    /* The reducer's thread alone. */
    struct checkpoint_reader *reader;
    struct manifest manifest;
    uint64_t saving;           /* id of the round that is handed over */
    struct loss_scaler scaler; /* goes with it */
    bool left_out;             /* it is not to be saved */
    bool said_full;

    /* Both threads', by the mutex: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int descriptor;
    bool cancelled;
    uint64_t entered; /* the highest round that may be under way */
    uint64_t limit;   /* none above is entered */
    uint64_t asked_id, asked_round; /* a round to save beside the plan */
    bool asked_held;                /* its being held was told */
    uint64_t held;    /* id of an asked round that is handed over, to be told */
    uint64_t skipped; /* planned round that is left out, to be told */
};

/* What the reducer calls, on its own thread. */
struct reducer_keeper keeper_saves_calls(struct keeper *keeper);

#endif
