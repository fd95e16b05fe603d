/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce on a trainer, beside the training itself: the reducer, and on
 * rank 0 the snapshot agent. Communication thread. */
#ifndef CAPSTAN_ALLREDUCE_H
#define CAPSTAN_ALLREDUCE_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "proto/job/job.h"
#include "proto/messages/control_client.h"
#include "proto/plan/plan.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"
#include "worker/exchange/allreduce/reducer.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* All borrowed. WEIGHTS and GRADIENTS as in arena.h. */
struct allreduce_settings {
    const struct process *process;
    struct control_client *control_client;
    const struct job *job;
    const struct plan *plan;
    uint64_t chief; /* the chief's incarnation */
    uint32_t rank, num_ranks;
    uint32_t device; /* on this host: the trainer's device, if it has one */
    /* This trainer's host in the cluster description, or NULL. */
    const char *host;
    /* The weights server's link if the chief is in this process. */
    const char *inproc;
    const struct collective_store *store; /* the ranks' rendezvous */
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    bool has_device_memory; /* the trainer computes in a device's own memory */
    void (*wake)(void *context); /* see reducer_settings */
    void *context;
    void (*collect)(void *collect_context); /* likewise */
    void *collect_context;
};

struct allreduce;

/* Called once the plan has arrived: rank 0 reports that it is ready. */
enum status allreduce_open(struct allreduce **out,
                           const struct allreduce_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Ends every wait of other threads in this module. */
void allreduce_cancel(struct allreduce *allreduce);

/* Call after allreduce_cancel and the end of the trainer; clears *ALLREDUCE
 * (may be NULL). */
void allreduce_close(struct allreduce **allreduce);

/* All ranks have joined: starts the reducer. */
enum status allreduce_begin(struct allreduce *allreduce,
                            struct failure *why) MUST_CHECK;

/* row_shard_report of the rows of tables, once there are some. */
void allreduce_report_rows(const struct allreduce *allreduce, uint64_t *counts,
                           Capstan__Heartbeat *heartbeat);

/* NULL before allreduce_begin. */
struct reducer *allreduce_reducer(const struct allreduce *allreduce);

/* Handles the chief's all-reduce messages; ignores all others. */
enum status allreduce_handle(struct allreduce *allreduce,
                             const Capstan__Control *command,
                             struct failure *why) MUST_CHECK;

/* Fills ITEMS for zmq_poll; returns how many. */
enum { ALLREDUCE_POLL_ITEMS = 1 + RANK0_SNAPSHOT_AGENT_POLL_ITEMS };
int allreduce_poll_items(struct allreduce *allreduce, zmq_pollitem_t *items);

/* Does all due work. True, once, if the reducer has failed; WHY has the
 * reason. */
bool allreduce_step(struct allreduce *allreduce, struct failure *why);

#endif
