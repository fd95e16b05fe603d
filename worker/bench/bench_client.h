/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a client of `capstan bench`: join as a worker, declare vectors,
 * measure on a thread of its own, leave. */
#ifndef CAPSTAN_BENCH_CLIENT_H
#define CAPSTAN_BENCH_CLIENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"
#include "worker/bench/bench_baseline.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct bench_client_settings {
    void *zmq;
    const struct log *log;
    uint32_t index;
    const struct cluster_task *chief;
    uint16_t chief_ports;  /* as in cluster.h */
    const char *key;       /* likewise */
    const uint64_t *sizes; /* bytes, multiples of 4 */
    uint32_t num_sizes, repeats;
    double seconds;      /* a figure */
    uint64_t requests;   /* 0, or so many pushes and nothing else */
    bool batched;        /* those share messages */
    double timeout;      /* seconds a ps may be silent */
    const char *ps_pids; /* of ps on this machine, or NULL */
    const struct bench_baseline *bench_baseline;
    double join_timeout; /* seconds */
    bool shm;            /* shared memory with a ps on this host */
    int record;          /* for the launcher (launch_record.h), 0: none */
    int interrupts;      /* descriptor that gives a signal's number; -1: none */
};

/* Returns when the run has ended: its status, with WHY unless OK. *RESULT is
 * the JSON object of what was measured, the caller's; NULL with any but the
 * first client, and on failure. */
enum status bench_client_run(const struct bench_client_settings *settings,
                             char **result, struct failure *why) MUST_CHECK;

#endif
