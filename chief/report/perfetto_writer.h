/* SPDX-License-Identifier: Apache-2.0 */
/* Writes records of all processes (core/base/trace.h) as a trace of Perfetto: a
 * process each, a track for each kind of work in it, and flows from a push to
 * its update, its reply and that reply's arrival. */
#ifndef CAPSTAN_PERFETTO_WRITER_H
#define CAPSTAN_PERFETTO_WRITER_H

#include "core/base/status.h"
#include "core/base/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perfetto_process {
    char name[64]; /* "worker 1" */
    char host[256];
    uint32_t pid;
    bool trainer; /* RANK is that of all its records */
    uint32_t rank;
    struct trace_record *records; /* [count], in the chief's time; are sorted */
    size_t count;
    uint64_t dropped;
    bool has_offset;
    int64_t offset;      /* ns that were added to its times, */
    uint64_t bound;      /* and by how much they may still be off */
    const char *missing; /* why it has no records, or lacks some; NULL: it does
                            not */
};

struct perfetto_trace {
    uint64_t run, first, last; /* steps */
    struct perfetto_process *processes;
    size_t num_processes;
};

/* Writes TRACE to PATH, whole or not at all. */
enum status perfetto_write(const char *path, const struct perfetto_trace *trace,
                           struct failure *why) MUST_CHECK;

#endif
