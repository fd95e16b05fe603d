/* SPDX-License-Identifier: Apache-2.0 */
/* A payload goes in one of three ways. Where it lies in memory that can be
 * shown, the other side gets the memory's descriptor once, and from then on a
 * number and an offset: the buffer is held until the reader has let the message
 * go. Where it was reserved, it lies in the ring already. Else it is copied
 * there. What finds no room waits in a queue, in order, and the reader is asked
 * to ring when there is some.
 *
 * A bell is a system call, so it rings for who sleeps, and for what a turn has
 * sent together: at the end of the turn (lane_sleep), or after 256 KiB. */
#include "proto/net/shm/lane.h"

#include "proto/base/time.h"
#include "proto/net/shm/lane_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_WAITING = 1 << 16, NOT_SHOWN = LANE_MEMORIES };
enum { BELL_BYTES = 256 << 10 };

static void drop_waiting(struct lane *lane) {
    struct lane_waiting *waiting = lane->first;
    lane->first = waiting->next;
    lane->num_waiting--;
    buffer_release(&waiting->buffer);
    free(waiting->owned);
    free(waiting);
}

static void drop_hold(struct lane *lane) {
    buffer_release(&lane->holds[lane->first_hold].buffer);
    lane->first_hold = (lane->first_hold + 1) % lane->room_for_holds;
    lane->num_holds--;
}

void lane_close(struct lane **where) {
    struct lane *lane = *where;
    *where = NULL;
    if (!lane)
        return;
    while (lane->first)
        drop_waiting(lane);
    while (lane->num_holds)
        drop_hold(lane);
    for (unsigned i = 0; i < lane->num_shown; i++)
        memory_release(&lane->shown[i]);
    for (unsigned i = 0; i < lane->num_seen; i++)
        memory_release(&lane->seen[i]);
    memory_release(&lane->memory);
    close(lane->socket);
    if (lane->bell >= 0)
        close(lane->bell);
    if (lane->their_bell >= 0)
        close(lane->their_bell);
    free(lane->spare);
    free(lane->holds);
    free(lane);
}

const char *lane_trouble(const struct lane *lane) {
    return lane->trouble;
}

bool lane_gone(const struct lane *lane) {
    return lane->gone;
}

void lane_break(struct lane *lane, const char *text) {
    if (lane->state == LANE_BROKEN)
        return;
    lane->state = LANE_BROKEN;
    lane->trouble = text;
}

int lane_socket(const struct lane *lane) {
    return lane->socket;
}

int lane_bell(const struct lane *lane) {
    return lane->bell;
}

static void ring_bell(int bell) {
    eventfd_write(bell, 1); /* full: it rings already */
}

static void ring_their_bell(struct lane *lane) {
    lane->bell_due = false;
    ring_bell(lane->their_bell);
}

void lane_ring(struct lane *lane) {
    if (lane->bell_due)
        ring_their_bell(lane);
}

void lane_sleep(struct lane *lane) {
    lane_ring(lane);
    if (lane->state == LANE_OPEN && !ring_sleep(&lane->reader))
        ring_bell(lane->bell);
}

void lane_wake(struct lane *lane) {
    if (lane->state == LANE_OPEN)
        ring_wake(&lane->reader);
}

/* The memory of NUMBER, which the other side has shown before it spoke of
 * it; NULL: it has not. */
static struct memory *seen_memory(struct lane *lane, uint32_t number) {
    if (number >= lane->num_seen)
        lane_listen_to(lane);
    return number < lane->num_seen ? lane->seen[number] : NULL;
}

static bool view_elsewhere(struct lane *lane,
                           const struct ring_payload *payload,
                           struct lane_view *view) {
    if (!payload->bytes)
        return true;
    view->memory = seen_memory(lane, payload->memory);
    size_t room = view->memory ? memory_bytes(view->memory) : 0;
    if (payload->bytes > room || payload->offset > room - payload->bytes)
        return false;
    view->payload = (const char *)memory_base(view->memory) + payload->offset;
    return true;
}

bool lane_waiting(const struct lane *lane) {
    return lane->state == LANE_OPEN && ring_waiting(&lane->reader);
}

bool lane_view(struct lane *lane, struct lane_view *view) {
    struct ring_message message;
    if (lane->state != LANE_OPEN)
        return false;
    enum ring_state state = ring_next(&lane->reader, &message);
    if (state == RING_BROKEN)
        lane_break(lane, "a ring that is not as its writer leaves it");
    if (state != RING_MESSAGE)
        return false;
    if (message.payload.bytes > lane->max_frame ||
        message.header_bytes > lane->max_frame) {
        lane_break(lane, "a frame too long");
        return false;
    }
    memcpy(lane->header, message.header, message.header_bytes);
    *view = (struct lane_view){.header = lane->header,
                               .header_bytes = message.header_bytes,
                               .payload = message.inside,
                               .payload_bytes = message.payload.bytes};
    if (message.payload.inside || view_elsewhere(lane, &message.payload, view))
        return true;
    lane_break(lane, "a payload that lies in no memory it has shown");
    return false;
}

void lane_done(struct lane *lane) {
    if (ring_next_done(&lane->reader))
        ring_bell(lane->their_bell);
}

static void *spare(struct lane *lane, size_t bytes) {
    free(lane->spare);
    lane->spare = malloc(bytes ? bytes : 1);
    return lane->spare;
}

/* Behind messages that wait for room it may not lie in the ring, which would
 * let it overtake them. */
void *lane_reserve(struct lane *lane, size_t bytes) {
    lane->reserved = NULL;
    if (bytes > lane->max_frame || lane->state != LANE_OPEN)
        return NULL;
    if (!lane->first)
        lane->reserved = ring_reserve(&lane->writer, bytes);
    return lane->reserved ? lane->reserved : spare(lane, bytes);
}

void *lane_room(struct lane *lane, size_t bytes) {
    lane->reserved = NULL;
    if (bytes > lane->max_frame || lane->state != LANE_OPEN || lane->first)
        return NULL;
    lane->reserved = ring_reserve(&lane->writer, bytes);
    if (lane->reserved)
        return lane->reserved;
    ring_starve(&lane->writer);
    lane->reserved = ring_reserve(&lane->writer, bytes);
    return lane->reserved;
}

/* The last of so much needs room for the longest header. */
void lane_keep_ahead(struct lane *lane, uint64_t bytes) {
    lane->writer.ahead = bytes + 2 * RING_HEADER;
}

/* The number by which the other side knows MEMORY; NOT_SHOWN: it cannot be
 * shown. */
static unsigned number_of(struct lane *lane, struct memory *memory) {
    for (unsigned i = 0; i < lane->num_shown; i++)
        if (lane->shown[i] == memory)
            return i;
    unsigned number = lane->num_shown;
    if (number == LANE_MEMORIES || !lane_show(lane, memory, number))
        return NOT_SHOWN;
    lane->shown[lane->num_shown++] = memory_hold(memory);
    return number;
}

bool lane_shows(struct lane *lane, const struct buffer *buffer) {
    struct memory *memory = buffer_memory(buffer);
    return memory && lane->state == LANE_OPEN &&
           number_of(lane, memory) != NOT_SHOWN;
}

static bool make_room_for_hold(struct lane *lane) {
    if (lane->num_holds < lane->room_for_holds)
        return true;
    size_t room = lane->room_for_holds ? 2 * lane->room_for_holds : 64;
    struct lane_hold *holds = malloc(room * sizeof *holds);
    if (!holds)
        return false;
    for (size_t i = 0; i < lane->num_holds; i++)
        holds[i] = lane->holds[(lane->first_hold + i) % lane->room_for_holds];
    free(lane->holds);
    lane->holds = holds;
    lane->room_for_holds = room;
    lane->first_hold = 0;
    return true;
}

/* What goes by its place: its memory and offset. False: it must be copied. */
static bool can_show(struct lane *lane, const struct lane_payload *payload,
                     struct ring_payload *shown) {
    struct memory *memory =
        payload->buffer ? buffer_memory(payload->buffer) : NULL;
    if (!memory || !make_room_for_hold(lane))
        return false;
    unsigned number = number_of(lane, memory);
    *shown = (struct ring_payload){
        .offset = (uint64_t)((const char *)payload->data -
                             (const char *)memory_base(memory)),
        .bytes = payload->bytes,
        .memory = number};
    return number != NOT_SHOWN;
}

/* Who sends much wakes the other side once in a while, not for each message:
 * what a turn brings is taken together. */
static void finish(struct lane *lane, const void *header, size_t bytes,
                   const struct ring_payload *payload) {
    if (ring_commit(&lane->writer, header, bytes, payload)) {
        lane->bell_due = true;
        lane->unheard = 0;
    }
    lane->unheard += payload->bytes;
    if (lane->bell_due && lane->unheard >= BELL_BYTES)
        ring_their_bell(lane);
}

/* Until the reader's tail has passed the message's end, which is where the
 * writer's head is now: positions only grow, so the oldest hold goes first. */
static void hold(struct lane *lane, struct buffer *buffer) {
    size_t at = (lane->first_hold + lane->num_holds++) % lane->room_for_holds;
    lane->holds[at] =
        (struct lane_hold){lane->writer.head, buffer_hold(buffer)};
}

/* Into the ring; false: no room now. */
static bool put(struct lane *lane, const void *header, size_t bytes,
                const struct lane_payload *payload) {
    struct ring_payload where;
    bool shows = payload->bytes && can_show(lane, payload, &where);
    if (!shows)
        where = (struct ring_payload){.bytes = payload->bytes, .inside = true};
    void *room = ring_reserve(&lane->writer, shows ? 0 : payload->bytes);
    if (!room)
        return false;
    if (!shows && payload->bytes)
        memcpy(room, payload->data, payload->bytes);
    finish(lane, header, bytes, &where);
    if (shows)
        hold(lane, payload->buffer);
    return true;
}

/* Whose PAYLOAD is while it waits: its buffer's, the lane's own when it was
 * reserved, else a copy's. False: no memory. */
static bool keep_payload(struct lane *lane, struct lane_waiting *waiting,
                         const struct lane_payload *payload) {
    waiting->bytes = payload->bytes;
    waiting->data = payload->data;
    if (payload->buffer)
        waiting->buffer = buffer_hold(payload->buffer);
    if (payload->buffer || !payload->bytes)
        return true;
    if (payload->data == lane->spare) {
        waiting->owned = lane->spare;
        lane->spare = NULL;
        return true;
    }
    waiting->data = waiting->owned = malloc(payload->bytes);
    if (waiting->owned)
        memcpy(waiting->owned, payload->data, payload->bytes);
    return waiting->owned;
}

static bool enqueue(struct lane *lane, const void *header, size_t header_bytes,
                    const struct lane_payload *payload) {
    struct lane_waiting *waiting = malloc(sizeof *waiting + header_bytes);
    if (waiting)
        *waiting = (struct lane_waiting){.header_bytes = header_bytes};
    if (!waiting || !keep_payload(lane, waiting, payload)) {
        free(waiting);
        lane_break(lane, "no memory for what it is sent");
        return false;
    }
    memcpy(waiting->header, header, header_bytes);
    if (lane->first)
        lane->last->next = waiting;
    else
        lane->first = waiting;
    lane->last = waiting;
    if (++lane->num_waiting > MAX_WAITING)
        lane_break(lane, "it reads nothing that it is sent");
    return lane->state == LANE_OPEN;
}

/* What was reserved in the ring is committed there. */
static bool is_reserved(struct lane *lane, const struct lane_payload *payload) {
    bool reserved = payload->bytes && payload->data == lane->reserved;
    lane->reserved = NULL;
    return reserved;
}

bool lane_send(struct lane *lane, const void *header, size_t header_bytes,
               const struct lane_payload *payload) {
    static const struct lane_payload none;
    if (!payload)
        payload = &none;
    if (lane->state != LANE_OPEN || header_bytes > RING_HEADER ||
        payload->bytes > lane->max_frame)
        return false;
    if (is_reserved(lane, payload)) {
        struct ring_payload inside = {.bytes = payload->bytes, .inside = true};
        finish(lane, header, header_bytes, &inside);
        return true;
    }
    lane_settle(lane);
    if (!lane->first && put(lane, header, header_bytes, payload))
        return true;
    bool kept = enqueue(lane, header, header_bytes, payload);
    if (lane->bell_due)
        ring_their_bell(lane);
    lane_settle(lane); /* asks for a bell, then looks for room again */
    return kept;
}

void lane_settle(struct lane *lane) {
    if (lane->state != LANE_OPEN)
        return;
    if (lane->num_holds) {
        uint64_t let_go = ring_let_go(&lane->writer);
        while (lane->num_holds &&
               lane->holds[lane->first_hold].position <= let_go)
            drop_hold(lane);
    }
    if (lane->first)
        ring_starve(&lane->writer);
    while (lane->first) {
        struct lane_waiting *waiting = lane->first;
        struct lane_payload payload = {waiting->data, waiting->bytes,
                                       waiting->buffer};
        if (!put(lane, waiting->header, waiting->header_bytes, &payload))
            break;
        drop_waiting(lane);
    }
}

/* A reader that is slow moves its tail between two looks; one that is stopped
 * does not, however much there is to read. */
unsigned lane_unread(struct lane *lane) {
    if (lane->state != LANE_OPEN)
        return 0;
    uint64_t tail = ring_let_go(&lane->writer);
    bool same = tail == lane->unread_tail && tail != lane->writer.head;
    lane->unread = same ? lane->unread + 1 : 0;
    lane->unread_tail = tail;
    return lane->unread;
}
