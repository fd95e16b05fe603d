/* What a link is made of: for link*.c only. */
#ifndef CAPSTAN_LINK_PARTS_H
#define CAPSTAN_LINK_PARTS_H

#include "proto/base/spare_core.h"
#include "proto/wire/lanes.h"
#include "proto/wire/link.h"

#include <zmq.h>

enum { LINK_BANNED = 64, LINK_DESCRIPTORS = 65536 };
enum { LINK_NOTED = 64 };
enum { LINK_SAYINGS = 8, LINK_SAYING = 128 };

/* ROUTER names a connection by a zero byte and a big-endian counter; numbers
 * count from the middle of what is not a lane's. */
enum { LINK_IDENTITY = 5 };
#define LINK_NUMBERS (UINT32_C(1) << 30)

_Static_assert(sizeof(zmq_msg_t) <= sizeof(struct link_room), "a message fits");

static inline zmq_msg_t *link_message(struct link_room *room) {
    return (zmq_msg_t *)room->bytes;
}

/* How a client's messages go; a server's always by both. */
enum link_way { LINK_BY_TCP, LINK_MEETING, LINK_BY_LANE };

/* What was said of peers, and when. */
struct link_saying {
    char text[LINK_SAYING];
    int64_t at;
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
    bool *spoke; /* by descriptor: has sent a message; NULL: not watched */
    uint32_t noted[LINK_NOTED]; /* peers that SPOKE knows of */
    bool many_parts;
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

#endif
