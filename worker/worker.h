/* SPDX-License-Identifier: Apache-2.0 */
/* The life cycle of a trainer: join, send the model spec, train, leave. */
#ifndef CAPSTAN_WORKER_H
#define CAPSTAN_WORKER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster_rank.h"
#include "proto/config/cluster/cluster_size.h"
#include "proto/tensor/rule.h"

#include <stdbool.h>
#include <stdint.h>

struct worker_settings {
    void *zmq;
    const struct log *log;
    enum cluster_role role; /* worker, or a chief that also trains */
    uint32_t index;
    /* This task's address to bind; NULL: none. */
    const struct cluster_task *self;
    const struct cluster_task *chief; /* NULL: not known, or in this process */
    const char *chief_inproc; /* the chief's link in this process, or NULL */
    const char *ps_inproc;    /* the ps's link in this process, or NULL */
    const char *weights_server_inproc; /* the weights server's link when the
                                          chief is in this process */
    uint16_t chief_ports;              /* see cluster.h */
    const char *key;                   /* see cluster.h, or NULL */
    struct cluster_size size;          /* as this process knows it */
    /* Its ps are queried for the chief and its hosts may announce one; NULL:
     * the chief is known. */
    const struct cluster *discovery_cluster;
    const char *own_job; /* job text given to this process, or NULL: only
                            compared with the chief's */
    const struct rule_loops *loops; /* NULL: the best for this CPU */
    struct cluster_local_peers
        local_peers;     /* they determine the choice of a device */
    double join_timeout; /* seconds */
    bool shm;       /* shared memory between processes on one host is allowed */
    int record;     /* for the launcher (launch_record.h), 0: none */
    int interrupts; /* descriptor that gives a signal's number; -1: none */
    double *restart_within; /* set when the chief leads another run: seconds
                               until it is expected back; NULL: not wanted */
};

/* Returns when the run has ended: its status, and WHY unless STATUS_OK. A
 * signal makes this worker leave; with ps the run continues without it. */
enum status worker_run(const struct worker_settings *settings,
                       struct failure *why) MUST_CHECK;

#endif
