/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a link, for link.c, its guard and tests. */
#ifndef CAPSTAN_LINK_INTERNAL_H
#define CAPSTAN_LINK_INTERNAL_H

#include "core/base/spin_policy.h"
#include "core/net/link/link.h"
#include "core/net/shm/shm_endpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <zmq.h>

enum { LINK_BANNED = 64, LINK_SENDERS = 64, LINK_CLOSED = 1024 };
/* Replies to peers that are not admitted: how many may wait unread for one peer
 * and for all, and the bytes of each. */
enum { LINK_REPLIES_PER_PEER = 4, LINK_REPLIES = 256, LINK_REPLY_BYTES = 2048 };
enum { LINK_LOGGED = 8, LINK_LOG_TEXT = 128 };

/* ROUTER's identity for a connection is a zero byte and a big-endian counter.
 * Peer numbers start in the middle of the range below shared-memory numbers. */
enum { LINK_IDENTITY = 5 };
#define LINK_NUMBERS (UINT32_C(1) << 30)

_Static_assert(sizeof(zmq_msg_t) <= sizeof(struct link_storage),
               "a message fits");

static inline zmq_msg_t *link_message(struct link_storage *storage) {
    return (zmq_msg_t *)storage->bytes;
}

/* Misbehaviour of peers that a server has noticed. */
enum link_violation {
    LINK_NO_MESSAGE,
    LINK_MANY_PARTS,
    LINK_NO_DESCRIPTOR,
    LINK_CROWD,
    LINK_UNREAD,
    LINK_WRONG_KEY,
    LINK_WITHOUT_KEY,
    LINK_WITH_KEY,
    LINK_VIOLATIONS
};

/* A client's transport. A server uses both. */
enum link_transport { LINK_TCP, LINK_SHM_HANDSHAKE, LINK_SHM };

/* A client's present connection, as the monitor's events tell. */
enum link_handshake {
    LINK_HANDSHAKE_NONE,
    LINK_HANDSHAKE_PENDING,
    LINK_HANDSHAKE_ENDED
};

/* A text that was logged about a peer, and when. */
struct link_logged {
    char text[LINK_LOG_TEXT];
    int64_t at;
};

/* A connection that a server has accepted, by descriptor. */
struct link_connection {
    int64_t since;      /* time of accept; 0: no connection */
    uint64_t cookie;    /* the kernel's socket number: descriptors are reused */
    uint64_t delivered; /* bytes on the wire of the messages viewed */
    uint64_t ahead;     /* bytes that have come beyond those, when last seen */
    bool has_sent, admitted;
    bool is_cut;   /* its segments are, as its handshake has not ended */
    uint32_t peer; /* once admitted */
    int64_t heard; /* when the kernel last got a packet of it; 0: unknown */
    bool expired;  /* this side has shut it down */
};

/* The descriptor by which a peer's messages come. */
struct link_sender {
    uint32_t peer;
    int descriptor;
    uint64_t cookie; /* of its connection, to know if that has ended */
};

struct link_reply {
    struct buffer *buffer; /* shared with libzmq until it was sent */
    uint32_t peer;
};

struct link {
    void *zmq, *socket, *monitor;
    const struct link_keys *keys; /* or NULL */
    struct link_party party;      /* the settings' */
    enum link_kind kind;
    uint16_t port;
    int64_t max_frame;
    char source[64];   /* settings' address, or "" */
    char address[400]; /* endpoint connected to, or "" */
    char inproc[128];  /* inproc endpoint bound, or "" */
    struct shm_endpoint *shm_endpoint;
    enum link_transport transport;
    char shm_name[SHM_ENDPOINT_NAME];
    uint32_t shm_connection; /* the client's */
    int64_t shm_since;
    unsigned shm_frames;         /* since TCP's last turn */
    bool received, received_tcp; /* a frame came over shared memory, over TCP,
                                    since link_busy_poll */
    struct spin_policy spin_policy;
    bool renewed, transport_changed, transport_pending;
    uint64_t connection; /* a client's: number of the present one, from 1 */
    enum link_handshake handshake;
    enum link_answer answer;
    int64_t lost;    /* since when a client has no connection; 0: it has one */
    bool regained;   /* it has one again, which link_is_lost has not told */
    int descriptor;  /* of its latest connection, */
    uint64_t cookie; /* and the kernel's number of it */
    int64_t heard;   /* when the kernel last got a packet by it */
    int64_t connected_at, answered_at; /* last: accepted, handshake done */
    unsigned failed_handshakes; /* since the last handshake that succeeded */
    int64_t connect_failed;     /* when an attempt to connect last was; 0: none
                                   since the last connection */
    bool is_refused;            /* two have, one right after the other */
    char transport_text[LINK_LOG_TEXT];
    uint32_t first_peer; /* ROUTER's counter of the first peer */
    bool has_peers;
    uint32_t banned[LINK_BANNED];
    unsigned num_banned;
    pthread_mutex_t mutex; /* of the monitor, and from here to `violations` */
    struct link_connection *connections; /* [num_connections], by descriptor */
    unsigned num_connections;
    struct link_sender senders[LINK_SENDERS]; /* the latest, by peer number */
    uint32_t closed[LINK_CLOSED];             /* peers, oldest first, for
                                                 link_next_closed */
    unsigned num_closed;
    int64_t admit_limit, admit_from; /* 0: no admission needed */
    int64_t last_admit_check;        /* of overdue connections */
    int64_t looked;                  /* at admitted ones */
    bool looks_often;                /* the guard, and needs no waking */
    /* Connections that ended without a message: since the last check, whose
     * messages may still be unread, and before it. */
    unsigned ended_now, ended_before;
    bool follows;          /* link_settings */
    int64_t left_at;       /* when one first left at once; 0: none has */
    unsigned refused;      /* whose end is still to come from the monitor */
    uint64_t credit;       /* bytes that an admitted peer may be ahead */
    uint64_t ended_unread; /* bytes that ended connections may have left unread
                              since the last time that nothing was unread */
    int64_t ended_at;      /* when some were added last */
    bool violations[LINK_VIOLATIONS]; /* not yet logged */
    pthread_t guard;
    atomic_bool guard_waits; /* for the mutex */
    atomic_bool guard_ends;
    int guard_wake; /* an eventfd; -1: there is no guard */
    struct link_reply replies[LINK_REPLIES];
    double rate;  /* bytes a second of each connection; 0: unknown */
    bool limited; /* the client's connection is limited to its rate */
    struct link_logged logged[LINK_LOGGED]; /* in words of peers; and when each
                                               violation was logged last */
    int64_t violation_logged[LINK_VIOLATIONS];
};

/* Bytes that CURVE adds to a part of a message (RFC 26: "\x07MESSAGE", a nonce
 * of 8 bytes, an authenticator of 16, flags). */
enum { LINK_CURVE_BYTES = 33 };

/* The kernel's number of the socket DESCRIPTOR; 0: it is none. */
uint64_t link_cookie(int descriptor);

/* The monitor's next event; false: none. */
bool link_next_event(struct link *link, uint16_t *event, uint32_t *value);

/* A message of PEER, part of which is PART, has BYTES on the wire. Is it the
 * first of its connection? */
bool link_count_message(struct link *link, uint32_t peer, zmq_msg_t *part,
                        uint64_t bytes);

/* Nothing is unread. */
void link_count_all_read(struct link *link);

void link_note_violation(struct link *link, enum link_violation violation);

/* Starts and ends the thread that guards a server's memory. */
enum status link_guard_start(struct link *link, struct failure *why) MUST_CHECK;
void link_guard_stop(struct link *link);

#endif
