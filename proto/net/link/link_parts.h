/* SPDX-License-Identifier: Apache-2.0 */
/* What a link is made of: for link*.c only. */
#ifndef CAPSTAN_LINK_PARTS_H
#define CAPSTAN_LINK_PARTS_H

#include "proto/base/spare_core.h"
#include "proto/net/link/link.h"
#include "proto/net/shm/lanes.h"

#include <zmq.h>

enum { LINK_BANNED = 64, LINK_NOTED = 64 };
/* Answers to who is not admitted: so many may wait to be read, of one peer and
 * of all, and each has so many bytes. */
enum { LINK_ANSWERS_OF_ONE = 4, LINK_ANSWERS = 256, LINK_ANSWER = 2048 };
enum { LINK_SAYINGS = 8, LINK_SAYING = 128 };

/* ROUTER names a connection by a zero byte and a big-endian counter; numbers
 * count from the middle of what is not a lane's. */
enum { LINK_IDENTITY = 5 };
#define LINK_NUMBERS (UINT32_C(1) << 30)

_Static_assert(sizeof(zmq_msg_t) <= sizeof(struct link_room), "a message fits");

static inline zmq_msg_t *link_message(struct link_room *room) {
    return (zmq_msg_t *)room->bytes;
}

/* What a server has noticed of peers that keep no rules. */
enum link_noticed {
    LINK_NO_MESSAGE,
    LINK_MANY_PARTS,
    LINK_NO_DESCRIPTOR,
    LINK_STRANGERS
};

/* How a client's messages go; a server's always by both. */
enum link_way { LINK_BY_TCP, LINK_MEETING, LINK_BY_LANE };

/* What was said of peers, and when. */
struct link_saying {
    char text[LINK_SAYING];
    int64_t at;
};

/* A connection that a server has accepted. */
struct link_connection {
    int64_t since;   /* when; 0: there is none */
    uint64_t cookie; /* its socket's, as its descriptor may be reused */
    bool spoke, admitted;
    bool expired; /* shut down by this side */
};

/* A peer that a frame came from, and by which descriptor. */
struct link_speaker {
    uint32_t peer;
    int descriptor;
};

struct link_answer {
    struct buffer *buffer; /* somebody else's as well until it was sent */
    uint32_t peer;
};

struct link {
    void *zmq, *socket, *monitor;
    enum link_kind kind;
    uint16_t port;
    int64_t max_frame;
    char address[300]; /* endpoint to connect to, or "" */
    char inside[128];  /* endpoint bound in this process, or "" */
    struct lanes *lanes;
    enum link_way way;
    char lane_name[LANES_NAME];
    uint32_t lane; /* the client's */
    int64_t lane_since;
    unsigned lane_frames;  /* since TCP had its turn */
    bool heard, heard_tcp; /* a lane's frame, one of TCP's, since link_linger */
    struct spare_core core;
    bool renewed, way_changed;
    char way_text[LINK_SAYING];
    uint32_t first_peer; /* as ROUTER counts */
    bool has_peers;
    uint32_t banned[LINK_BANNED];
    unsigned num_banned;
    struct link_connection *connections; /* [num_connections] by descriptor */
    unsigned num_connections;
    struct link_speaker speakers[LINK_NOTED]; /* by number, the last ones */
    int64_t admit_limit, admit_from;          /* 0: nobody has to be admitted */
    int64_t admit_looked;                     /* for who is late */
    bool noticed[LINK_STRANGERS];             /* since it was last told */
    struct link_answer answers[LINK_ANSWERS];
    double pace; /* bytes a second of each connection; 0: not known */
    bool paced;  /* the client's connection */
    struct link_saying sayings[LINK_SAYINGS];
};

/* The lane to PEER, of a client to its server; NULL: it is not by one. View
 * until lanes_tend. */
struct lane *link_lane_of(const struct link *link, uint32_t peer);

/* Is this a client whose connection is still to be paced? */
bool link_wants_pace(const struct link *link);

/* The connection of DESCRIPTOR gets its pace, if that is known. */
void link_pace_connection(struct link *link, int descriptor);

/* The next event of the monitor; false: none. */
bool link_next_event(struct link *link, uint16_t *event, uint32_t *value);

/* Server: takes note of who came and went. */
void link_take_events(struct link *link);

/* The connection of DESCRIPTOR has sent a message. Is it the first? */
bool link_first_message(struct link *link, int descriptor);

#endif
