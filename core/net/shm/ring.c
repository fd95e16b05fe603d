/* SPDX-License-Identifier: Apache-2.0 */
/* A position counts the bytes ever written; the offset in memory is the
 * position modulo the capacity. Head and tail are positions, each written by
 * one side only: with release after the bytes it stands for, and read by the
 * other side with acquire. A record with its payload and header is contiguous,
 * so one that does not fit before the end starts again at the beginning, behind
 * a SKIP record.
 *
 * Wakeups: a side that is about to wait sets its flag (reader_waiting,
 * writer_waiting), then checks once more; a side that has moved its position
 * reads the other's flag after that. The sequentially consistent fences in
 * between ensure that at least one of them sees the other's write (Dekker's
 * algorithm), so no wakeup is lost. A side that does not wait gets none. */
#include "core/net/shm/ring.h"

#include <string.h>

/* The head of a message in the ring; its inside payload and its header follow.
 */
struct record {
    uint32_t kind;
    uint32_t header_bytes;
    uint64_t bytes, offset; /* of the payload */
    uint32_t shm_segment;
    uint32_t unused[9]; /* fills a cache line */
};

enum { SKIP = 1, INSIDE, OUTSIDE, PART /* INSIDE, and more follows */ };
enum { CACHED_BYTES = 64 << 10 }; /* unread, before the tail is reread */
enum { RESTART_BYTES = 256 << 10 };

_Static_assert(sizeof(struct record) == RING_ALIGNMENT, "payloads are aligned");

static uint64_t aligned(uint64_t bytes) {
    return (bytes + RING_ALIGNMENT - 1) / RING_ALIGNMENT * RING_ALIGNMENT;
}

static uint64_t record_bytes(uint64_t payload, uint64_t header) {
    return sizeof(struct record) + aligned(payload) + aligned(header);
}

uint64_t ring_capacity(uint64_t payload) {
    uint64_t capacity = 1 << 12;
    if (payload > UINT64_C(1) << 40)
        return 0;
    /* Twice the size: an empty ring then has room before or behind its
     * position. */
    while (capacity < 2 * record_bytes(payload, RING_HEADER))
        capacity *= 2;
    return capacity;
}

void ring_writer_init(struct ring_writer *writer, struct ring_shared *shared,
                      void *bytes, uint64_t capacity) {
    *writer = (struct ring_writer){
        .shared = shared, .bytes = bytes, .capacity = capacity};
}

/* Ignores an invalid tail. It could only cost the faulty reader: the writer
 * keeps to its own last valid value. */
uint64_t ring_released(struct ring_writer *writer) {
    uint64_t tail =
        atomic_load_explicit(&writer->shared->tail, memory_order_acquire);
    if (tail - writer->tail <= writer->head - writer->tail)
        writer->tail = tail;
    return writer->tail;
}

/* The position at which a message of NEED bytes may begin, or UINT64_MAX. The
 * writer restarts at the beginning when the ring is empty or it has come far:
 * that reuses warm cache lines and leaves most of the memory untouched. Skipped
 * bytes count as written until the reader has passed them. */
static uint64_t find_space(const struct ring_writer *writer, uint64_t need) {
    uint64_t at = writer->head & (writer->capacity - 1);
    uint64_t to_end = writer->capacity - at;
    uint64_t used = writer->head - writer->tail;
    uint64_t space = writer->capacity - used;
    bool fits_start = to_end < space && need <= space - to_end;
    bool restarts =
        space - to_end >= writer->headroom && (!used || at >= RESTART_BYTES);
    if (at && fits_start && (restarts || need > to_end))
        return writer->head + to_end;
    return need <= to_end && need <= space ? writer->head : UINT64_MAX;
}

/* Reserves room for the longest header, as the header's length is not known
 * yet. The next message gets back what is left. */
void *ring_reserve(struct ring_writer *writer, uint64_t payload) {
    if (payload > writer->capacity)
        return NULL;
    uint64_t need = record_bytes(payload, RING_HEADER);
    if (writer->head - writer->tail > CACHED_BYTES)
        ring_released(writer);
    writer->reserved = find_space(writer, need);
    if (writer->reserved == UINT64_MAX) {
        ring_released(writer);
        writer->reserved = find_space(writer, need);
    }
    if (writer->reserved == UINT64_MAX)
        return NULL;
    return writer->bytes + (writer->reserved & (writer->capacity - 1)) +
           sizeof(struct record);
}

static struct record *record_at(const struct ring_writer *writer,
                                uint64_t position) {
    return (struct record *)(writer->bytes +
                             (position & (writer->capacity - 1)));
}

bool ring_commit(struct ring_writer *writer, const void *header, size_t bytes,
                 const struct ring_payload *payload) {
    uint64_t inside = payload->inside ? payload->bytes : 0;
    struct record *record = record_at(writer, writer->reserved);
    if (writer->reserved != writer->head)
        record_at(writer, writer->head)->kind = SKIP;
    record->kind = payload->more ? PART : payload->inside ? INSIDE : OUTSIDE;
    record->header_bytes = (uint32_t)bytes;
    record->bytes = payload->bytes;
    record->offset = payload->offset;
    record->shm_segment = payload->shm_segment;
    if (bytes)
        memcpy((unsigned char *)record + record_bytes(inside, 0), header,
               bytes);
    writer->head = writer->reserved + record_bytes(inside, bytes);
    atomic_store_explicit(&writer->shared->head, writer->head,
                          memory_order_release);
    /* Either this load sees the reader's flag, or the reader's check before it
     * sleeps sees the message. */
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&writer->shared->reader_waiting,
                                memory_order_relaxed) &&
           atomic_exchange_explicit(&writer->shared->reader_waiting, 0,
                                    memory_order_relaxed);
}

void ring_request_room(struct ring_writer *writer) {
    atomic_store_explicit(&writer->shared->writer_waiting, 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void ring_reader_init(struct ring_reader *reader, struct ring_shared *shared,
                      const void *bytes, uint64_t capacity) {
    *reader = (struct ring_reader){
        .shared = shared, .bytes = bytes, .capacity = capacity};
}

/* Bytes written and not yet released: a multiple of 64 up to the capacity, or
 * UINT64_MAX if invalid. */
static uint64_t readable_bytes(const struct ring_reader *reader) {
    uint64_t head =
        atomic_load_explicit(&reader->shared->head, memory_order_acquire);
    uint64_t bytes = head - reader->tail;
    return bytes <= reader->capacity && bytes % RING_ALIGNMENT == 0
               ? bytes
               : UINT64_MAX;
}

/* Copies the record once, so that the checked values are the ones used. */
static struct record read_record(const struct ring_reader *reader) {
    struct record record;
    memcpy(&record, reader->bytes + (reader->tail & (reader->capacity - 1)),
           sizeof record);
    atomic_signal_fence(memory_order_seq_cst);
    return record;
}

/* Moves to the beginning; false: no message lies there. */
static bool skip(struct ring_reader *reader, uint64_t bytes) {
    uint64_t to_end =
        reader->capacity - (reader->tail & (reader->capacity - 1));
    if (to_end >= bytes)
        return false;
    reader->tail += to_end;
    return true;
}

enum ring_state ring_next(struct ring_reader *reader,
                          struct ring_message *message) {
    uint64_t bytes = readable_bytes(reader);
    if (bytes == UINT64_MAX)
        return RING_BROKEN;
    if (!bytes)
        return RING_EMPTY;
    struct record record = read_record(reader);
    if (record.kind == SKIP) {
        if (!skip(reader, bytes))
            return RING_BROKEN;
        bytes = readable_bytes(reader);
        if (!bytes || bytes == UINT64_MAX)
            return RING_BROKEN;
        record = read_record(reader);
    }
    uint64_t to_end =
        reader->capacity - (reader->tail & (reader->capacity - 1));
    bool is_inside = record.kind == INSIDE || record.kind == PART;
    uint64_t inside = is_inside ? record.bytes : 0;
    if ((!is_inside && record.kind != OUTSIDE) ||
        record.header_bytes > RING_HEADER || inside > reader->capacity)
        return RING_BROKEN;
    uint64_t size = record_bytes(inside, record.header_bytes);
    if (size > bytes || size > to_end)
        return RING_BROKEN;
    const unsigned char *start =
        reader->bytes + (reader->tail & (reader->capacity - 1));
    *message =
        (struct ring_message){.header = start + record_bytes(inside, 0),
                              .inside = inside ? start + sizeof record : NULL,
                              .header_bytes = record.header_bytes,
                              .payload = {.offset = record.offset,
                                          .bytes = record.bytes,
                                          .shm_segment = record.shm_segment,
                                          .inside = is_inside,
                                          .more = record.kind == PART}};
    reader->end = reader->tail + size;
    return RING_MESSAGE;
}

bool ring_pending(const struct ring_reader *reader) {
    return readable_bytes(reader);
}

bool ring_next_done(struct ring_reader *reader) {
    reader->tail = reader->end;
    atomic_store_explicit(&reader->shared->tail, reader->tail,
                          memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&reader->shared->writer_waiting,
                                memory_order_relaxed) &&
           atomic_exchange_explicit(&reader->shared->writer_waiting, 0,
                                    memory_order_relaxed);
}

bool ring_prepare_wait(struct ring_reader *reader) {
    atomic_store_explicit(&reader->shared->reader_waiting, 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!readable_bytes(reader))
        return true;
    ring_finish_wait(reader);
    return false;
}

void ring_finish_wait(struct ring_reader *reader) {
    atomic_store_explicit(&reader->shared->reader_waiting, 0,
                          memory_order_relaxed);
}
