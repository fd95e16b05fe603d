/* SPDX-License-Identifier: Apache-2.0 */
/* A soak test: very many small requests, after which the memory of the ps must
 * not have grown. */
#ifndef CAPSTAN_BENCH_SOAK_H
#define CAPSTAN_BENCH_SOAK_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"
#include "worker/bench/bench_stream_client.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct bench_soak_settings {
    const struct layout *layout; /* of measure_layout */
    uint64_t requests;
    bool batched; /* small vectors that share messages; else the first vector */
    /* Process ids of the ps on this host, comma-separated, whose resident
     * memory is reported; NULL: they are elsewhere. */
    const char *ps_pids;
    const atomic_bool *stop; /* ends it early */
};

/* Pushes through BENCH_STREAM_CLIENT until REQUESTS vectors, rounded up to
 * whole messages, have been answered. *OUT is the object that docs/bench.md
 * describes, owned by the caller. */
enum status bench_soak_run(json_t **out,
                           struct bench_stream_client *bench_stream_client,
                           const struct bench_soak_settings *settings,
                           struct failure *why) MUST_CHECK;

#endif
