/* SPDX-License-Identifier: Apache-2.0 */
/* One connection between two processes of a user on one host, over memory that
 * both map: a ring each way, and the memory of buffers that either has shown
 * the other. A socket of the file system's abstract space brings them together,
 * carries descriptors and tells of the other side's end; everything vanishes
 * with the processes. What comes from the other side is not trusted: one that
 * keeps no rules is left. A lane belongs to one thread and never waits. */
#ifndef CAPSTAN_SHM_CONNECTION_H
#define CAPSTAN_SHM_CONNECTION_H

#include "proto/net/shm/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shm_connection_state {
    SHM_CONNECTION_HANDSHAKE,
    SHM_CONNECTION_OPEN,
    SHM_CONNECTION_FAILED
};

struct shm_connection;

/* A client's side: calls who listens by NAME (shm_connection_listen). Messages
 * have a payload of up to MAX_FRAME bytes, its and mine. NULL, with TEXT of
 * SIZE: why not. */
struct shm_connection *shm_connection_connect(const char *name,
                                              uint64_t max_frame, char *text,
                                              size_t size);

/* A server's side: SOCKET (taken either way) is what accept gave. NULL: not of
 * this user, or no memory. */
struct shm_connection *shm_connection_accept(int socket, uint64_t max_frame);

/* A socket that listens by NAME on this host, or -1 and errno. */
int shm_connection_listen(const char *name);

/* Leaves the other side, lets go what is held for it and clears *LANE (may be
 * NULL). */
void shm_connection_close(struct shm_connection **shm_connection);

/* Goes on at NOW with what the socket brings. Meeting takes 1 s at most. */
enum shm_connection_state shm_connection_step(
    struct shm_connection *shm_connection, int64_t now);

/* Why it is broken; view. */
const char *shm_connection_error(const struct shm_connection *shm_connection);

/* Broken because the other side has ended or left. */
bool shm_connection_peer_closed(const struct shm_connection *shm_connection);

/* Broken from now on, for TEXT (static); closing stays the caller's. */
void shm_connection_fail(struct shm_connection *shm_connection,
                         const char *text);

/* Descriptors for epoll: the socket (level), and a bell that the other side
 * rings (edge; needs no reading), -1 before the lane is open. */
int shm_connection_socket(const struct shm_connection *shm_connection);
int shm_connection_wakeup(const struct shm_connection *shm_connection);

/* Before a wait: rings for what was sent, and the other side is to ring my bell
 * from now on; it rings at once when there is something to do already. */
void shm_connection_prepare_wait(struct shm_connection *shm_connection);

/* After a wait: no bells. */
void shm_connection_finish_wait(struct shm_connection *shm_connection);

/* What came. The header is a copy, good until the next view. */
struct shm_connection_view {
    const void *header, *payload;
    size_t header_bytes, payload_bytes;
    struct shm_segment
        *shm_segment; /* the payload's, or NULL: it lies in the ring */
};

/* Is there a message, or an end to find? Cheap. */
bool shm_connection_pending(const struct shm_connection *shm_connection);

/* The next message, the same until shm_connection_release; false: none. */
bool shm_connection_view(struct shm_connection *shm_connection,
                         struct shm_connection_view *view);
void shm_connection_release(struct shm_connection *shm_connection);

/* Memory for a payload of BYTES of the message sent next. NULL: none, or more
 * than max_frame. */
void *shm_connection_reserve(struct shm_connection *shm_connection,
                             size_t bytes);

/* For who would rather wait than queue: room in the ring, as
 * shm_connection_reserve gives it, and shm_connection_send then sends at once.
 * NULL: none now, and the other side rings when there is some. */
void *shm_connection_try_reserve(struct shm_connection *shm_connection,
                                 size_t bytes);

/* Of an open lane: from now on, wherever the ring stands,
 * shm_connection_try_reserve has room for payloads of BYTES in all (at most
 * max_frame), each of at most a quarter of them, of which the other side has
 * read none. */
void shm_connection_set_headroom(struct shm_connection *shm_connection,
                                 uint64_t bytes);

/* Can the other side be shown the memory of BUFFER? Then what is sent from
 * there is never copied. */
bool shm_connection_can_share(struct shm_connection *shm_connection,
                              const struct buffer *buffer);

/* Rings for what was sent, now rather than at the next
 * shm_connection_prepare_wait. */
void shm_connection_notify(struct shm_connection *shm_connection);

/* Sends HEADER (copied) and BYTES at DATA: reserved, or a part of BUFFER (held
 * until the other side has let it go; never copied when it can be shown), or
 * else copied. What finds no room in the ring waits in a queue. False: no
 * memory, or the other side reads nothing: broken then. The bell for it rings
 * at the next shm_connection_prepare_wait, or earlier when it is much. */
struct shm_connection_payload {
    const void *data;
    size_t bytes;
    struct buffer *buffer;
};
bool shm_connection_send(struct shm_connection *shm_connection,
                         const void *header, size_t header_bytes,
                         const struct shm_connection_payload *payload);

/* Moves on what waits, and lets go what the other side has done with. */
void shm_connection_progress(struct shm_connection *shm_connection);

/* How many calls in a row have found the same message not let go by the other
 * side; 0: it has all. */
unsigned shm_connection_stalled(struct shm_connection *shm_connection);

#endif
