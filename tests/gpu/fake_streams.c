/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake_streams.h"

#include <stdlib.h>
#include <string.h>

static void compute_update(struct device *device,
                           const struct fake_command *c) {
    const struct device_ops *cpu = ops_cpu();
    struct rule_update update = c->update;
    switch (c->kind) {
    case FAKE_FILL:
        cpu->fill(device, STREAM_COMPUTE, c->to, c->bytes / sizeof(float),
                  c->scale);
        return;
    case FAKE_SCALE:
        cpu->scale(device, STREAM_COMPUTE, c->to, c->bytes / sizeof(float),
                   c->scale);
        return;
    case FAKE_FIND_OVERFLOW:
        cpu->find_overflow(device, STREAM_COMPUTE, c->a,
                           c->bytes / sizeof(float), c->to);
        return;
    case FAKE_SQUARE_SUMS:
        cpu->square_sums(device, STREAM_COMPUTE, c->a, c->bytes / sizeof(float),
                         c->scale, c->to);
        return;
    case FAKE_REDUCE_SUM:
        cpu->reduce_sum(device, STREAM_COMPUTE, c->a, c->bytes / sizeof(double),
                        c->to);
        return;
    case FAKE_CLIP:
        cpu->clip(device, STREAM_COMPUTE, c->a, c->n, c->in, c->limit, c->to);
        return;
    case FAKE_RULE:
        update.gradients = &c->a;
        cpu->rule(device, STREAM_COMPUTE, &c->rule, &update, c->b);
        return;
    default:
        c->work(c->what);
    }
}

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
    case FAKE_LINEAR:
        cpu->linear(device, c->a, c->b, c->c, c->to, c->n, c->in, c->out,
                    (enum job_activation)c->word);
        return;
    case FAKE_INPUT_GRADIENT:
        cpu->linear_input_gradient(device, c->a, c->b, c->to, c->n, c->in,
                                   c->out);
        return;
    case FAKE_WEIGHT_GRADIENT:
        cpu->linear_weight_gradient(device, c->a, c->b, c->to, c->n, c->in,
                                    c->out, c->add);
        return;
    case FAKE_COLUMN_SUMS:
        cpu->column_sums(device, c->a, c->to, c->n, c->out, c->add);
        return;
    case FAKE_ACTIVATION_GRADIENT:
        cpu->activation_gradient(device, (enum job_activation)c->word, c->a,
                                 c->to, c->n, c->out);
        return;
    case FAKE_LOSS:
        cpu->loss(device, (enum job_loss)c->word, c->a, c->b, c->to, c->n,
                  c->out, c->scale, c->second, c->third);
        return;
    case FAKE_ROWS:
        cpu->rows(device, &c->rows);
        return;
    default:
        compute_update(device, c);
        return;
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
            const void *const all[] = {c->a, c->b, c->c, c->to, c->second};
            for (int j = 0; j < 5; j++)
                if (reaches(all[j], memory, bytes))
                    return true;
        }
    }
    return false;
}
