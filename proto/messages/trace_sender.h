/* SPDX-License-Identifier: Apache-2.0 */
/* What a process sends of its records (core/base/trace.h), and by how much its
 * clock differs from the chief's. The offset is NTP's (RFC 5905, section 8): of
 * a heartbeat and the answer to it four times are known, and half of what both
 * were under way bounds the error. Pure but for the trace. */
#ifndef CAPSTAN_TRACE_SENDER_H
#define CAPSTAN_TRACE_SENDER_H

#include "core/base/trace.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    TRACE_SENDER_SAMPLES = 64,
    TRACE_SENDER_RECORDS = 2048, /* in a piece: 64 KiB */
    TRACE_SENDER_PIECES = 16,    /* unacknowledged at once, while it trains */
};

/* Of one heartbeat and its answer. */
struct trace_sender_sample {
    int64_t at, offset, delay; /* ns */
};

struct trace_sender {
    bool requested, ended; /* ended: the last piece was made */
    bool same_clock;       /* the chief is in this process */
    uint64_t count;        /* of all samples, of which the last are kept */
    struct trace_sender_sample samples[TRACE_SENDER_SAMPLES];
    struct trace_record records[TRACE_SENDER_RECORDS];
};

/* The chief's heartbeat ANSWER was read at NOW. */
void trace_sender_take_answer(struct trace_sender *sender,
                              const Capstan__Heartbeat *answer, int64_t now);

/* The offset at NOW, ns to add for the chief's clock, and its BOUND: of the
 * sample with the least bound, which grows with its age as clocks drift. An
 * offset within its bound is 0, as the clocks of one host are the same. False:
 * there is no sample. */
bool trace_sender_offset(const struct trace_sender *sender, int64_t now,
                         int64_t *offset, uint64_t *bound);

/* Fills in the next PIECE of TRACE (NULL: nothing was recorded), whose bytes
 * are SENDER's until the next call. False: there is none to send. */
bool trace_sender_next(struct trace_sender *sender, struct trace *trace,
                       int64_t now, Capstan__Trace *piece);

#endif
