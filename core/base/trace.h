/* SPDX-License-Identifier: Apache-2.0 */
/* What a role did when, in the steps that --trace-steps names: a bounded array
 * of records, which any of its threads adds to and one thread takes from. A
 * NULL trace records nothing: that is one branch. */
#ifndef CAPSTAN_TRACE_H
#define CAPSTAN_TRACE_H

#include "core/base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of all records of a run; each process has an equal part of them. */
enum { TRACE_BYTES = 64 << 20 };

/* Numbers that messages use. */
enum trace_kind {
    TRACE_NONE,
    TRACE_FORWARD,    /* trainer: the forward pass of a micro batch */
    TRACE_BACKWARD,   /* trainer: its backward pass */
    TRACE_INPUT,      /* trainer: the compute thread waits for samples */
    TRACE_WAIT,       /* trainer: it waits for what other processes have */
    TRACE_PUSH,       /* trainer: a message with gradients is handed over */
    TRACE_LOOKUP,     /* trainer: one that asks for rows; ps: rows are read */
    TRACE_ROWS,       /* trainer: rows are stored */
    TRACE_ARRIVAL,    /* trainer: the answer to a push is stored */
    TRACE_QUEUE,      /* ps: a gradient waits, from its arrival to its update */
    TRACE_SUM,        /* ps: a square sum; all-reduce: a bucket is summed */
    TRACE_APPLY,      /* gradients are summed and the rule is applied */
    TRACE_REPLY,      /* ps: a message with weights is handed over */
    TRACE_CHECKPOINT, /* a file of a checkpoint is written; chief: all of it */
    TRACE_KINDS
};

/* As it is sent, little-endian. */
struct trace_record {
    int64_t start, duration; /* ns, by time_now of who records it */
    uint64_t step;           /* the trainer's push, its round */
    uint32_t block;          /* a block, partition, bucket or micro batch */
    uint16_t rank;           /* ps: of the trainer; else not set */
    uint8_t kind;            /* enum trace_kind */
    uint8_t padding;
};

struct trace;

/* Reads "FIRST:LAST", two numbers from 1 on in this order. */
bool trace_steps_read(const char *text, uint64_t *first, uint64_t *last);

/* Room for CAPACITY records of the steps FIRST to LAST. NULL: no memory. */
struct trace *trace_open(uint64_t first, uint64_t last, size_t capacity);

/* Frees *TRACE (may be NULL) and clears it. No thread adds to it any more. */
void trace_close(struct trace **trace);

/* Is STEP recorded? TRACE may be NULL. */
bool trace_wants(const struct trace *trace, uint64_t step);

/* Now if STEP is recorded, else 0. */
static inline int64_t trace_begin(const struct trace *trace, uint64_t step) {
    return trace && trace_wants(trace, step) ? time_now() : 0;
}

/* Adds a copy of RECORD; counts it as dropped if there is no room. Any thread.
 */
void trace_add(struct trace *trace, const struct trace_record *record);

/* Adds what began at START (0: nothing, as trace_begin says) and ends now; a
 * wait, also for input, only if it took a microsecond. */
static inline void trace_end(struct trace *trace, int64_t start,
                             enum trace_kind kind, uint64_t step,
                             uint32_t block) {
    int64_t duration = start ? time_now() - start : 0;
    bool waits = kind == TRACE_WAIT || kind == TRACE_INPUT;
    if (start && (!waits || duration >= TIME_US))
        trace_add(trace, &(struct trace_record){.start = start,
                                                .duration = duration,
                                                .step = step,
                                                .block = block,
                                                .kind = (uint8_t)kind});
}

/* Moves the next COUNT records at most to TO, in the order in which they were
 * added; returns how many. One thread. */
size_t trace_take(struct trace *trace, struct trace_record *to, size_t count);

/* Records that had no room. */
uint64_t trace_dropped(struct trace *trace);

#endif
