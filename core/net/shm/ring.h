/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a shared-memory connection: messages from one writer to one
 * reader in memory that both map. Neither trusts the other: each reads a shared
 * field once and checks it, and keeps its own position privately. A payload,
 * 64-byte aligned, lies in the ring, or in another segment by number and
 * offset. No function here blocks. */
#ifndef CAPSTAN_RING_H
#define CAPSTAN_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RING_ALIGNMENT = 64, RING_HEADER = 32 << 10 };

/* Shared by both sides, besides the bytes. */
struct ring_shared {
    _Alignas(64) _Atomic uint64_t head; /* the writer's: bytes ever written */
    _Atomic uint32_t writer_waiting;    /* the writer waits for room */
    _Alignas(64) _Atomic uint64_t tail; /* the reader's: bytes released */
    _Atomic uint32_t reader_waiting;    /* the reader waits for a wakeup */
};

/* The smallest power of two in which a payload of PAYLOAD bytes always finds
 * room sooner or later; 0: PAYLOAD is too large. */
uint64_t ring_capacity(uint64_t payload);

/* A payload: INSIDE the ring, or in segment SHM_SEGMENT at OFFSET. MORE:
 * inside, a part that the next message continues. */
struct ring_payload {
    uint64_t offset, bytes;
    uint32_t shm_segment;
    bool inside, more;
};

struct ring_writer {
    struct ring_shared *shared;
    unsigned char *bytes;
    uint64_t capacity, head, tail;
    uint64_t reserved; /* position of the next message */
    uint64_t headroom; /* room that a restart at the beginning must leave */
};

/* SHARED and BYTES [capacity] are zero and borrowed. */
void ring_writer_init(struct ring_writer *writer, struct ring_shared *shared,
                      void *bytes, uint64_t capacity);

/* Reserves room for a message with PAYLOAD bytes inside and returns where they
 * go. NULL: no room now. Valid until the next call of ring_reserve or
 * ring_commit. */
void *ring_reserve(struct ring_writer *writer, uint64_t payload);

/* Commits the message reserved last. Copies HEADER, of at most RING_HEADER
 * bytes. PAYLOAD is inside, its offset unused, or elsewhere. True if the reader
 * sleeps: send it a wakeup. */
bool ring_commit(struct ring_writer *writer, const void *header, size_t bytes,
                 const struct ring_payload *payload);

/* The position up to which the reader has released messages. */
uint64_t ring_released(struct ring_writer *writer);

/* Asks for a wakeup when there is room. Check for room once more afterwards. */
void ring_request_room(struct ring_writer *writer);

struct ring_reader {
    struct ring_shared *shared;
    const unsigned char *bytes;
    uint64_t capacity, tail, end; /* END: behind the message being read */
};

/* The reading side of the same memory. */
void ring_reader_init(struct ring_reader *reader, struct ring_shared *shared,
                      const void *bytes, uint64_t capacity);

/* A message. Its header and inside payload are views until ring_next_done; the
 * other side may still write there, so copy them before checking. */
struct ring_message {
    const void *header, *inside; /* NULL: payload elsewhere, or none */
    size_t header_bytes;
    struct ring_payload payload;
};

enum ring_state { RING_EMPTY, RING_MESSAGE, RING_BROKEN };

/* The next message; the same until ring_next_done. RING_BROKEN: the other side
 * violates the protocol. */
enum ring_state ring_next(struct ring_reader *reader,
                          struct ring_message *message);

/* Is there a message, or an invalid head? */
bool ring_pending(const struct ring_reader *reader);

/* Releases the message. True if the writer waits for room: send it a wakeup. */
bool ring_next_done(struct ring_reader *reader);

/* Announces that the reader will sleep until a wakeup. False: there is a
 * message; the reader stays awake. */
bool ring_prepare_wait(struct ring_reader *reader);

/* The reader is awake: no wakeups. */
void ring_finish_wait(struct ring_reader *reader);

#endif
