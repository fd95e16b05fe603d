/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a lane: messages from one writer to one reader, in memory
 * that both map. Neither trusts the other: what lies in the memory is read
 * once and checked, its own place is known to each side by heart. A message
 * lies there as it is written; its payload, 64-byte aligned, may lie in other
 * memory, told by number and offset. Neither side ever waits here. */
#ifndef CAPSTAN_RING_H
#define CAPSTAN_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RING_ALIGNMENT = 64, RING_HEADER = 32 << 10 };

/* What both sides see, beside the bytes. */
struct ring_shared {
    _Alignas(64) _Atomic uint64_t head; /* the writer's: bytes ever written */
    _Atomic uint32_t writer_waiting;    /* the writer waits for room */
    _Alignas(64) _Atomic uint64_t tail; /* the reader's: bytes let go */
    _Atomic uint32_t reader_waiting;    /* the reader waits for a bell */
};

/* The least capacity, a power of two, in which a payload of PAYLOAD bytes
 * always finds room in the end; 0 when there is none. */
uint64_t ring_capacity(uint64_t payload);

/* A payload: INSIDE the ring, or in the memory of this number. */
struct ring_payload {
    uint64_t offset, bytes;
    uint32_t shm_segment;
    bool inside;
};

struct ring_writer {
    struct ring_shared *shared;
    unsigned char *bytes;
    uint64_t capacity, head, tail;
    uint64_t reserved; /* where the next message begins */
    uint64_t headroom; /* it begins anew only where that leaves this room */
};

/* SHARED and BYTES [capacity], all zero, are borrowed. */
void ring_writer_init(struct ring_writer *writer, struct ring_shared *shared,
                      void *bytes, uint64_t capacity);

/* Room for a message with PAYLOAD bytes inside, and where those go. NULL: none
 * now. Holds until the next call of either function. */
void *ring_reserve(struct ring_writer *writer, uint64_t payload);

/* The message whose room was reserved last: HEADER of at most RING_HEADER bytes
 * is copied, PAYLOAD is inside, offset left out, or elsewhere. True when the
 * reader sleeps: ring its bell. */
bool ring_commit(struct ring_writer *writer, const void *header, size_t bytes,
                 const struct ring_payload *payload);

/* How far the reader has let go, in bytes ever written. */
uint64_t ring_released(struct ring_writer *writer);

/* No room, and a bell is wanted when there is some: then look once more. */
void ring_request_room(struct ring_writer *writer);

struct ring_reader {
    struct ring_shared *shared;
    const unsigned char *bytes;
    uint64_t capacity, tail, end; /* END: of the message now read */
};

/* The other side of the same memory. */
void ring_reader_init(struct ring_reader *reader, struct ring_shared *shared,
                      const void *bytes, uint64_t capacity);

/* A message: its header and an inside payload are views until ring_next_done,
 * which the other side may still write: copy before judging. */
struct ring_message {
    const void *header, *inside; /* NULL: payload elsewhere, or none */
    size_t header_bytes;
    struct ring_payload payload;
};

enum ring_state { RING_EMPTY, RING_MESSAGE, RING_BROKEN };

/* The next message, the same until it is done. BROKEN: the other side keeps no
 * rules. */
enum ring_state ring_next(struct ring_reader *reader,
                          struct ring_message *message);

/* Is there a message, or what is none? */
bool ring_pending(const struct ring_reader *reader);

/* Lets it go. True when the writer waits for room: ring its bell. */
bool ring_next_done(struct ring_reader *reader);

/* Says that I will sleep until a bell rings; false: there is something, and I
 * am awake. */
bool ring_prepare_wait(struct ring_reader *reader);

/* Awake again: no bells. */
void ring_finish_wait(struct ring_reader *reader);

#endif
