/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a worker; for worker*.c only. */
#ifndef CAPSTAN_WORKER_INTERNAL_H
#define CAPSTAN_WORKER_INTERNAL_H

#include "proto/messages/control_client.h"
#include "proto/plan/plan.h"
#include "worker/bandwidth_meter.h"
#include "worker/discovery_listener.h"
#include "worker/exchange/allreduce/allreduce.h"
#include "worker/exchange/client/client.h"
#include "worker/train/trainer.h"
#include "worker/worker.h"

struct worker {
    const struct worker_settings *settings;
    struct process process;
    struct control_client *control_client;
    struct discovery_listener *discovery_listener;
    struct job *job;
    struct plan *plan;
    struct trainer *trainer;
    struct client *client;         /* with ps */
    struct allreduce *allreduce;   /* with all-reduce */
    uint64_t *table_counts;        /* rank 0's, for heartbeats; NULL: none */
    struct bandwidth_meter *probe; /* bandwidth probe, or NULL */
    uint64_t chief;                /* the chief's incarnation */
    uint32_t rank, num_ranks;
    int64_t points_sent_at;
    bool stopped, leaving;
    bool finished;                 /* the trainer has left the loop */
    int64_t leaves_at;             /* then it stops; 0: not set */
    enum failure_code interrupted; /* by a signal, or FAILURE_NONE */
};

/* True once a view has started this worker's training. */
bool worker_is_training(const struct worker *worker);

/* Handles COMMAND, or passes it on to the all-reduce modules. */
enum status worker_control_handle(struct worker *worker,
                                  const Capstan__Control *command,
                                  struct failure *why) MUST_CHECK;

/* Sends the points that the trainer has reached to the chief. */
void worker_report_points(struct worker *worker);

/* Continues the bandwidth probe that the chief has asked for, and sends the
 * rate when it ends. */
void worker_probe_bandwidth(struct worker *worker);

#endif
