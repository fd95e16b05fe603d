/* SPDX-License-Identifier: Apache-2.0 */
/* A connection between two processes of one user on one host, over memory that
 * both map: a ring each way, and segments with buffers that either side shares.
 * A Unix socket of the abstract namespace establishes it, carries descriptors
 * and reports the other side's end; nothing outlives the processes. Input is
 * not trusted: a peer that violates the protocol is disconnected. A connection
 * belongs to one thread and never blocks. */
#ifndef CAPSTAN_SHM_CONNECTION_H
#define CAPSTAN_SHM_CONNECTION_H

#include "core/base/proof.h"
#include "core/net/shm/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shm_connection_state {
    SHM_CONNECTION_HANDSHAKE,
    SHM_CONNECTION_OPEN,
    SHM_CONNECTION_FAILED
};

/* Bytes of the longest payload that the ring has as a whole. A longer one, up
 * to max_frame, is copied in parts. */
enum { SHM_CONNECTION_WHOLE = 4 << 20 };

struct shm_connection;

enum { SHM_CONNECTION_PARTY = 64 };

/* What both sides must agree on. Each proves to the other that it has the key
 * and is who it says (proof.h), before a message is read. */
struct shm_connection_settings {
    uint64_t max_frame;       /* bytes of the longest payload */
    const unsigned char *key; /* [PROOF_KEY_BYTES], borrowed; NULL: zeros, for
                                 a run without a secret */
    char self[SHM_CONNECTION_PARTY];
    char peer[SHM_CONNECTION_PARTY]; /* of a server "": whoever has the key */
};

/* Client: connects to the listener of NAME (shm_connection_listen). NULL: the
 * reason is in TEXT of SIZE bytes. */
struct shm_connection *shm_connection_connect(
    const char *name, const struct shm_connection_settings *settings,
    char *text, size_t size);

/* Server: SOCKET (taken either way) comes from accept. NULL: the client is
 * another user's, or no memory. */
struct shm_connection *shm_connection_accept(
    int socket, const struct shm_connection_settings *settings);

/* Who has proved to be at the other side of an open connection; view. */
const char *shm_connection_peer(const struct shm_connection *connection);

/* A socket that listens by NAME on this host; -1 with errno. */
int shm_connection_listen(const char *name);

/* Disconnects, releases what is held for the other side and clears
 * *CONNECTION (may be NULL). */
void shm_connection_close(struct shm_connection **connection);

/* Handles what the socket has received, at NOW. The handshake fails after 1 s.
 */
enum shm_connection_state shm_connection_step(struct shm_connection *connection,
                                              int64_t now);

/* Why it has failed; view. */
const char *shm_connection_error(const struct shm_connection *connection);

/* Did it fail because the other side closed it or ended? */
bool shm_connection_peer_closed(const struct shm_connection *connection);

/* Marks it as failed with TEXT (static). The caller still closes it. */
void shm_connection_fail(struct shm_connection *connection, const char *text);

/* Descriptors for epoll: the socket (level-triggered), and the wakeup eventfd
 * that the other side writes (edge-triggered; need not be read), -1 before the
 * connection is open. */
int shm_connection_socket(const struct shm_connection *connection);
int shm_connection_wakeup(const struct shm_connection *connection);

/* Call before a wait: sends the pending wakeup and asks the other side for
 * wakeups. Wakes this side at once if there is something to do already. */
void shm_connection_prepare_wait(struct shm_connection *connection);

/* Call after a wait: no wakeups are wanted. */
void shm_connection_finish_wait(struct shm_connection *connection);

/* A received message. The header is a copy, valid until the next view. */
struct shm_connection_view {
    const void *header, *payload;
    size_t header_bytes, payload_bytes;
    struct shm_segment *shm_segment; /* of the payload; NULL: in the ring */
};

/* Is there a message, or an error to find? Cheap. */
bool shm_connection_pending(const struct shm_connection *connection);

/* The next message, the same until shm_connection_release; false: none. */
bool shm_connection_view(struct shm_connection *connection,
                         struct shm_connection_view *view);
void shm_connection_release(struct shm_connection *connection);

/* Memory for BYTES of payload of the next message sent. NULL: none, or more
 * than max_frame. */
void *shm_connection_reserve(struct shm_connection *connection, size_t bytes);

/* For a sender that waits instead of queueing: reserves room in the ring, so
 * that shm_connection_send sends at once. NULL: no room now; the other side
 * sends a wakeup when there is some. */
void *shm_connection_try_reserve(struct shm_connection *connection,
                                 size_t bytes);

/* For an open connection: guarantees, wherever the ring stands, that
 * shm_connection_try_reserve has room for unread payloads of BYTES in all (at
 * most max_frame), each of at most a quarter of BYTES. */
void shm_connection_set_headroom(struct shm_connection *connection,
                                 uint64_t bytes);

/* Can the other side map the memory of BUFFER? Then payloads from it are never
 * copied. */
bool shm_connection_can_share(struct shm_connection *connection,
                              const struct buffer *buffer);

/* Sends the pending wakeup now instead of at the next
 * shm_connection_prepare_wait. */
void shm_connection_notify(struct shm_connection *connection);

/* Sends HEADER (copied) and BYTES at DATA: reserved memory, or a part of BUFFER
 * (held until the other side releases it; not copied if it can be shared), or
 * else copied. A message that finds no room in the ring is queued. False: no
 * memory, or the other side does not read; the connection has then failed. The
 * wakeup is sent at the next shm_connection_prepare_wait, or earlier after much
 * data. */
struct shm_connection_payload {
    const void *data;
    size_t bytes;
    struct buffer *buffer;
};
bool shm_connection_send(struct shm_connection *connection, const void *header,
                         size_t header_bytes,
                         const struct shm_connection_payload *payload);

/* Sends queued messages if there is room, and releases buffers that the other
 * side is done with. */
void shm_connection_progress(struct shm_connection *connection);

/* How many calls in a row found no progress of the other side's reading; 0: it
 * has progressed or read all. */
unsigned shm_connection_stalled(struct shm_connection *connection);

#endif
