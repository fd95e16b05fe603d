/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a shared-memory connection, for shm_connection.c and tests. */
#ifndef CAPSTAN_SHM_CONNECTION_INTERNAL_H
#define CAPSTAN_SHM_CONNECTION_INTERNAL_H

#include "core/net/shm/ring.h"
#include "core/net/shm/shm_connection.h"

enum { SHM_CONNECTION_SEGMENTS = 64 }; /* segments that each side may share */

/* A buffer that the other side reads until it has released the ring up to
 * `position`. */
struct shm_connection_in_flight {
    uint64_t position;
    struct buffer *buffer;
};

/* A message that waits for room in the ring. */
struct shm_connection_pending {
    struct shm_connection_pending *next;
    struct buffer *buffer; /* held, or NULL */
    void *owned;           /* a reserved or copied payload, or NULL */
    const char *data;      /* what of it is not yet in the ring */
    size_t bytes, header_bytes;
    unsigned char header[];
};

struct shm_connection {
    enum shm_connection_state state;
    bool is_client; /* this is the client's side */
    int socket, wakeup, peer_wakeup;
    struct shm_connection_settings settings;
    unsigned char challenge[PROOF_BYTES], peer_challenge[PROOF_BYTES];
    uint64_t max_frame, capacity;
    uint64_t whole; /* bytes of the longest payload that is not sent in parts */
    int64_t since;  /* start of the handshake */
    const char *error;
    bool peer_closed;
    struct shm_segment *shm_segment;
    struct ring_writer writer;
    struct ring_reader reader;

    struct shm_segment *shared[SHM_CONNECTION_SEGMENTS],
        *mapped[SHM_CONNECTION_SEGMENTS];
    unsigned num_shared, num_mapped;

    struct shm_connection_in_flight *in_flight; /* circular */
    size_t first_in_flight, num_in_flight, in_flight_capacity;
    struct shm_connection_pending *first, *last;
    size_t num_queued;
    bool wakeup_due; /* the other side sleeps and has something to read */
    size_t unsignalled_bytes;      /* bytes sent since then */
    void *reserved, *spare_buffer; /* the last reservation; memory for one
                                      outside the ring */
    /* A payload that came in parts; COMPLETE: with its last one. */
    struct {
        char *bytes;
        size_t used, room;
        bool complete;
    } joined;
    uint64_t stalled_tail; /* tail at the last shm_connection_stalled, and its
                              result */
    unsigned num_stalled;
    unsigned char header[RING_HEADER];
};

/* Sends SEGMENT's descriptor to the other side, as NUMBER; false: not
 * possible now. */
bool shm_connection_share(struct shm_connection *connection,
                          const struct shm_segment *segment, unsigned number);

#endif
