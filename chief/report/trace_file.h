/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the steps that are traced (--trace-steps): the chief collects the
 * records of all processes and writes them once, on a thread of its own when
 * the steps are over, else at the end of the run. */
#ifndef CAPSTAN_TRACE_FILE_H
#define CAPSTAN_TRACE_FILE_H

#include "core/base/status.h"
#include "core/base/trace.h"
#include "proto/messages/control.pb-c.h"

#include <stdint.h>

struct roster_slot;
struct run;
struct trace_file;

struct run_trace {
    uint64_t first, last;    /* steps; 0: none */
    uint32_t room;           /* for records, of each process */
    struct trace_file *file; /* NULL: there is none */
};

/* What to trace. */
struct trace_steps {
    uint64_t first, last; /* 0: nothing */
    const char *path;     /* borrowed; NULL: capstan-RUN.pftrace in the current
                             folder */
};

/* Opens RUN's trace of STEPS, if there are any. STATUS_CONFIG or STATUS_FAILED:
 * the file's folder cannot be written, or another run is to write the file. */
enum status trace_file_open(struct run *run, const struct trace_steps *steps,
                            struct failure *why) MUST_CHECK;

/* Frees RUN's trace, if there is one. */
void trace_file_close(struct run *run);

/* SLOT's process sends PIECE. */
void trace_file_receive(struct run *run, const struct roster_slot *slot,
                        const Capstan__Trace *piece);

/* Records the checkpoint that the chief has completed. Requests the records
 * once all trainers are past the last step; begins to write once they are here.
 */
void trace_file_step(struct run *run, int64_t now);

/* Is RUN's file written, or has it none because its lineage has written one? */
bool trace_file_is_written(const struct run *run);

/* At the end of a run that has a plan: writes what there is, unless it is
 * written. Waits for its disk for timeouts.stop, at least 10 s; then the run
 * ends without it, which the log says. */
void trace_file_finish(struct run *run);

#endif
