/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/bench_soak.h"

#include "proto/base/time.h"
#include "worker/bench/measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 1000 };

/* Resident bytes of process PID, 0 if it cannot be read. Shared memory is
 * excluded: its size is fixed, and its pages become resident with use. */
static uint64_t resident_bytes(long pid) {
    char path[64], line[256];
    unsigned long long all = 0, shared = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "VmRSS: %llu kB", &all);
        sscanf(line, "RssShmem: %llu kB", &shared);
    }
    if (file)
        fclose(file);
    return (all - shared) * 1024;
}

/* The sum over the list; null if one is unknown. */
static json_t *memory_of(const char *pids) {
    uint64_t sum = 0;
    while (pids && *pids) {
        char *end;
        uint64_t bytes = resident_bytes(strtol(pids, &end, 10));
        if (!bytes || end == pids)
            return json_null();
        sum += bytes;
        pids = *end == ',' ? end + 1 : end;
    }
    return sum ? json_integer((json_int_t)sum) : json_null();
}

static json_t *bench_soak_result_json(
    const struct bench_iteration *bench_iteration, uint64_t vectors_per_message,
    json_t *start, json_t *end) {
    return json_pack(
        "{s:{s:I, s:I, s:I, s:f, s:f, s:o, s:o}}", "requests", "count",
        (json_int_t)(bench_iteration->vectors * vectors_per_message), "bytes",
        (json_int_t)(bench_iteration->bytes / vectors_per_message), "together",
        (json_int_t)vectors_per_message, "seconds",
        time_to_seconds(bench_iteration->elapsed), "requests_s",
        bench_iteration_vectors_s(bench_iteration) *
            (double)vectors_per_message,
        "ps_memory_start", start, "ps_memory_end", end);
}

/* Warm up with a tenth of the requests: one-time allocations happen there. */
enum status bench_soak_run(json_t **out,
                           struct bench_stream_client *bench_stream_client,
                           const struct bench_soak_settings *settings,
                           struct failure *why) {
    const struct layout *layout = settings->layout;
    uint32_t vectors_per_message = settings->batched ? MEASURE_SMALL : 1;
    uint32_t last = layout->num_parameters - 1;
    uint32_t first = layout->first_block[settings->batched ? last : 0];
    uint32_t count =
        settings->batched ? vectors_per_message : layout->num_blocks_of[0];
    uint64_t times =
        (settings->requests + vectors_per_message - 1) / vectors_per_message;
    struct bench_iteration bench_iteration = {
        .kind = BENCH_ITERATION_PUSH, .depth = DEPTH, .stop = settings->stop};
    bench_iteration.times = times / 10 + 1;
    *out = NULL;
    enum status status = bench_stream_iteration(bench_stream_client, first,
                                                count, &bench_iteration, why);
    if (status)
        return status;
    json_t *start = memory_of(settings->ps_pids);
    bench_iteration.times = times;
    status = bench_stream_iteration(bench_stream_client, first, count,
                                    &bench_iteration, why);
    if (!status && bench_iteration.vectors < times)
        status = status_fail(why, STATUS_INTERRUPTED, "ended by a signal");
    if (status)
        json_decref(start);
    else
        *out = bench_soak_result_json(&bench_iteration, vectors_per_message,
                                      start, memory_of(settings->ps_pids));
    return status;
}
