/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of `capstan bench`: vectors of several sizes through the ps
 * client, and in turns with it through memcpy and the baselines; or very many
 * pushes, after which the memory of the ps must not have grown. */
#ifndef CAPSTAN_MEASURE_H
#define CAPSTAN_MEASURE_H

#include "commands/measure/baselines.h"
#include "commands/measure/bench_stream_client.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Small vectors that share a message: MEASURE_SMALL of MEASURE_SMALL_FLOATS
 * floats. */
enum { MEASURE_SMALL = 1024, MEASURE_SMALL_FLOATS = 16 };

/* All borrowed. */
struct measure_settings {
    const struct log *log;
    const uint64_t *sizes; /* bytes, multiples of 4 */
    uint32_t num_sizes;
    uint32_t repeats;  /* iterations of each kind; the median counts */
    double seconds;    /* for all iterations of one figure */
    uint64_t requests; /* 0, or only this many pushes */
    bool batched;      /* they are of small vectors that share messages; else of
                          the first size */
    /* Process ids of the ps on this host, comma-separated, whose resident
     * memory is reported after pushes; NULL: they are elsewhere. */
    const char *ps_pids;
    struct baselines *baselines; /* NULL: */
    const char *missing;         /* why there are none */
    const atomic_bool *stop;     /* ends it early */
};

/* The parameters of the model spec: a vector of each size, then the small ones.
 * The caller owns *OUT; STATUS_CONFIG if they exceed a limit of layouts. */
enum status measure_layout(struct layout **out, const uint64_t *sizes,
                           uint32_t num_sizes, struct failure *why) MUST_CHECK;

/* Measures through CLIENT, whose plan is of measure_layout. *OUT
 * is the object that docs/bench.md describes, owned by the caller. Pushes are
 * rounded up to whole messages. */
enum status measure_run(json_t **out, struct bench_stream_client *client,
                        const struct layout *layout,
                        const struct measure_settings *settings,
                        struct failure *why) MUST_CHECK;

#endif
