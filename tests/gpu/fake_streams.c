/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake_streams.h"

#include <stdlib.h>
#include <string.h>

static void compute(struct device *device, const struct fake_command *c) {
    const struct device_ops *cpu = ops_cpu();
    switch (c->kind) {
    case FAKE_COPY:
        memcpy(c->to, c->a, c->bytes);
        return;
    case FAKE_STREAM_WAIT:
        return;
    case FAKE_PRECISION:
        cpu->set_precision(device, (enum job_precision)c->word);
        return;
    case FAKE_OP:
        cpu->run(device, STREAM_COMPUTE, c->op);
        return;
    case FAKE_OTHER:
        c->work(c->what);
    }
}

/* Does the next command of STREAM wait for another stream? */
static bool is_held(const struct fake_streams *streams,
                    const struct fake_stream *stream) {
    const struct fake_command *next =
        &stream->ring[stream->done % stream->room];
    return next->kind == FAKE_STREAM_WAIT &&
           streams->all[next->after].done < next->position;
}

/* STREAM goes on to POSITION, and others as far as it waits for them. */
static void run_to(struct fake_streams *streams, struct fake_stream *stream,
                   uint64_t position) {
    while (stream->done < position) {
        struct fake_command next = stream->ring[stream->done % stream->room];
        if (next.kind == FAKE_STREAM_WAIT)
            run_to(streams, &streams->all[next.after], next.position);
        else
            compute(streams->cpu, &next);
        stream->done++;
    }
}

/* STREAM goes on as far as it waits for no other. */
static bool run_freely(struct fake_streams *streams,
                       struct fake_stream *stream) {
    uint64_t before = stream->done;
    while (stream->done < stream->given && !is_held(streams, stream))
        run_to(streams, stream, stream->done + 1);
    return stream->done > before;
}

static void run_copies(struct fake_streams *streams) {
    bool moved;
    do {
        moved = false;
        for (int s = 0; s < DEVICE_STREAMS; s++)
            if (s != STREAM_COMPUTE)
                moved |= run_freely(streams, &streams->all[s]);
    } while (moved);
}

static void run_some(struct fake_streams *streams) {
    streams->random = streams->random * 6364136223846793005u + 1;
    struct fake_stream *stream =
        &streams->all[(streams->random >> 33) % DEVICE_STREAMS];
    uint64_t steps = (streams->random >> 40) % 4;
    uint64_t most = stream->given - stream->done;
    run_to(streams, stream, stream->done + (steps < most ? steps : most));
}

void fake_streams_advance(struct fake_streams *streams) {
    struct fake_stream *computing = &streams->all[STREAM_COMPUTE];
    switch (streams->order) {
    case FAKE_DEVICE_COPIES_FIRST:
        run_copies(streams);
        return;
    case FAKE_DEVICE_COMPUTES_FIRST:
        run_to(streams, computing, computing->given);
        return;
    case FAKE_DEVICE_RANDOM:
        run_some(streams);
        return;
    default:
        return;
    }
}

void fake_streams_submit(struct fake_streams *streams,
                         enum device_stream number,
                         const struct fake_command *call) {
    struct fake_stream *stream = &streams->all[number];
    if (stream->given - stream->done == stream->room) {
        uint64_t room = stream->room ? 2 * stream->room : 64;
        struct fake_command *ring = calloc(room, sizeof *ring);
        if (!ring)
            abort();
        for (uint64_t i = stream->done; i < stream->given; i++)
            ring[i % room] = stream->ring[i % stream->room];
        free(stream->ring);
        stream->ring = ring;
        stream->room = room;
    }
    stream->ring[stream->given++ % stream->room] = *call;
}

void fake_streams_run(struct fake_streams *streams, enum device_stream stream,
                      uint64_t position) {
    run_to(streams, &streams->all[stream], position);
}

void fake_streams_close(struct fake_streams *streams) {
    for (int s = 0; s < DEVICE_STREAMS; s++)
        free(streams->all[s].ring);
}

static bool reaches(const void *pointer, const void *memory, size_t bytes) {
    const char *byte = pointer, *first = memory;
    return byte >= first && byte < first + bytes;
}

bool fake_streams_is_in_use(const struct fake_streams *streams,
                            const void *memory, size_t bytes) {
    for (int s = 0; s < DEVICE_STREAMS; s++) {
        const struct fake_stream *stream = &streams->all[s];
        for (uint64_t i = stream->done; i < stream->given; i++) {
            const struct fake_command *c = &stream->ring[i % stream->room];
            bool uses =
                reaches(c->a, memory, bytes) || reaches(c->to, memory, bytes);
            for (unsigned j = 0; j < OP_TENSORS; j++)
                uses |= reaches(op_tensor_at(&c->op, j)->data, memory, bytes);
            if (uses)
                return true;
        }
    }
    return false;
}
