#include "worker/endure.h"

#include "proto/base/time.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 1000, WARM_UP = 100000 };

/* Resident bytes of process PID, 0 when it is not to be seen. */
static uint64_t resident_bytes(long pid) {
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    FILE *file = fopen(path, "r");
    while (file && !kib && fgets(line, sizeof line, file))
        sscanf(line, "VmRSS: %llu kB", &kib);
    if (file)
        fclose(file);
    return kib * 1024;
}

/* Of all in the list; null when one is not known. */
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

enum status endure_run(json_t **out, struct stream *stream,
                       const struct layout *layout, uint64_t requests,
                       const char *ps_pids, const atomic_bool *stop,
                       struct failure *why) {
    uint64_t warm = requests / 10 < WARM_UP ? requests / 10 : WARM_UP;
    struct lap lap = {.kind = LAP_PUSH, .depth = DEPTH, .times = warm + 1};
    uint32_t first = layout->first_block[0], count = layout->num_blocks_of[0];
    lap.stop = stop;
    *out = NULL;
    enum status status = stream_lap(stream, first, count, &lap, why);
    if (status)
        return status;
    json_t *start = memory_of(ps_pids);
    lap.times = requests;
    status = stream_lap(stream, first, count, &lap, why);
    if (!status && lap.vectors < requests)
        status = status_fail(why, STATUS_INTERRUPTED, "ended by a signal");
    if (status) {
        json_decref(start);
        return status;
    }
    *out = json_pack("{s:{s:I, s:I, s:f, s:f, s:o, s:o}}", "requests", "count",
                     (json_int_t)lap.vectors, "bytes", (json_int_t)lap.bytes,
                     "seconds", time_to_seconds(lap.elapsed), "requests_s",
                     lap_vectors_s(&lap), "ps_memory_start", start,
                     "ps_memory_end", memory_of(ps_pids));
    return STATUS_OK;
}
