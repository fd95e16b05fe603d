/* SPDX-License-Identifier: Apache-2.0 */
/* What a link is made of: for link*.c only. */
#ifndef CAPSTAN_LINK_INTERNAL_H
#define CAPSTAN_LINK_INTERNAL_H

#include "proto/base/spin_policy.h"
#include "proto/net/link/link.h"
#include "proto/net/shm/shm_endpoint.h"

#include <zmq.h>

enum { LINK_BANNED = 64, LINK_SENDERS = 64 };
/* Answers to who is not admitted: so many may wait to be read, of one peer and
 * of all, and each has so many bytes. */
enum { LINK_REPLIES_PER_PEER = 4, LINK_REPLIES = 256, LINK_REPLY_BYTES = 2048 };
enum { LINK_LOGGED = 8, LINK_LOG_TEXT = 128 };

/* ROUTER names a connection by a zero byte and a big-endian counter; numbers
 * count from the middle of what is not a lane's. */
enum { LINK_IDENTITY = 5 };
#define LINK_NUMBERS (UINT32_C(1) << 30)

_Static_assert(sizeof(zmq_msg_t) <= sizeof(struct link_storage),
               "a message fits");

static inline zmq_msg_t *link_message(struct link_storage *storage) {
    return (zmq_msg_t *)storage->bytes;
}

/* What a server has noticed of peers that keep no rules. */
enum link_violation {
    LINK_NO_MESSAGE,
    LINK_MANY_PARTS,
    LINK_NO_DESCRIPTOR,
    LINK_VIOLATIONS
};

/* How a client's messages go; a server's always by both. */
enum link_transport { LINK_TCP, LINK_SHM_HANDSHAKE, LINK_SHM };

/* What was said of peers, and when. */
struct link_logged {
    char text[LINK_LOG_TEXT];
    int64_t at;
};

/* A connection that a server has accepted. */
struct link_connection {
    int64_t since;   /* when; 0: there is none */
    uint64_t cookie; /* its socket's, as its descriptor may be reused */
    bool has_sent, admitted;
    bool expired; /* shut down by this side */
};

/* A peer that a frame came from, and by which descriptor. */
struct link_sender {
    uint32_t peer;
    int descriptor;
};

struct link_reply {
    struct buffer *buffer; /* somebody else's as well until it was sent */
    uint32_t peer;
};

struct link {
    void *zmq, *socket, *monitor;
    enum link_kind kind;
    uint16_t port;
    int64_t max_frame;
    char address[300]; /* endpoint to connect to, or "" */
    char inproc[128];  /* endpoint bound in this process, or "" */
    struct shm_endpoint *shm_endpoint;
    enum link_transport transport;
    char shm_name[SHM_ENDPOINT_NAME];
    uint32_t shm_connection; /* the client's */
    int64_t shm_since;
    unsigned shm_frames; /* since TCP had its turn */
    bool received,
        received_tcp; /* a lane's frame, one of TCP's, since link_busy_poll */
    struct spin_policy spin_policy;
    bool renewed, transport_changed;
    char transport_text[LINK_LOG_TEXT];
    uint32_t first_peer; /* as ROUTER counts */
    bool has_peers;
    uint32_t banned[LINK_BANNED];
    unsigned num_banned;
    struct link_connection *connections; /* [num_connections] by descriptor */
    unsigned num_connections;
    struct link_sender senders[LINK_SENDERS]; /* by number, the last ones */
    int64_t admit_limit, admit_from;          /* 0: nobody has to be admitted */
    int64_t last_admit_check;                 /* for who is late */
    bool violations[LINK_VIOLATIONS];         /* since it was last told */
    struct link_reply replies[LINK_REPLIES];
    double pace; /* bytes a second of each connection; 0: not known */
    bool paced;  /* the client's connection */
    struct link_logged logged[LINK_LOGGED];
};

/* The lane to PEER, of a client to its server; NULL: it is not by one. View
 * until shm_endpoint_progress. */
struct shm_connection *link_shm_connection(const struct link *link,
                                           uint32_t peer);

/* Is this a client whose connection is still to be paced? */
bool link_needs_pacing(const struct link *link);

/* The connection of DESCRIPTOR gets its pace, if that is known. */
void link_pace_connection(struct link *link, int descriptor);

/* The next event of the monitor; false: none. */
bool link_next_event(struct link *link, uint16_t *event, uint32_t *value);

/* Server: takes note of who came and went. */
void link_read_events(struct link *link);

/* The connection of DESCRIPTOR has sent a message. Is it the first? */
bool link_first_message(struct link *link, int descriptor);

#endif
