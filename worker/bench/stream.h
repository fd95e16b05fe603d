/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange with the ps that keeps no weights: vectors are pushed out of one
 * buffer and read into another, over and over, so that a few megabytes serve a
 * plan of any size. The messages are those of worker/exchange/client/client.h.
 * One thread. */
#ifndef CAPSTAN_STREAM_H
#define CAPSTAN_STREAM_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/tensor/plan.h"
#include "worker/bench/lap.h"

#include <stdint.h>

struct stream_settings {
    void *zmq;
    const struct log *log;
    const struct plan *plan; /* borrowed; of an asynchronous run */
    uint64_t run, incarnation;
    uint32_t rank;
    uint64_t from;  /* clock of the first push */
    double timeout; /* seconds a ps may be silent */
    bool lanes;     /* shared memory first with a ps on this host */
};

struct stream;

/* Opens a link to each ps and waits until all stand. STATUS_RETRY names the ps
 * that cannot be reached within the timeout. */
enum status stream_open(struct stream **out,
                        const struct stream_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Closes the links and clears *STREAM (may be NULL). */
void stream_close(struct stream **stream);

/* Runs LAP with the COUNT blocks of the plan from FIRST on as the vector; its
 * `bytes` are filled in. A block always goes together with the same others.
 * STATUS_RETRY names a ps that does not answer, STATUS_FAILED one that
 * refuses. A lap that is stopped ends at once, and the stream with it. */
enum status stream_lap(struct stream *stream, uint32_t first, uint32_t count,
                       struct lap *lap, struct failure *why) MUST_CHECK;

/* How the bytes go: "tcp" or "shm", "mixed" when it is not all one. */
const char *stream_lane(const struct stream *stream);

/* Pushes of the vector that was pushed most: the clock to report. */
uint64_t stream_clock(const struct stream *stream);

#endif
