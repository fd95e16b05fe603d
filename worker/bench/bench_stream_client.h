/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange with the ps that keeps no weights: vectors are pushed out of one
 * buffer and read into another, over and over, so that a few megabytes serve a
 * plan of any size. The messages are those of worker/exchange/client/client.h.
 * One thread. */
#ifndef CAPSTAN_BENCH_STREAM_CLIENT_H
#define CAPSTAN_BENCH_STREAM_CLIENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/tensor/plan.h"
#include "worker/bench/bench_iteration.h"

#include <stdint.h>

struct bench_stream_client_settings {
    void *zmq;
    const struct log *log;
    const struct plan *plan; /* borrowed; of an asynchronous run */
    uint64_t run, incarnation;
    uint32_t rank;
    uint64_t from;  /* clock of the first push */
    double timeout; /* seconds a ps may be silent */
    bool shm;       /* shared memory first with a ps on this host */
};

struct bench_stream_client;

/* Opens a link to each ps and waits until all stand. STATUS_RETRY names the ps
 * that cannot be reached within the timeout. */
enum status bench_stream_client_open(
    struct bench_stream_client **out,
    const struct bench_stream_client_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the links and clears *STREAM (may be NULL). */
void bench_stream_client_close(
    struct bench_stream_client **bench_stream_client);

/* Runs LAP with the COUNT blocks of the plan from FIRST on as the vector; its
 * `bytes` are filled in. A block always goes together with the same others.
 * STATUS_RETRY names a ps that does not answer, STATUS_FAILED one that
 * refuses. A lap that is stopped ends at once, and the stream with it. */
enum status bench_stream_iteration(
    struct bench_stream_client *bench_stream_client, uint32_t first,
    uint32_t count, struct bench_iteration *bench_iteration,
    struct failure *why) MUST_CHECK;

/* How the bytes go: "tcp" or "shm", "mixed" when it is not all one. */
const char *bench_stream_client_transport(
    const struct bench_stream_client *bench_stream_client);

/* Pushes of the vector that was pushed most: the clock to report. */
uint64_t bench_stream_client_clock(
    const struct bench_stream_client *bench_stream_client);

#endif
