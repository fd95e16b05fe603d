/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/trace_sender.h"

/* RFC 5905's PHI: what two clocks may drift apart, 15 ns in a millisecond. */
static const int64_t DRIFT = TIME_MS / 15;

void trace_sender_take_answer(struct trace_sender *sender,
                              const Capstan__Heartbeat *answer, int64_t now) {
    int64_t there = answer->echo_taken - answer->echo;
    int64_t back = answer->sent_at - now;
    if (!answer->echo)
        return;
    sender->samples[sender->count++ % TRACE_SENDER_SAMPLES] =
        (struct trace_sender_sample){
            .at = now, .offset = there / 2 + back / 2, .delay = there - back};
}

static int64_t bound_of(const struct trace_sender_sample *sample, int64_t now) {
    return sample->delay / 2 + (now - sample->at) / DRIFT + 1;
}

bool trace_sender_offset(const struct trace_sender *sender, int64_t now,
                         int64_t *offset, uint64_t *bound) {
    const struct trace_sender_sample *best = NULL;
    uint64_t kept = sender->count < TRACE_SENDER_SAMPLES ? sender->count
                                                         : TRACE_SENDER_SAMPLES;
    *offset = 0;
    *bound = 0;
    if (sender->same_clock)
        return true;
    for (uint64_t i = 0; i < kept; i++) {
        const struct trace_sender_sample *sample = &sender->samples[i];
        if (sample->delay >= 0 &&
            (!best || bound_of(sample, now) < bound_of(best, now)))
            best = sample;
    }
    if (!best)
        return false;
    int64_t most = bound_of(best, now);
    bool is_same = best->offset <= most && best->offset >= -most;
    *offset = is_same ? 0 : best->offset;
    *bound = (uint64_t)most;
    return true;
}

bool trace_sender_next(struct trace_sender *sender, struct trace *trace,
                       int64_t now, Capstan__Trace *piece) {
    size_t count =
        trace ? trace_take(trace, sender->records, TRACE_SENDER_RECORDS) : 0;
    capstan__trace__init(piece);
    if (!count && sender->ended)
        return false;
    piece->records.data = (uint8_t *)sender->records;
    piece->records.len = count * sizeof *sender->records;
    piece->last = count < TRACE_SENDER_RECORDS;
    piece->dropped = trace ? trace_dropped(trace) : 0;
    piece->has_offset =
        trace_sender_offset(sender, now, &piece->offset, &piece->bound);
    sender->ended |= piece->last;
    return true;
}
