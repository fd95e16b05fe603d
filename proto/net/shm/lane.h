/* SPDX-License-Identifier: Apache-2.0 */
/* One connection between two processes of a user on one host, over memory that
 * both map: a ring each way, and the memory of buffers that either has shown
 * the other. A socket of the file system's abstract space brings them together,
 * carries descriptors and tells of the other side's end; everything vanishes
 * with the processes. What comes from the other side is not trusted: one that
 * keeps no rules is left. A lane belongs to one thread and never waits. */
#ifndef CAPSTAN_LANE_H
#define CAPSTAN_LANE_H

#include "proto/net/shm/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lane_state { LANE_MEETING, LANE_OPEN, LANE_BROKEN };

struct lane;

/* A client's side: calls who listens by NAME (lane_listen). Messages have a
 * payload of up to MAX_FRAME bytes, its and mine. NULL, with TEXT of SIZE: why
 * not. */
struct lane *lane_call(const char *name, uint64_t max_frame, char *text,
                       size_t size);

/* A server's side: SOCKET (taken either way) is what accept gave. NULL: not of
 * this user, or no memory. */
struct lane *lane_meet(int socket, uint64_t max_frame);

/* A socket that listens by NAME on this host, or -1 and errno. */
int lane_listen(const char *name);

/* Leaves the other side, lets go what is held for it and clears *LANE (may be
 * NULL). */
void lane_close(struct lane **lane);

/* Goes on at NOW with what the socket brings. Meeting takes 1 s at most. */
enum lane_state lane_step(struct lane *lane, int64_t now);

/* Why it is broken; view. */
const char *lane_trouble(const struct lane *lane);

/* Broken because the other side has ended or left. */
bool lane_gone(const struct lane *lane);

/* Broken from now on, for TEXT (static); closing stays the caller's. */
void lane_break(struct lane *lane, const char *text);

/* Descriptors for epoll: the socket (level), and a bell that the other side
 * rings (edge; needs no reading), -1 before the lane is open. */
int lane_socket(const struct lane *lane);
int lane_bell(const struct lane *lane);

/* Before a wait: rings for what was sent, and the other side is to ring my bell
 * from now on; it rings at once when there is something to do already. */
void lane_sleep(struct lane *lane);

/* After a wait: no bells. */
void lane_wake(struct lane *lane);

/* What came. The header is a copy, good until the next view. */
struct lane_view {
    const void *header, *payload;
    size_t header_bytes, payload_bytes;
    struct memory *memory; /* the payload's, or NULL: it lies in the ring */
};

/* Is there a message, or an end to find? Cheap. */
bool lane_waiting(const struct lane *lane);

/* The next message, the same until lane_done; false: none. */
bool lane_view(struct lane *lane, struct lane_view *view);
void lane_done(struct lane *lane);

/* Memory for a payload of BYTES of the message sent next. NULL: none, or more
 * than max_frame. */
void *lane_reserve(struct lane *lane, size_t bytes);

/* For who would rather wait than queue: room in the ring, as lane_reserve gives
 * it, and lane_send then sends at once. NULL: none now, and the other side
 * rings when there is some. */
void *lane_room(struct lane *lane, size_t bytes);

/* Of an open lane: from now on, wherever the ring stands, lane_room has room
 * for payloads of BYTES in all (at most max_frame), each of at most a quarter
 * of them, of which the other side has read none. */
void lane_keep_ahead(struct lane *lane, uint64_t bytes);

/* Can the other side be shown the memory of BUFFER? Then what is sent from
 * there is never copied. */
bool lane_shows(struct lane *lane, const struct buffer *buffer);

/* Rings for what was sent, now rather than at the next lane_sleep. */
void lane_ring(struct lane *lane);

/* Sends HEADER (copied) and BYTES at DATA: reserved, or a part of BUFFER (held
 * until the other side has let it go; never copied when it can be shown), or
 * else copied. What finds no room in the ring waits in a queue. False: no
 * memory, or the other side reads nothing: broken then. The bell for it rings
 * at the next lane_sleep, or earlier when it is much. */
struct lane_payload {
    const void *data;
    size_t bytes;
    struct buffer *buffer;
};
bool lane_send(struct lane *lane, const void *header, size_t header_bytes,
               const struct lane_payload *payload);

/* Moves on what waits, and lets go what the other side has done with. */
void lane_settle(struct lane *lane);

/* How many calls in a row have found the same message not let go by the other
 * side; 0: it has all. */
unsigned lane_unread(struct lane *lane);

#endif
