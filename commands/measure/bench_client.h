/* SPDX-License-Identifier: Apache-2.0 */
/* The life cycle of a client of `capstan bench`: join as a worker, send the
 * vectors as a model spec, measure on a separate thread, leave. */
#ifndef CAPSTAN_BENCH_CLIENT_H
#define CAPSTAN_BENCH_CLIENT_H

#include "commands/measure/baselines.h"
#include "core/base/status.h"
#include "proto/messages/member.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct bench_client_settings {
    struct process process;
    struct member member;
    const uint64_t *sizes; /* bytes, multiples of 4 */
    uint32_t num_sizes;
    uint32_t repeats;  /* iterations of each kind; the median counts */
    double seconds;    /* for all iterations of one figure */
    uint64_t requests; /* 0, or only this many pushes */
    bool batched; /* they are of small vectors that share messages; else of the
                     first size */
    double timeout;              /* time limit for a ps's answer in seconds */
    const char *ps_pids;         /* process ids of ps on this host, or NULL */
    struct baselines *baselines; /* NULL: */
    const char *missing;         /* why there are none */
};

/* Returns when the run has ended: its status, and WHY unless STATUS_OK. *RESULT
 * is the measurement as a JSON object, owned by the caller; NULL for all but
 * the first client and on failure. */
enum status bench_client_run(const struct bench_client_settings *settings,
                             char **result, struct failure *why) MUST_CHECK;

#endif
