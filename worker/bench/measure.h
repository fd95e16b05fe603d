/* SPDX-License-Identifier: Apache-2.0 */
/* What `capstan bench` measures: vectors of several sizes by the lane to the
 * ps, and beside it, in turns, by memcpy, a plain socket and bare libzmq. */
#ifndef CAPSTAN_MEASURE_H
#define CAPSTAN_MEASURE_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/tensor/layout.h"
#include "worker/bench/bench_baseline.h"
#include "worker/bench/bench_stream_client.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>

/* Small vectors that share a message: so many of so many floats. */
enum { MEASURE_SMALL = 1024, MEASURE_SMALL_FLOATS = 16 };

/* All borrowed. */
struct measure_settings {
    const struct log *log;
    void *zmq;
    const uint64_t *sizes; /* bytes, multiples of 4 */
    uint32_t num_sizes;
    uint32_t repeats;  /* laps of each kind, of which the median counts */
    double seconds;    /* of all laps of one figure */
    uint64_t requests; /* 0, or pushes of the first size, and nothing else */
    const struct bench_baseline *bench_baseline;
    const atomic_bool *stop; /* ends it early */
};

/* The parameters to declare: a vector of each size, then the small ones. The
 * caller's; STATUS_CONFIG when they pass a limit of layouts. */
enum status measure_layout(struct layout **out, const uint64_t *sizes,
                           uint32_t num_sizes, struct failure *why) MUST_CHECK;

/* Measures through STREAM, whose plan is of measure_layout. *OUT is the object
 * that docs/bench.md tells of, the caller's. */
enum status measure_run(json_t **out,
                        struct bench_stream_client *bench_stream_client,
                        const struct layout *layout,
                        const struct measure_settings *settings,
                        struct failure *why) MUST_CHECK;

#endif
