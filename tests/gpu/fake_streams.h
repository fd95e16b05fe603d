/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of a fake device: calls that are given, and done when it is
 * their turn. */
#ifndef CAPSTAN_FAKE_STREAMS_H
#define CAPSTAN_FAKE_STREAMS_H

#include "worker/ops/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When what is called is done: as late as the contract allows, which is when
 * somebody waits for it; or copies at once and computing late; or computing at
 * once and what it does not need late; or anything between, by the seed. */
enum fake_device_order {
    FAKE_DEVICE_LAZY,
    FAKE_DEVICE_COPIES_FIRST,
    FAKE_DEVICE_COMPUTES_FIRST,
    FAKE_DEVICE_RANDOM,
    FAKE_DEVICE_ORDERS
};

enum fake_kind {
    FAKE_COPY,
    FAKE_STREAM_WAIT,
    FAKE_PRECISION,
    FAKE_OP,
    FAKE_OTHER, /* of others: fake_stream_hook */
};

/* FAKE_STREAM_WAIT: until `done` of stream AFTER reaches POSITION. */
struct fake_command {
    enum fake_kind kind;
    enum device_stream after;
    uint64_t position;
    const void *a; /* what a copy reads */
    void *to;      /* what a copy or others write */
    size_t bytes;
    int word;
    struct op op;
    void (*work)(void *what);
    void *what;
};

/* What a fake device tells as `native` of a stream: how a collective of the
 * tests joins it. */
struct fake_stream_hook {
    void *context;
    enum device_stream stream;
    /* WORK is called with WHAT when it is the stream's turn, and may touch
     * BYTES of the device's MEMORY then. */
    void (*put)(const struct fake_stream_hook *door, void (*work)(void *what),
                void *what, void *memory, size_t bytes);
};

/* Commands number `done` to `given` - 1 wait in a ring. */
struct fake_stream {
    struct fake_command *ring;
    uint64_t room, given, done;
};

struct fake_streams {
    struct fake_stream all[DEVICE_STREAMS];
    enum fake_device_order order;
    uint64_t random;
    struct device *cpu; /* what computes: of ops_cpu */
};

void fake_streams_close(struct fake_streams *streams);

/* CALL joins STREAM. */
void fake_streams_submit(struct fake_streams *streams,
                         enum device_stream stream,
                         const struct fake_command *call);

/* What happens by itself, in the order there is. */
void fake_streams_advance(struct fake_streams *streams);

/* STREAM goes on to POSITION, and others as far as it waits for them. */
void fake_streams_run(struct fake_streams *streams, enum device_stream stream,
                      uint64_t position);

/* Does a call that is not yet done read or write MEMORY? */
bool fake_streams_is_in_use(const struct fake_streams *streams,
                            const void *memory, size_t bytes);

#endif
