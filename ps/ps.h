/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a ps process: join the chief, receive the plan, restore or initialise
 * the weights, serve, save, leave. */
#ifndef CAPSTAN_PS_H
#define CAPSTAN_PS_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster_size.h"
#include "proto/tensor/rule.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_settings {
    void *zmq;
    const struct log *log;
    uint32_t index;
    const struct cluster_task *self;  /* own address; NULL: inproc only */
    const struct cluster_task *chief; /* NULL: unknown, or in this process */
    uint16_t chief_ports;             /* as in cluster.h */
    const struct cluster *discovery_cluster; /* hosts whose discovery messages
                                                are accepted; NULL: none */
    const char *key;          /* launcher's name for this job, or NULL */
    struct cluster_size size; /* as configured in this process */
    const char *chief_inproc; /* the chief's endpoint inside, or NULL */
    const char *inproc; /* name of the ps's endpoint in this process, or NULL */
    const char *own_job; /* text of a job given to this process, compared with
                            the chief's and not used; NULL: none */
    const struct rule_loops *loops; /* NULL: the best of this processor */
    double join_timeout;            /* seconds */
    bool shm;       /* use shared memory between processes on one host */
    int record;     /* descriptor for the launcher (launch_record.h); 0: none */
    int interrupts; /* descriptor that delivers signal numbers; -1: none */
    double *restart_within; /* set when the chief continues with another run:
                               seconds to join it within; may be NULL */
};

/* Blocks until the run ends. Returns its status, with WHY unless OK. */
enum status ps_run(const struct ps_settings *settings,
                   struct failure *why) MUST_CHECK;

#endif
