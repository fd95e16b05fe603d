/* SPDX-License-Identifier: Apache-2.0 */
/* One stretch of measuring: what is moved, for how long, and what came of it.
 * Every lane and everything it is compared with runs the same laps. Pure. */
#ifndef CAPSTAN_BENCH_ITERATION_H
#define CAPSTAN_BENCH_ITERATION_H

#include "proto/net/messages/message.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_iteration_kind {
    BENCH_ITERATION_PUSH,      /* bytes go there; a word comes back */
    BENCH_ITERATION_PULL,      /* a word goes there; bytes come back */
    BENCH_ITERATION_PUSH_PULL, /* bytes go there and come back */
    BENCH_ITERATION_KINDS
};

/* How vectors go, by any lane: in messages of so many bytes, or one block;
 * small ones are copied into theirs; so much is under way to one server; after
 * so many messages there is a look for answers, which may find none. */
enum {
    BENCH_ITERATION_GROUP_BYTES = MESSAGE_GROUP_BYTES,
    BENCH_ITERATION_COPY_BYTES = 512,
    BENCH_ITERATION_CREDIT = 8 << 20,
    BENCH_ITERATION_CREDIT_MESSAGES = 1000,
    BENCH_ITERATION_SENDS_PER_POLL = 16,
    BENCH_ITERATION_RING_BYTES =
        64 << 20, /* a longer vector comes around in memory */
};

/* A lap ends after TIMES vectors, or (0) with the first that ends after
 * DURATION nanoseconds. */
struct bench_iteration {
    enum bench_iteration_kind kind;
    size_t bytes;   /* of a vector */
    uint32_t depth; /* vectors under way at once */
    uint64_t times;
    int64_t duration;
    int64_t *latencies; /* NULL, or room for nanoseconds a vector (depth 1) */
    size_t capacity;
    const atomic_bool *stop; /* NULL, or ends the lap early once true */
    /* Filled in: */
    uint64_t vectors, messages; /* moved; messages there, not those back */
    int64_t elapsed;
    size_t samples;
};

/* Takes the latency of one vector down, while there is room. */
void bench_iteration_record(struct bench_iteration *bench_iteration,
                            int64_t nanoseconds);

/* Is one more vector to be begun, with BEGUN behind it, ELAPSED ns after the
 * start? */
bool bench_iteration_continues(const struct bench_iteration *bench_iteration,
                               uint64_t started, int64_t elapsed);

/* The smallest of the COUNT values (sorted in place) that at least SHARE of
 * them do not exceed: nearest rank. NAN when there are none. SHARE in 0..1. */
double bench_iteration_percentile(double *values, size_t count, double share);

/* The middle one, or the mean of the two in the middle; NAN when there are
 * none. VALUES are sorted in place. */
double bench_iteration_median(double *values, size_t count);

/* Percentile of a lap's latencies in microseconds; they are sorted in place. */
double bench_iteration_latency_us(struct bench_iteration *bench_iteration,
                                  double share);

/* Vectors and messages a second. */
double bench_iteration_vectors_s(const struct bench_iteration *bench_iteration);
double bench_iteration_messages_s(
    const struct bench_iteration *bench_iteration);

/* "push", "pull", "push_pull". */
const char *bench_iteration_kind_name(enum bench_iteration_kind kind);

#endif
