/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane is made of: for lane.c and lane_meeting.c only. */
#ifndef CAPSTAN_LANE_PARTS_H
#define CAPSTAN_LANE_PARTS_H

#include "proto/net/shm/lane.h"
#include "proto/net/shm/ring.h"

enum { LANE_MEMORIES = 64 }; /* that each side may show */

/* A buffer that the other side reads until its ring position lets it go. */
struct lane_hold {
    uint64_t position;
    struct buffer *buffer;
};

/* A message that waits for room. */
struct lane_waiting {
    struct lane_waiting *next;
    struct buffer *buffer; /* held, or NULL */
    void *owned;           /* a reserved or copied payload, or NULL */
    const void *data;
    size_t bytes, header_bytes;
    unsigned char header[];
};

struct lane {
    enum lane_state state;
    bool calls; /* the client's side */
    int socket, bell, their_bell;
    uint64_t max_frame, capacity, challenge;
    int64_t since; /* of the meeting */
    const char *trouble;
    bool gone;
    struct memory *memory;
    struct ring_writer writer;
    struct ring_reader reader;

    struct memory *shown[LANE_MEMORIES], *seen[LANE_MEMORIES];
    unsigned num_shown, num_seen;

    struct lane_hold *holds; /* ring of room_for_holds */
    size_t first_hold, num_holds, room_for_holds;
    struct lane_waiting *first, *last;
    size_t num_waiting;
    bool bell_due;  /* the other side sleeps and has something to read */
    size_t unheard; /* bytes since then */
    void *reserved, *spare; /* the last reservation, and when it is not in the
                               ring */
    uint64_t unread_tail;   /* what lane_unread saw last, and how often */
    unsigned unread;
    unsigned char header[RING_HEADER];
};

/* Tells the other side of MEMORY, as its NUMBER; false: not now. */
bool lane_show(struct lane *lane, const struct memory *memory, unsigned number);

/* Takes what the socket has brought. */
void lane_listen_to(struct lane *lane);

#endif
