/* SPDX-License-Identifier: Apache-2.0 */
/* The life cycle of a trainer: join, send the model spec, train, leave. */
#ifndef CAPSTAN_WORKER_H
#define CAPSTAN_WORKER_H

#include "core/base/status.h"
#include "proto/cluster/cluster_rank.h"
#include "proto/messages/member.h"

struct external;

struct worker_settings {
    struct process process;
    struct member member;  /* a worker, or a chief that also trains */
    const char *ps_inproc; /* the ps's link in this process, or NULL */
    const char *weights_server_inproc; /* the weights server's link if the chief
                                          is in this process */
    struct external *external; /* the caller's model, or NULL: the job's */
    struct arena_kept *kept;   /* of the process's run before, for its next;
                                  NULL: nothing is kept */
    struct cluster_local_peers
        local_peers; /* they determine the choice of a device */
};

/* Returns when the run has ended: its status, and WHY unless STATUS_OK. A
 * signal makes this worker leave; with ps the run continues without it. */
enum status worker_run(const struct worker_settings *settings,
                       struct failure *why) MUST_CHECK;

#endif
