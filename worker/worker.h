/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a trainer: join, declare, train, leave. */
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
    enum cluster_role role; /* worker, or the chief that trains too */
    uint32_t index;
    const struct cluster_task *self;  /* my address to bind; NULL: none */
    const struct cluster_task *chief; /* NULL: not known, or inside */
    const char *chief_inproc; /* the chief's link in this process, or NULL */
    const char *ps_inproc;    /* the ps's link in this process, or NULL */
    const char
        *weights_server_inproc; /* my keeper's, when the chief is inside */
    uint16_t chief_ports;       /* as in cluster.h */
    const char *key;            /* likewise, or NULL */
    struct cluster_size size;   /* as I know it */
    const struct cluster
        *discovery_cluster; /* whose ps I ask for my chief, and who may
                     call me to it; NULL: it is known */
    const char *own_job;    /* text of a job given here, or NULL: not used */
    const struct rule_loops *loops; /* NULL: the best of this processor */
    struct cluster_local_peers local_peers; /* choose a device */
    double join_timeout;                    /* seconds */
    bool shm;       /* shared memory between processes on one host */
    int record;     /* for the launcher (launch_record.h), 0: none */
    int interrupts; /* descriptor that gives a signal's number; -1: none */
    double *restart_within; /* set when the chief leads another run: seconds
                      within which it is back; NULL: nobody asks */
};

/* Returns when the run has ended: its status, with WHY unless OK. A signal
 * here is a goodbye: the run goes on without this worker. */
enum status worker_run(const struct worker_settings *settings,
                       struct failure *why) MUST_CHECK;

#endif
