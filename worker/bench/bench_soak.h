/* SPDX-License-Identifier: Apache-2.0 */
/* Very many small requests, and what the ps keeps of them: nothing. */
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
    bool batched; /* small vectors that share messages; else the first one */
    const char *ps_pids; /* process numbers of the ps on this machine, separated
                            by commas, whose resident memory is told; NULL: they
                            are elsewhere */
    const atomic_bool *stop; /* ends it early */
};

/* Pushes through STREAM until REQUESTS vectors, or the first multiple of what
 * shares a message, have been answered. *OUT is the object that docs/bench.md
 * tells of, the caller's. */
enum status bench_soak_run(json_t **out,
                           struct bench_stream_client *bench_stream_client,
                           const struct bench_soak_settings *settings,
                           struct failure *why) MUST_CHECK;

#endif
