/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's part in all-reduce beside the training itself: it meets the other
 * ranks through the chief, has the reducer, and on rank 0 the keeper.
 * Communication thread. */
#ifndef CAPSTAN_ALLREDUCE_H
#define CAPSTAN_ALLREDUCE_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/messages/control_client.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/plan.h"
#include "proto/tensor/rule.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"
#include "worker/exchange/allreduce/reducer.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* All borrowed. WEIGHTS and GRADIENTS as in arena.h. */
struct allreduce_settings {
    void *zmq;
    const struct log *log;
    struct control_client *control_client;
    const struct job *job;
    const struct plan *plan;
    uint64_t chief; /* its incarnation */
    uint32_t rank, num_ranks;
    uint32_t device;    /* of this host: the trainer's, if it has one */
    const char *host;   /* as the cluster lists this trainer, or NULL */
    const char *inproc; /* the chief is in this process: the keeper's link */
    const struct rule_loops *loops;
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    bool shm;               /* shared memory between ranks on one host */
    bool has_device_memory; /* the trainer computes in memory of a device's own
                             */
    void (*wake)(void *context); /* as in reducer_settings */
    void *context;
};

struct allreduce;

/* The plan is here: rank 0 says that it is ready. */
enum status allreduce_open(struct allreduce **out,
                           const struct allreduce_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Ends every wait of other threads in it. */
void allreduce_cancel(struct allreduce *allreduce);

/* After allreduce_cancel and the trainer's end; clears *ALLREDUCE (may be
 * NULL). */
void allreduce_close(struct allreduce **allreduce);

/* All are here: the ranks meet. */
enum status allreduce_begin(struct allreduce *allreduce,
                            struct failure *why) MUST_CHECK;

/* NULL before allreduce_begin. */
struct reducer *allreduce_reducer(const struct allreduce *allreduce);

/* Orders of the chief; others are left alone. */
enum status allreduce_handle(struct allreduce *allreduce,
                             const Capstan__Control *command,
                             struct failure *why) MUST_CHECK;

/* Fills ITEMS for zmq_poll; returns how many. */
enum { ALLREDUCE_POLL_ITEMS = 2 + RANK0_SNAPSHOT_AGENT_POLL_ITEMS };
int allreduce_poll_items(struct allreduce *allreduce, zmq_pollitem_t *items);

/* Moves what can be moved. True, once: the reducer has failed as WHY says. */
bool allreduce_step(struct allreduce *allreduce, struct failure *why);

#endif
