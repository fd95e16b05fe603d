/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between processes, over ZeroMQ. A server link has many peers, each
 * known by the number of its connection; a client link has one, number 0. A
 * link belongs to one thread. Nothing here waits: a frame that cannot leave
 * now is refused, and the caller has a deadline of its own. */
#ifndef CAPSTAN_LINK_H
#define CAPSTAN_LINK_H

#include "proto/base/status.h"
#include "proto/net/shm/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#define LINK_MAX_GBITS 1e5

enum link_kind { LINK_SERVER, LINK_CLIENT };

struct link_settings {
    int64_t max_frame;  /* bytes; a longer one costs the peer its connection */
    int receive_frames; /* queued before the network is made to wait */
    int linger_ms;      /* how long close lets queued frames leave */
};

struct link;

/* ZMQ is the process's context. */
enum status link_open(struct link **out, void *zmq, enum link_kind kind,
                      const struct link_settings *settings,
                      struct failure *why) MUST_CHECK;

/* Closes *LINK (may be NULL) and clears it; frames queued to leave have
 * linger_ms, those borrowed from buffers stay held until then. */
void link_close(struct link **link);

/* Server: PORT on every interface (0: any free one). STATUS_RETRY when it is
 * in use, naming it. */
enum status link_bind(struct link *link, uint16_t port,
                      struct failure *why) MUST_CHECK;

/* Server and client of one process: NAME within the ZeroMQ context, free again
 * once the link is closed. */
enum status link_bind_inproc(struct link *link, const char *name,
                             struct failure *why) MUST_CHECK;

/* The client of a link bound inside by that NAME. */
enum status link_connect_inproc(struct link *link, const char *name,
                                struct failure *why) MUST_CHECK;

/* Client: ADDRESS is numeric ("10.0.0.1:2222", "[::1]:2222"); an earlier
 * address is left. Returns before the connection stands. */
enum status link_connect(struct link *link, const char *address,
                         struct failure *why) MUST_CHECK;

/* The port bound, 0 for none. */
uint16_t link_port(const struct link *link);

/* Server: clients on this host, of this user, who were told WORD, a random
 * number, may come over shared memory (shm_connection.h); they are peers like
 * others. STATUS_RETRY when that cannot be: they come over TCP then. */
enum status link_listen_shm(struct link *link, uint64_t shm_key,
                            struct failure *why) MUST_CHECK;

/* Does somebody come over shared memory? */
bool link_has_shm(const struct link *link);

/* Client, before link_connect: shared memory is tried first with the server
 * that offers it by WORD, for a second at most, and again when a lane that has
 * held for 5 s is lost; otherwise the address is connected to. */
void link_prefer_shm(struct link *link, uint64_t shm_key);

/* Client: when the way of messages has changed since the last call, TEXT says
 * how they go now and why. */
bool link_transport(struct link *link, char *text, size_t size);

enum { LINK_POLL_ITEMS = 3 };

/* Before each wait, for over shared memory it wakes who sleeps for what was
 * sent, and a server hears who came and went: fills ITEMS, at most
 * LINK_POLL_ITEMS, which become ready when a frame may be here; returns how
 * many. */
int link_poll_items(struct link *link, zmq_pollitem_t *items);

/* The ZeroMQ socket: for zmq_poll of a link that carries control. */
void *link_socket(struct link *link);

/* A view of SIZE bytes, at any alignment; DATA is NULL when there are none. */
struct link_bytes {
    const void *data;
    size_t size;
};

/* What the link knows of a message; nobody else looks in. */
struct link_storage {
    _Alignas(8) unsigned char bytes[64];
};

struct shm_connection;
struct shm_segment;
/* The network passes GBITS (10^9 bits a second; what is not above 0 and at most
 * LINK_MAX_GBITS says nothing), which CONNECTIONS of this process share. From
 * now on the kernel is handed no more
 * of what waits to leave by a connection than passes in a quarter of a
 * millisecond, or in two round trips where that is more: connections then have
 * equal shares at any moment, and no queue grows on the way. For a connection
 * this begins with the first message that comes by it. */
void link_pace(struct link *link, double gbits, unsigned connections);

/* Waits awake for a frame on COUNT LINKS, 50 µs at most, and only after one has
 * come since the last call and with a core to spare: one for the caller and for
 * the other side of each lane. After one by TCP, which takes longer, it
 * waits 200 µs, and leaves its core to any thread that can run. True: one is
 * here, and a poll may be left out. */
bool link_busy_poll(struct link *const *links, unsigned count);

/* What came: a header and perhaps a payload. Not to be copied. */
struct link_frame {
    uint32_t peer;
    struct link_bytes header, payload;
    struct shm_connection *shm_connection; /* that it came over, NULL: TCP */
    struct shm_segment
        *shm_segment; /* that the payload lies in, or NULL; the lane's */
    struct link_storage header_storage, payload_storage;
};

/* Views the next frame, if one is here; the caller releases it before the next
 * view. Messages of another shape cost their sender its connection. */
bool link_view(struct link *link, struct link_frame *frame);

/* Has FRAME come over TCP from an address of this very host (network
 * namespace)? */
bool link_is_local(struct link_frame *frame);

/* Writes the numeric host that FRAME came from over TCP; false, and "", when it
 * came another way. */
bool link_peer_host(struct link_frame *frame, char *text, size_t size);

/* Lets FRAME's memory go. */
void link_release(struct link_frame *frame);

/* A payload that outlives its frame. Not to be copied. */
struct link_held {
    struct link_bytes payload;
    struct shm_segment *shm_segment; /* held, or NULL */
    void *copy;                      /* or NULL */
    struct link_storage storage;
};

/* Moves FRAME's payload to HELD, which the caller lets go; FRAME has none
 * then. Its bytes may lie elsewhere now. False: no memory. */
bool link_hold(struct link_frame *frame, struct link_held *held);

/* Lets HELD's memory go; on any thread. */
void link_release_held(struct link_held *held);

/* Server: nothing more of this connection is read. */
void link_ban(struct link *link, uint32_t peer);

/* Server, from now on: a connection that is not admitted within LIMIT ns of its
 * coming, or of this call, is closed. */
void link_admit_within(struct link *link, int64_t limit);

/* Server: the connection of PEER, whose frame was viewed last, may stay. */
void link_admit(struct link *link, uint32_t peer);

/* Server, at each turn: sees who came, went and has to go. What is then to be
 * said of a stranger (it spoke another protocol, sent a frame too long, was
 * closed for want of descriptors) fills TEXT; false when there is nothing that
 * link_may_log lets be told. */
bool link_bad_peer(struct link *link, char *text, size_t size);

/* Whether a line of the log may say TEXT of a peer now: the same once in ten
 * seconds, and eight things in that time, so that nobody can fill a log. */
bool link_may_log(struct link *link, const char *text);

/* Client over the network: has a connection come to stand since the last call?
 * What was under way on an earlier one is then lost. */
bool link_renewed(struct link *link);

/* A payload about to leave: reserved memory to be filled, or a part of a
 * buffer, held until it has left. Not to be copied. */
struct link_payload {
    void *data;
    size_t bytes;
    struct buffer *buffer; /* borrowed from, or NULL */
    struct link_storage storage;
};

/* No bytes. */
void link_no_payload(struct link_payload *payload);

/* BYTES of memory for a payload that link_commit sends next on LINK to PEER.
 * False: no memory. */
bool link_reserve(struct link *link, uint32_t peer,
                  struct link_payload *payload, size_t bytes);

/* Where to write a reserved payload. */
void *link_reserved(struct link_payload *payload);

/* BYTES of BUFFER from OFFSET on. They stay as they are until the receiver has
 * answered: on this host it may read them where they lie. */
void link_borrow(struct link_payload *payload, struct buffer *buffer,
                 size_t offset, size_t bytes);

/* Whether what is borrowed from BUFFER goes to PEER without any copy. */
bool link_can_share(const struct link *link, uint32_t peer,
                    const struct buffer *buffer);

/* Lets a payload go that was not sent. */
void link_drop(struct link_payload *payload);

/* Sends HEADER (copied) and PAYLOAD (taken either way; NULL for none). False
 * when there is no connection or its queue is full. */
bool link_commit(struct link *link, uint32_t peer, const void *header,
                 size_t bytes, struct link_payload *payload);

/* Server: sends HEADER (copied) to who is not admitted: at most 2048 bytes, and
 * only while it reads what it was sent before, so that nobody can have answers
 * pile up here. False: not sent. */
bool link_reply(struct link *link, uint32_t peer, const void *header,
                size_t bytes);

#endif
