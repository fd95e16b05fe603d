/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a ps: join, take the plan, restore or initialise, serve, save,
 * leave. */
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
    const struct cluster_task *self;  /* my address; NULL: inside only */
    const struct cluster_task *chief; /* NULL: not known, or inside */
    uint16_t chief_ports;             /* as in cluster.h */
    const struct cluster
        *discovery_cluster;   /* who may call me to a chief; NULL: nobody */
    const char *key;          /* likewise, or NULL */
    struct cluster_size size; /* as I know it */
    const char *chief_inproc; /* the chief's link in this process, or NULL */
    const char *inproc;       /* name of my link within it, or NULL */
    const char *own_job;      /* text of a job given here, or NULL: not used */
    const struct rule_loops *loops; /* NULL: the best of this processor */
    double join_timeout;            /* seconds */
    bool shm;       /* shared memory between processes on one host */
    int record;     /* for the launcher (launch_record.h), 0: none */
    int interrupts; /* descriptor that gives a signal's number; -1: none */
    double *restart_within; /* set when the chief leads another run: seconds
                      within which it is back; NULL: nobody asks */
};

/* Returns when the run has ended: its status, with WHY unless OK. */
enum status ps_run(const struct ps_settings *settings,
                   struct failure *why) MUST_CHECK;

#endif
