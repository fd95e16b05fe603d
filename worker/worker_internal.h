/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker is made of: for worker*.c only. */
#ifndef CAPSTAN_WORKER_INTERNAL_H
#define CAPSTAN_WORKER_INTERNAL_H

#include "proto/net/messages/control_client.h"
#include "proto/tensor/plan.h"
#include "worker/bandwidth_meter.h"
#include "worker/discovery_listener.h"
#include "worker/exchange/allreduce/allreduce.h"
#include "worker/exchange/client/client.h"
#include "worker/train/trainer.h"
#include "worker/worker.h"

struct worker {
    const struct worker_settings *settings;
    struct control_client *control_client;
    struct discovery_listener *discovery_listener;
    struct job *job;
    struct plan *plan;
    struct trainer *trainer;
    struct client *client;         /* with ps */
    struct allreduce *allreduce;   /* else */
    struct bandwidth_meter *probe; /* of the network, or NULL */
    uint64_t chief;                /* its incarnation */
    uint32_t rank, num_ranks;
    int64_t points_sent_at;
    bool stopped, leaving;
    bool diverged;           /* its loss is no number any more */
    enum status interrupted; /* by a signal, or OK */
};

/* Has a view begun its training? */
bool worker_is_training(const struct worker *worker);

/* Does what ORDER says, or passes it on to all-reduce's parts. */
enum status worker_control_handle(struct worker *worker,
                                  const Capstan__Control *command,
                                  struct failure *why) MUST_CHECK;

/* Tells the chief the points that the trainer has reached. */
void worker_report_points(struct worker *worker);

/* Goes on measuring the network, if the chief has asked for it, and tells the
 * rate. */
void worker_probe_bandwidth(struct worker *worker);

#endif
