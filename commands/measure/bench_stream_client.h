/* SPDX-License-Identifier: Apache-2.0 */
/* A ps client that keeps no weights: vectors are pushed from one buffer and
 * read into another, repeatedly, so that a few megabytes serve a plan of any
 * size. The messages are a trainer's (worker/exchange/client), but acknowledged
 * only when pushed, and never repeated: a ps that loses one is silent. One
 * thread. */
#ifndef CAPSTAN_BENCH_STREAM_CLIENT_H
#define CAPSTAN_BENCH_STREAM_CLIENT_H

#include "commands/measure/bench_iteration.h"
#include "core/base/status.h"
#include "proto/messages/member.h"
#include "proto/plan/plan.h"

#include <stdatomic.h>
#include <stdint.h>

struct bench_stream_client_settings {
    const struct process *process; /* borrowed */
    const struct plan *plan;       /* borrowed; an asynchronous run's */
    uint32_t rank;
    uint64_t from;           /* clock of the first push */
    double timeout;          /* time limit for a ps's answer in seconds */
    const atomic_bool *stop; /* ends the opening; borrowed, or NULL */
};

struct bench_stream_client;

/* Opens a link to each ps and waits until all are connected. STATUS_RETRY: a ps
 * cannot be reached within the timeout, or before the stop; WHY names it. */
enum status bench_stream_client_open(
    struct bench_stream_client **out,
    const struct bench_stream_client_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the links and clears *CLIENT (may be NULL). */
void bench_stream_client_close(struct bench_stream_client **client);

/* Runs ITERATION with the COUNT blocks of the plan from FIRST on as the
 * vector, and sets its `bytes`. A block always goes together with the same
 * others. STATUS_RETRY: a ps does not answer; STATUS_FAILED: a ps refuses; WHY
 * names it. A stopped iteration ends at once, and the client is then
 * unusable. */
enum status bench_stream_iteration(struct bench_stream_client *client,
                                   uint32_t first, uint32_t count,
                                   struct bench_iteration *iteration,
                                   struct failure *why) MUST_CHECK;

/* The transport: "tcp", "shm", or "mixed". */
const char *bench_stream_client_transport(
    const struct bench_stream_client *client);

/* Pushes of the vector that was pushed most: the clock to report. */
uint64_t bench_stream_client_clock(const struct bench_stream_client *client);

#endif
