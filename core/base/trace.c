/* SPDX-License-Identifier: Apache-2.0 */
/* A thread reserves a place by a counter, fills it in, and marks it as
 * complete; the taker stops at a place that is not. */
#include "core/base/trace.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

static_assert(sizeof(struct trace_record) == 32,
              "records are sent as they are");

struct trace {
    uint64_t first, last;
    size_t capacity, taken; /* taken: the taker's */
    atomic_size_t added;    /* those without room included */
    struct trace_record *records;
    atomic_uchar *complete; /* [capacity] */
};

/* Digits alone, so that "-1" and " 1" are none. */
static bool read_step(const char *text, char end, const char **rest,
                      uint64_t *step) {
    char *after;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *step = strtoull(text, &after, 10);
    *rest = after + 1;
    return !errno && *after == end && *step > 0;
}

bool trace_steps_read(const char *text, uint64_t *first, uint64_t *last) {
    return read_step(text, ':', &text, first) &&
           read_step(text, 0, &text, last) && *first <= *last;
}

struct trace *trace_open(uint64_t first, uint64_t last, size_t capacity) {
    struct trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return NULL;
    trace->first = first;
    trace->last = last;
    trace->capacity = capacity;
    trace->records = calloc(capacity + 1, sizeof *trace->records);
    trace->complete = calloc(capacity + 1, sizeof *trace->complete);
    if (!trace->records || !trace->complete)
        trace_close(&trace);
    return trace;
}

void trace_close(struct trace **where) {
    struct trace *trace = *where;
    *where = NULL;
    if (!trace)
        return;
    free(trace->records);
    free(trace->complete);
    free(trace);
}

bool trace_wants(const struct trace *trace, uint64_t step) {
    return trace && step >= trace->first && step <= trace->last;
}

void trace_add(struct trace *trace, const struct trace_record *record) {
    assert(record->kind > TRACE_NONE && record->kind < TRACE_KINDS);
    size_t i =
        atomic_fetch_add_explicit(&trace->added, 1, memory_order_relaxed);
    if (i >= trace->capacity)
        return;
    trace->records[i] = *record;
    atomic_store_explicit(&trace->complete[i], 1, memory_order_release);
}

size_t trace_take(struct trace *trace, struct trace_record *to, size_t count) {
    size_t taken = 0;
    while (taken < count && trace->taken < trace->capacity &&
           atomic_load_explicit(&trace->complete[trace->taken],
                                memory_order_acquire))
        to[taken++] = trace->records[trace->taken++];
    return taken;
}

uint64_t trace_dropped(struct trace *trace) {
    size_t added = atomic_load(&trace->added);
    return added > trace->capacity ? added - trace->capacity : 0;
}
