/* SPDX-License-Identifier: Apache-2.0 */
/* One iteration of a measurement: what is moved, for how long, and the result.
 * The client and all its baselines run the same iterations. Pure. */
#ifndef CAPSTAN_BENCH_ITERATION_H
#define CAPSTAN_BENCH_ITERATION_H

#include "proto/messages/message.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_iteration_kind {
    BENCH_ITERATION_PUSH,      /* bytes go out, an acknowledgement comes back */
    BENCH_ITERATION_PULL,      /* a request goes out, bytes come back */
    BENCH_ITERATION_PUSH_PULL, /* bytes go out and come back */
    BENCH_ITERATION_KINDS
};

/* Message sizes and credit, the same for every transport: bytes per message, or
 * one block; messages up to COPY_BYTES are copied; bytes and messages in flight
 * to one server. */
enum {
    BENCH_ITERATION_GROUP_BYTES = MESSAGE_GROUP_BYTES,
    BENCH_ITERATION_COPY_BYTES = 512,
    BENCH_ITERATION_CREDIT = 8 << 20,
    BENCH_ITERATION_CREDIT_MESSAGES = 1000,
    BENCH_ITERATION_SENDS_PER_POLL = 16,
    BENCH_ITERATION_RING_BYTES =
        64 << 20, /* a longer vector wraps around in memory */
};

/* An iteration ends after `times` vectors, or (0) with the first that ends
 * after `duration` nanoseconds. */
struct bench_iteration {
    enum bench_iteration_kind kind;
    size_t bytes;   /* of a vector */
    uint32_t depth; /* vectors in flight at once */
    uint64_t times;
    int64_t duration;
    int64_t *latencies; /* NULL, or room for nanoseconds per vector (depth 1) */
    size_t capacity;
    const atomic_bool *stop; /* NULL, or ends the iteration early once true */
    /* Results: */
    uint64_t vectors,
        messages; /* vectors moved; messages sent, without answers */
    int64_t elapsed;
    size_t samples;
};

/* Records the latency of one vector while there is room. */
void bench_iteration_record(struct bench_iteration *iteration,
                            int64_t nanoseconds);

/* True if another vector is to be started, after STARTED ones and ELAPSED
 * ns. */
bool bench_iteration_continues(const struct bench_iteration *iteration,
                               uint64_t started, int64_t elapsed);

/* The middle value, or the mean of the two in the middle; NAN if there are
 * none. VALUES are sorted in place. */
double bench_iteration_median(double *values, size_t count);

/* The smallest of an iteration's latencies, in microseconds, that at least
 * SHARE (0..1) of them do not exceed: nearest rank. NAN if there are none.
 * Sorts them in place. */
double bench_iteration_latency_us(struct bench_iteration *iteration,
                                  double share);

/* Vectors and messages per second. */
double bench_iteration_vectors_s(const struct bench_iteration *iteration);
double bench_iteration_messages_s(const struct bench_iteration *iteration);

/* "push", "pull", "push_pull". */
const char *bench_iteration_kind_name(enum bench_iteration_kind kind);

#endif
