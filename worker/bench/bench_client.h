/* SPDX-License-Identifier: Apache-2.0 */
/* The life cycle of a client of `capstan bench`: join as a worker, send the
 * vectors as a model spec, measure on a separate thread, leave. */
#ifndef CAPSTAN_BENCH_CLIENT_H
#define CAPSTAN_BENCH_CLIENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"
#include "worker/bench/baselines.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct bench_client_settings {
    void *zmq;
    const struct log *log;
    uint32_t index;
    const struct cluster_task *chief;
    uint16_t chief_ports;  /* see cluster.h */
    const char *key;       /* see cluster.h */
    const uint64_t *sizes; /* bytes, multiples of 4 */
    uint32_t num_sizes, repeats;
    double seconds;              /* per figure */
    uint64_t requests;           /* 0, or only this many pushes */
    bool batched;                /* the pushes share messages */
    double timeout;              /* time limit for a ps's answer in seconds */
    const char *ps_pids;         /* process ids of ps on this host, or NULL */
    struct baselines *baselines; /* NULL: */
    const char *missing;         /* why there are none */
    double join_timeout;         /* seconds */
    bool shm;                    /* shared memory with a ps on this host */
    int record;     /* for the launcher (launch_record.h), 0: none */
    int interrupts; /* descriptor that gives a signal's number; -1: none */
};

/* Returns when the run has ended: its status, and WHY unless STATUS_OK. *RESULT
 * is the measurement as a JSON object, owned by the caller; NULL for all but
 * the first client and on failure. */
enum status bench_client_run(const struct bench_client_settings *settings,
                             char **result, struct failure *why) MUST_CHECK;

#endif
