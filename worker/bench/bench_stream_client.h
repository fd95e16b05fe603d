/* SPDX-License-Identifier: Apache-2.0 */
/* A ps client that keeps no weights: vectors are pushed from one buffer and
 * read into another, repeatedly, so that a few megabytes serve a plan of any
 * size. The messages are those of worker/exchange/client/client.h. One
 * thread. */
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
    const struct plan *plan; /* borrowed; an asynchronous run's */
    uint64_t run, incarnation;
    uint32_t rank;
    uint64_t from;  /* clock of the first push */
    double timeout; /* time limit for a ps's answer in seconds */
    bool shm;       /* shared memory is tried first with a ps on this host */
};

struct bench_stream_client;

/* Opens a link to each ps and waits until all are connected. STATUS_RETRY: a ps
 * cannot be reached within the timeout; WHY names it. */
enum status bench_stream_client_open(
    struct bench_stream_client **out,
    const struct bench_stream_client_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the links and clears *BENCH_STREAM_CLIENT (may be NULL). */
void bench_stream_client_close(
    struct bench_stream_client **bench_stream_client);

/* Runs BENCH_ITERATION with the COUNT blocks of the plan from FIRST on as the
 * vector, and sets its `bytes`. A block always goes together with the same
 * others. STATUS_RETRY: a ps does not answer; STATUS_FAILED: a ps refuses; WHY
 * names it. A stopped iteration ends at once, and the client is then
 * unusable. */
enum status bench_stream_iteration(
    struct bench_stream_client *bench_stream_client, uint32_t first,
    uint32_t count, struct bench_iteration *bench_iteration,
    struct failure *why) MUST_CHECK;

/* The transport: "tcp", "shm", or "mixed". */
const char *bench_stream_client_transport(
    const struct bench_stream_client *bench_stream_client);

/* Pushes of the vector that was pushed most: the clock to report. */
uint64_t bench_stream_client_clock(
    const struct bench_stream_client *bench_stream_client);

#endif
