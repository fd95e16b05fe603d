/* SPDX-License-Identifier: Apache-2.0 */
/* A payload is sent in one of three ways. If it lies in a shareable segment,
 * the segment's descriptor is sent once and each message then carries a number
 * and an offset; the buffer is held until the reader releases the message. If
 * it was reserved, it lies in the ring already. Otherwise it is copied into the
 * ring, in parts if it is longer than the ring can have as a whole; the reader
 * joins them. A message that finds no room waits in a queue, in order, and the
 * writer asks for a wakeup when there is room.
 *
 * A wakeup is a system call, so it is sent only to a sleeping reader, and once
 * for all messages of a loop turn: at its end (shm_connection_prepare_wait), or
 * after 256 KiB. */
#include "core/net/shm/shm_connection.h"

#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_QUEUED = 1 << 16, NOT_SHARED = SHM_CONNECTION_SEGMENTS };
enum { WAKEUP_BYTES = 256 << 10 };

static void drop_queued(struct shm_connection *connection) {
    struct shm_connection_pending *queued = connection->first;
    connection->first = queued->next;
    connection->num_queued--;
    buffer_release(&queued->buffer);
    free(queued->owned);
    free(queued);
}

static void drop_in_flight(struct shm_connection *connection) {
    buffer_release(&connection->in_flight[connection->first_in_flight].buffer);
    connection->first_in_flight =
        (connection->first_in_flight + 1) % connection->in_flight_capacity;
    connection->num_in_flight--;
}

void shm_connection_close(struct shm_connection **where) {
    struct shm_connection *connection = *where;
    *where = NULL;
    if (!connection)
        return;
    while (connection->first)
        drop_queued(connection);
    while (connection->num_in_flight)
        drop_in_flight(connection);
    for (unsigned i = 0; i < connection->num_shared; i++)
        shm_segment_release(&connection->shared[i]);
    for (unsigned i = 0; i < connection->num_mapped; i++)
        shm_segment_release(&connection->mapped[i]);
    shm_segment_release(&connection->shm_segment);
    close(connection->socket);
    if (connection->wakeup >= 0)
        close(connection->wakeup);
    if (connection->peer_wakeup >= 0)
        close(connection->peer_wakeup);
    free(connection->spare_buffer);
    free(connection->joined.bytes);
    free(connection->in_flight);
    free(connection);
}

const char *shm_connection_error(const struct shm_connection *connection) {
    return connection->error;
}

bool shm_connection_peer_closed(const struct shm_connection *shm_connection) {
    return shm_connection->peer_closed;
}

void shm_connection_fail(struct shm_connection *connection, const char *text) {
    if (connection->state == SHM_CONNECTION_FAILED)
        return;
    connection->state = SHM_CONNECTION_FAILED;
    connection->error = text;
}

int shm_connection_socket(const struct shm_connection *connection) {
    return connection->socket;
}

int shm_connection_wakeup(const struct shm_connection *connection) {
    return connection->wakeup;
}

static void signal_wakeup(int wakeup) {
    eventfd_write(wakeup, 1); /* if it fails, a wakeup is pending */
}

static void signal_peer(struct shm_connection *connection) {
    connection->wakeup_due = false;
    signal_wakeup(connection->peer_wakeup);
}

void shm_connection_notify(struct shm_connection *connection) {
    if (connection->wakeup_due)
        signal_peer(connection);
}

void shm_connection_prepare_wait(struct shm_connection *connection) {
    shm_connection_notify(connection);
    if (connection->state == SHM_CONNECTION_OPEN &&
        !ring_prepare_wait(&connection->reader))
        signal_wakeup(connection->wakeup);
}

void shm_connection_finish_wait(struct shm_connection *connection) {
    if (connection->state == SHM_CONNECTION_OPEN)
        ring_finish_wait(&connection->reader);
}

/* Segment NUMBER, which the other side shares before it refers to it; NULL: it
 * has not. */
static struct shm_segment *mapped_segment(struct shm_connection *connection,
                                          uint32_t number) {
    if (number >= connection->num_mapped)
        shm_connection_receive_packets(connection);
    return number < connection->num_mapped ? connection->mapped[number] : NULL;
}

static bool view_segment(struct shm_connection *connection,
                         const struct ring_payload *payload,
                         struct shm_connection_view *view) {
    if (!payload->bytes)
        return true;
    view->shm_segment = mapped_segment(connection, payload->shm_segment);
    size_t capacity =
        view->shm_segment ? shm_segment_bytes(view->shm_segment) : 0;
    if (payload->bytes > capacity ||
        payload->offset > capacity - payload->bytes)
        return false;
    view->payload =
        (const char *)shm_segment_base(view->shm_segment) + payload->offset;
    return true;
}

bool shm_connection_pending(const struct shm_connection *shm_connection) {
    return shm_connection->state == SHM_CONNECTION_OPEN &&
           ring_pending(&shm_connection->reader);
}

static void release_message(struct shm_connection *connection) {
    if (ring_next_done(&connection->reader))
        signal_wakeup(connection->peer_wakeup);
}

/* Adds BYTES at DATA to the payload that comes in parts. */
static bool join(struct shm_connection *connection, const void *data,
                 size_t bytes) {
    size_t used = connection->joined.used + bytes;
    if (used > connection->joined.room) {
        size_t room =
            2 * used < connection->max_frame ? 2 * used : connection->max_frame;
        char *more = realloc(connection->joined.bytes, room);
        if (!more) {
            shm_connection_fail(connection, "no memory for a long message");
            return false;
        }
        connection->joined.bytes = more;
        connection->joined.room = room;
    }
    if (bytes)
        memcpy(connection->joined.bytes + connection->joined.used, data, bytes);
    connection->joined.used = used;
    return true;
}

/* Moves parts out of the ring, up to the end of their message. False: it is not
 * there yet. */
static bool next_whole(struct shm_connection *connection,
                       struct ring_message *message) {
    while (connection->state == SHM_CONNECTION_OPEN) {
        enum ring_state state = ring_next(&connection->reader, message);
        if (state == RING_BROKEN)
            shm_connection_fail(connection, "an invalid ring");
        if (state != RING_MESSAGE)
            return false;
        size_t before =
            connection->joined.complete ? 0 : connection->joined.used;
        if (message->payload.bytes > connection->max_frame - before ||
            message->header_bytes > connection->max_frame)
            shm_connection_fail(connection, "a frame that is too long");
        else if (!message->payload.more)
            return true;
        else if (!message->payload.bytes || connection->joined.complete)
            shm_connection_fail(connection, "an invalid ring");
        else if (join(connection, message->inside, message->payload.bytes))
            release_message(connection);
    }
    return false;
}

/* The payload of the message whose earlier parts are joined. */
static void view_joined(struct shm_connection *connection,
                        struct shm_connection_view *view) {
    if (!connection->joined.complete &&
        !join(connection, view->payload, view->payload_bytes))
        return;
    connection->joined.complete = true;
    view->payload = connection->joined.bytes;
    view->payload_bytes = connection->joined.used;
    view->shm_segment = NULL;
}

bool shm_connection_view(struct shm_connection *shm_connection,
                         struct shm_connection_view *view) {
    struct ring_message message;
    if (!next_whole(shm_connection, &message))
        return false;
    memcpy(shm_connection->header, message.header, message.header_bytes);
    *view =
        (struct shm_connection_view){.header = shm_connection->header,
                                     .header_bytes = message.header_bytes,
                                     .payload = message.inside,
                                     .payload_bytes = message.payload.bytes};
    if (!message.payload.inside &&
        !view_segment(shm_connection, &message.payload, view))
        shm_connection_fail(shm_connection,
                            "a payload outside the memory that it has shared");
    else if (shm_connection->joined.used)
        view_joined(shm_connection, view);
    return shm_connection->state == SHM_CONNECTION_OPEN;
}

void shm_connection_release(struct shm_connection *connection) {
    free(connection->joined.bytes);
    memset(&connection->joined, 0, sizeof connection->joined);
    release_message(connection);
}

static void *spare_buffer(struct shm_connection *connection, size_t bytes) {
    free(connection->spare_buffer);
    connection->spare_buffer = malloc(bytes ? bytes : 1);
    return connection->spare_buffer;
}

/* While messages are queued, the payload may not lie in the ring, where it
 * would overtake them. */
void *shm_connection_reserve(struct shm_connection *connection, size_t bytes) {
    connection->reserved = NULL;
    if (bytes > connection->max_frame ||
        connection->state != SHM_CONNECTION_OPEN)
        return NULL;
    if (!connection->first)
        connection->reserved = ring_reserve(&connection->writer, bytes);
    return connection->reserved ? connection->reserved
                                : spare_buffer(connection, bytes);
}

void *shm_connection_try_reserve(struct shm_connection *connection,
                                 size_t bytes) {
    connection->reserved = NULL;
    if (bytes > connection->max_frame ||
        connection->state != SHM_CONNECTION_OPEN || connection->first)
        return NULL;
    connection->reserved = ring_reserve(&connection->writer, bytes);
    if (connection->reserved)
        return connection->reserved;
    ring_request_room(&connection->writer);
    connection->reserved = ring_reserve(&connection->writer, bytes);
    return connection->reserved;
}

/* A reservation needs room for the longest header besides its payload. */
void shm_connection_set_headroom(struct shm_connection *connection,
                                 uint64_t bytes) {
    connection->writer.headroom = bytes + 2 * RING_HEADER;
}

/* The number by which the other side knows SEGMENT, shared now if need be;
 * NOT_SHARED: it cannot be shared. */
static unsigned share_number(struct shm_connection *connection,
                             struct shm_segment *segment) {
    for (unsigned i = 0; i < connection->num_shared; i++)
        if (connection->shared[i] == segment)
            return i;
    unsigned number = connection->num_shared;
    if (number == SHM_CONNECTION_SEGMENTS ||
        !shm_connection_share(connection, segment, number))
        return NOT_SHARED;
    connection->shared[connection->num_shared++] = shm_segment_hold(segment);
    return number;
}

bool shm_connection_can_share(struct shm_connection *shm_connection,
                              const struct buffer *buffer) {
    struct shm_segment *shm_segment = buffer_segment(buffer);
    return shm_segment && shm_connection->state == SHM_CONNECTION_OPEN &&
           share_number(shm_connection, shm_segment) != NOT_SHARED;
}

static bool grow_in_flight(struct shm_connection *connection) {
    if (connection->num_in_flight < connection->in_flight_capacity)
        return true;
    size_t capacity = connection->in_flight_capacity
                          ? 2 * connection->in_flight_capacity
                          : 64;
    struct shm_connection_in_flight *in_flight =
        malloc(capacity * sizeof *in_flight);
    if (!in_flight)
        return false;
    for (size_t i = 0; i < connection->num_in_flight; i++)
        in_flight[i] = connection->in_flight[(connection->first_in_flight + i) %
                                             connection->in_flight_capacity];
    free(connection->in_flight);
    connection->in_flight = in_flight;
    connection->in_flight_capacity = capacity;
    connection->first_in_flight = 0;
    return true;
}

/* Fills SHARED if PAYLOAD can be sent by reference. False: it must be copied.
 */
static bool can_share(struct shm_connection *connection,
                      const struct shm_connection_payload *payload,
                      struct ring_payload *shared) {
    struct shm_segment *segment =
        payload->buffer ? buffer_segment(payload->buffer) : NULL;
    if (!segment || !grow_in_flight(connection))
        return false;
    unsigned number = share_number(connection, segment);
    *shared = (struct ring_payload){
        .offset = (uint64_t)((const char *)payload->data -
                             (const char *)shm_segment_base(segment)),
        .bytes = payload->bytes,
        .shm_segment = number};
    return number != NOT_SHARED;
}

/* Delays the wakeup until WAKEUP_BYTES are sent or the turn ends, so that the
 * reader takes several messages at once. */
static void commit_message(struct shm_connection *connection,
                           const void *header, size_t bytes,
                           const struct ring_payload *payload) {
    if (ring_commit(&connection->writer, header, bytes, payload)) {
        connection->wakeup_due = true;
        connection->unsignalled_bytes = 0;
    }
    connection->unsignalled_bytes += payload->bytes;
    if (connection->wakeup_due && connection->unsignalled_bytes >= WAKEUP_BYTES)
        signal_peer(connection);
}

/* Holds BUFFER until the reader's tail has passed the message's end, which is
 * the writer's head now. Positions only grow, so the oldest is released first.
 */
static void add_in_flight(struct shm_connection *connection,
                          struct buffer *buffer) {
    size_t at = (connection->first_in_flight + connection->num_in_flight++) %
                connection->in_flight_capacity;
    connection->in_flight[at] = (struct shm_connection_in_flight){
        connection->writer.head, buffer_hold(buffer)};
}

/* Writes the message into the ring; false: no room now. */
static bool shm_connection_put(struct shm_connection *connection,
                               const void *header, size_t bytes,
                               const struct shm_connection_payload *payload) {
    struct ring_payload where;
    bool is_shared = payload->bytes && can_share(connection, payload, &where);
    if (!is_shared)
        where = (struct ring_payload){.bytes = payload->bytes, .inside = true};
    void *room =
        ring_reserve(&connection->writer, is_shared ? 0 : payload->bytes);
    if (!room)
        return false;
    if (!is_shared && payload->bytes)
        memcpy(room, payload->data, payload->bytes);
    commit_message(connection, header, bytes, &where);
    if (is_shared)
        add_in_flight(connection, payload->buffer);
    return true;
}

/* Keeps PAYLOAD while it waits: holds its buffer, takes the spare buffer that
 * was reserved for it, or else copies it. False: no memory. */
static bool own_payload(struct shm_connection *connection,
                        struct shm_connection_pending *queued,
                        const struct shm_connection_payload *payload) {
    queued->bytes = payload->bytes;
    queued->data = payload->data;
    if (payload->buffer)
        queued->buffer = buffer_hold(payload->buffer);
    if (payload->buffer || !payload->bytes)
        return true;
    if (payload->data == connection->spare_buffer) {
        queued->owned = connection->spare_buffer;
        connection->spare_buffer = NULL;
        return true;
    }
    queued->data = queued->owned = malloc(payload->bytes);
    if (queued->owned)
        memcpy(queued->owned, payload->data, payload->bytes);
    return queued->owned;
}

static bool shm_connection_enqueue(
    struct shm_connection *connection, const void *header, size_t header_bytes,
    const struct shm_connection_payload *payload) {
    struct shm_connection_pending *queued =
        malloc(sizeof *queued + header_bytes);
    if (queued)
        *queued = (struct shm_connection_pending){.header_bytes = header_bytes};
    if (!queued || !own_payload(connection, queued, payload)) {
        free(queued);
        shm_connection_fail(connection, "no memory for a queued message");
        return false;
    }
    memcpy(queued->header, header, header_bytes);
    if (connection->first)
        connection->last->next = queued;
    else
        connection->first = queued;
    connection->last = queued;
    if (++connection->num_queued > MAX_QUEUED)
        shm_connection_fail(connection, "it does not read its messages");
    return connection->state == SHM_CONNECTION_OPEN;
}

/* Was the payload reserved in the ring? */
static bool is_reserved(struct shm_connection *connection,
                        const struct shm_connection_payload *payload) {
    bool reserved = payload->bytes && payload->data == connection->reserved;
    connection->reserved = NULL;
    return reserved;
}

bool shm_connection_send(struct shm_connection *shm_connection,
                         const void *header, size_t header_bytes,
                         const struct shm_connection_payload *payload) {
    static const struct shm_connection_payload none;
    if (!payload)
        payload = &none;
    if (shm_connection->state != SHM_CONNECTION_OPEN ||
        header_bytes > RING_HEADER ||
        payload->bytes > shm_connection->max_frame)
        return false;
    if (is_reserved(shm_connection, payload)) {
        struct ring_payload inside = {.bytes = payload->bytes, .inside = true};
        commit_message(shm_connection, header, header_bytes, &inside);
        return true;
    }
    shm_connection_progress(shm_connection);
    if (!shm_connection->first &&
        shm_connection_put(shm_connection, header, header_bytes, payload))
        return true;
    bool is_queued =
        shm_connection_enqueue(shm_connection, header, header_bytes, payload);
    if (shm_connection->wakeup_due)
        signal_peer(shm_connection);
    shm_connection_progress(
        shm_connection); /* requests a wakeup, then looks for room again */
    return is_queued;
}

/* Writes what the ring has room for of a payload that it cannot have whole;
 * true: what is left of it fits. */
static bool put_parts(struct shm_connection *connection,
                      struct shm_connection_pending *queued) {
    const struct ring_payload part = {
        .bytes = connection->whole / 4, .inside = true, .more = true};
    bool shared =
        queued->buffer && shm_connection_can_share(connection, queued->buffer);
    while (!shared && queued->bytes > connection->whole) {
        void *room = ring_reserve(&connection->writer, part.bytes);
        if (!room)
            return false;
        memcpy(room, queued->data, part.bytes);
        commit_message(connection, NULL, 0, &part);
        queued->data += part.bytes;
        queued->bytes -= part.bytes;
    }
    return true;
}

static bool put_queued(struct shm_connection *connection,
                       struct shm_connection_pending *queued) {
    if (!put_parts(connection, queued))
        return false;
    struct shm_connection_payload payload = {queued->data, queued->bytes,
                                             queued->buffer};
    return shm_connection_put(connection, queued->header, queued->header_bytes,
                              &payload);
}

void shm_connection_progress(struct shm_connection *connection) {
    if (connection->state != SHM_CONNECTION_OPEN)
        return;
    if (connection->num_in_flight) {
        uint64_t released = ring_released(&connection->writer);
        while (connection->num_in_flight &&
               connection->in_flight[connection->first_in_flight].position <=
                   released)
            drop_in_flight(connection);
    }
    if (connection->first)
        ring_request_room(&connection->writer);
    while (connection->first && put_queued(connection, connection->first))
        drop_queued(connection);
}

/* Counts checks in a row without progress. A slow reader moves its tail between
 * two checks; a stopped one does not. */
unsigned shm_connection_stalled(struct shm_connection *connection) {
    if (connection->state != SHM_CONNECTION_OPEN)
        return 0;
    uint64_t tail = ring_released(&connection->writer);
    bool same =
        tail == connection->stalled_tail && tail != connection->writer.head;
    connection->num_stalled = same ? connection->num_stalled + 1 : 0;
    connection->stalled_tail = tail;
    return connection->num_stalled;
}
