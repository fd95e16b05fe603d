/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between processes, over ZeroMQ. A server link has many peers, each
 * known by its connection's number; a client link has one, number 0. A link
 * belongs to one thread. Nothing here blocks: a frame that cannot leave now is
 * refused, and the caller keeps its own deadline. */
#ifndef CAPSTAN_LINK_H
#define CAPSTAN_LINK_H

#include "core/base/status.h"
#include "core/net/link/link_keys.h"
#include "core/net/shm/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#define LINK_MAX_GBITS 1e5

enum link_kind { LINK_SERVER, LINK_CLIENT };

struct link_settings {
    int64_t max_frame;   /* bytes; the sender of a longer one is disconnected */
    int flush_ms;        /* how long close waits for queued frames to leave */
    bool follows;        /* peers may still look here for a run before this one:
                            those that leave at once are told of if others come
                            a second later */
    const char *address; /* numeric, local: to listen on and to connect from;
                            NULL: any */
    const struct link_keys *keys; /* of a run with a secret, borrowed: TCP is
                                     encrypted, and peers are who their keys,
                                     or their proofs over shared memory, say;
                                     NULL: none */
    struct link_party party; /* with keys: who a server is, or the server of a
                                client */
};

struct link;

/* ZMQ is the process's context. */
enum status link_open(struct link **out, void *zmq, enum link_kind kind,
                      const struct link_settings *settings,
                      struct failure *why) MUST_CHECK;

/* Closes *LINK (may be NULL) and clears it. Queued frames have flush_ms to
 * leave; borrowed buffers stay held until then. */
void link_close(struct link **link);

/* Server: listens on PORT (0: any free one), on every interface unless the
 * settings have an address. STATUS_RETRY
 * naming the port if it is in use. */
enum status link_bind(struct link *link, uint16_t port,
                      struct failure *why) MUST_CHECK;

/* For a server and its clients in one process: listens as NAME within the
 * ZeroMQ context. The name is free again once the link is closed. */
enum status link_bind_inproc(struct link *link, const char *name,
                             struct failure *why) MUST_CHECK;

/* Client: connects to the server bound as NAME. */
enum status link_connect_inproc(struct link *link, const char *name,
                                struct failure *why) MUST_CHECK;

/* Client: connects to a numeric ADDRESS ("10.0.0.1:2222", "[::1]:2222") and
 * drops an earlier one, or one that speaks another protocol. Returns before the
 * connection is established. */
enum status link_connect(struct link *link, const char *address,
                         struct failure *why) MUST_CHECK;

/* Client with keys, of all addresses that link_connect gets from now on: SERVER
 * is there. */
enum status link_expect(struct link *link, struct link_party server,
                        struct failure *why) MUST_CHECK;

/* The bound port, 0 for none. */
uint16_t link_port(const struct link *link);

/* Server: clients of this user on this host that know SHM_KEY, a random number,
 * may connect over shared memory (shm_connection.h); they are peers like
 * others. On failure they use TCP. */
enum status link_listen_shm(struct link *link, uint64_t shm_key,
                            struct failure *why) MUST_CHECK;

/* Is any peer connected over shared memory? */
bool link_has_shm(const struct link *link);

/* Client, before link_connect: tries shared memory first, for at most a second,
 * with the server that offers it by SHM_KEY, and once more when a connection
 * that has lasted 5 s is lost. Otherwise connects to the address. */
void link_prefer_shm(struct link *link, uint64_t shm_key);

/* Client: if the transport has changed since the last call, TEXT says which it
 * is now and why. That a server has left its shared memory is said once it is
 * reached by TCP. */
bool link_transport(struct link *link, char *text, size_t size);

/* Client: messages go over shared memory now. */
bool link_is_over_shm(const struct link *link);

enum { LINK_POLL_ITEMS = 2 };

/* Call before each wait: sends pending shared-memory wakeups. Fills ITEMS, at
 * most LINK_POLL_ITEMS, which become ready when a frame may be here. Returns
 * how many. */
int link_poll_items(struct link *link, zmq_pollitem_t *items);

/* The ZeroMQ socket: for zmq_poll on a link that carries control messages. */
void *link_socket(struct link *link);

/* A view of SIZE bytes, at any alignment; DATA is NULL if there are none. */
struct link_bytes {
    const void *data;
    size_t size;
};

/* The link's own data of a message. */
struct link_storage {
    _Alignas(8) unsigned char bytes[64];
};

struct shm_connection;
struct shm_segment;
/* Limits each connection to its share of the network: GBITS (10^9 bits a
 * second; ignored unless above 0 and at most LINK_MAX_GBITS) over CONNECTIONS
 * of this process. From now on the kernel gets no more unsent data of a
 * connection than the network passes in a quarter of a millisecond, or in two
 * round trips if that is more. Connections then share the network evenly and no
 * queue builds up in it. Applies to a connection from its first received
 * message on. */
void link_limit_rate(struct link *link, double gbits, unsigned connections);

/* Busy-polls COUNT LINKS for a frame, for at most 50 µs, and only if one has
 * come since the last call and there is a core for the caller and for the other
 * side of each shared-memory connection. After a frame over TCP, which takes
 * longer, it polls for 200 µs and yields its core to any runnable thread. True:
 * a frame is here, so a poll may be skipped. */
bool link_busy_poll(struct link *const *links, unsigned count);

/* A received message: a header and perhaps a payload. Not to be copied. */
struct link_frame {
    uint32_t peer;
    struct link_bytes header, payload;
    struct shm_connection *shm_connection; /* it came over; NULL: TCP */
    struct shm_segment *shm_segment;       /* of the payload, or NULL; view */
    struct link_storage header_storage, payload_storage;
};

/* Views the next frame, if one is here. The caller releases it before the next
 * view. A message of more than two parts gets its sender banned. */
bool link_view(struct link *link, struct link_frame *frame);

/* Did FRAME come over TCP from an address of this host (network namespace)? */
bool link_is_local(struct link_frame *frame);

/* Writes the numeric host that sent FRAME over TCP. False, and "": it came
 * another way. */
bool link_peer_host(struct link_frame *frame, char *text, size_t size);

/* May FRAME be PARTY's? With keys a message over TCP or shared memory has its
 * sender's; else, and in this process, that is not known. */
bool link_is_from(const struct link *link, struct link_frame *frame,
                  struct link_party party);

/* Releases FRAME's memory. */
void link_release(struct link_frame *frame);

/* A payload that outlives its frame. Not to be copied. */
struct link_held {
    struct link_bytes payload;
    struct shm_segment *shm_segment; /* held, or NULL */
    void *copy;                      /* or NULL */
    struct link_storage storage;
};

/* Moves FRAME's payload to HELD, which the caller releases; FRAME then has
 * none. The bytes may move. False: no memory. */
bool link_hold(struct link_frame *frame, struct link_held *held);

/* Releases HELD's memory; on any thread. */
void link_release_held(struct link_held *held);

/* Server: ignores all further messages of PEER's connection. */
void link_ban(struct link *link, uint32_t peer);

/* Server, from now on: closes a connection that is not admitted within LIMIT ns
 * of its start, or of this call. A thread of the link's resets one that has
 * sent more than is viewed of it: before its admission by 256 KiB, and all such
 * together by 1 MiB; then by CREDIT bytes and a frame. */
void link_admit_within(struct link *link, int64_t limit, uint64_t credit);

/* Server: changes the CREDIT of admitted connections. */
void link_set_credit(struct link *link, uint64_t credit);

/* Server: admits the connection of PEER, whose frame was viewed last. */
void link_admit(struct link *link, uint32_t peer);

/* Server: the next admitted PEER whose kernel has closed its connection; false:
 * none. One that was silent before (a cut link) is not among them. */
bool link_next_closed(struct link *link, uint32_t *peer);

/* Server, once a loop turn: handles accepted, ended and overdue connections. If
 * there is something to log about a misbehaving peer (another protocol, too
 * long a frame, closed for lack of descriptors, lost shared memory) that was
 * not logged in the last ten seconds, fills TEXT and returns true. */
bool link_bad_peer(struct link *link, char *text, size_t size);

/* Rate-limits log lines about peers: may TEXT be logged now? The same text once
 * in ten seconds, and at most eight texts in that time, so that no peer can
 * fill a log. */
bool link_may_log(struct link *link, const char *text);

/* What answers at the address of a client over the network, as far as its
 * connections tell. */
enum link_answer {
    LINK_ANSWER_UNKNOWN,  /* nothing accepts a connection, or it is too early */
    LINK_ANSWER_LINK,     /* a link, or another program over ZeroMQ */
    LINK_ANSWER_PROTOCOL, /* a program with another protocol; libzmq then tries
                             no more: link_connect has it try again */
    LINK_ANSWER_CLOSED,   /* the last connections were closed before a word */
    LINK_ANSWER_SILENT,   /* nothing was said on the last connections for 2 s */
    LINK_ANSWER_REFUSES,  /* a server that refuses this link's key; with keys
                             also one that closes connections before a word */
    LINK_ANSWER_NO_KEYS,  /* a server without keys, and this link has some */
    LINK_ANSWER_KEYS,     /* a server with keys, and this link has none */
};

/* Client: what answers, and *SINCE when (LINK_ANSWER_LINK). */
enum link_answer link_answer(struct link *link, int64_t *since);

/* Client over TCP: did its last attempts to connect fail at once, as where no
 * program listens or no route leads? */
bool link_is_refused(struct link *link);

/* What a server does that has other keys than its client (from
 * LINK_ANSWER_REFUSES on), a predicate; NULL: another answer. */
const char *link_answer_of_keys(enum link_answer answer);

/* Client: is it without a connection, or was it since the last call, and SINCE
 * when had nothing come? Call it at least each second. */
bool link_is_lost(struct link *link, int64_t *since);

/* Client: the number of the present or next TCP connection; 0: messages go over
 * none, or there has been none yet. */
uint64_t link_connection(struct link *link);

/* Client over the network: has a new connection been established since the last
 * call? Then messages in flight on an earlier one are lost. */
bool link_renewed(struct link *link);

/* A payload to send: reserved memory to fill, or a part of a buffer, held until
 * it has left. Not to be copied. */
struct link_payload {
    void *data;
    size_t bytes;
    struct buffer *buffer; /* borrowed from, or NULL */
    struct link_storage storage;
};

/* An empty payload. */
void link_no_payload(struct link_payload *payload);

/* Reserves BYTES for a payload that the next link_commit on LINK to PEER sends.
 * False: no memory. */
bool link_reserve(struct link *link, uint32_t peer,
                  struct link_payload *payload, size_t bytes);

/* Where to write a reserved payload. */
void *link_reserved(struct link_payload *payload);

/* The payload is BYTES of BUFFER from OFFSET on. They must not change until the
 * receiver has answered: on this host it may read them in place. */
void link_borrow(struct link_payload *payload, struct buffer *buffer,
                 size_t offset, size_t bytes);

/* Client: is shared memory the transport now? */
bool link_shares(const struct link *link);

/* Are payloads borrowed from BUFFER sent to PEER without any copy? */
bool link_can_share(const struct link *link, uint32_t peer,
                    const struct buffer *buffer);

/* Releases a payload that was not sent. */
void link_drop(struct link_payload *payload);

/* Sends HEADER (copied) and PAYLOAD (taken either way; NULL: none). False:
 * there is no connection, or its queue is full. */
bool link_commit(struct link *link, uint32_t peer, const void *header,
                 size_t bytes, struct link_payload *payload);

/* Bytes of all messages that this process has sent and received by links since
 * its start, headers included; of any thread. */
struct link_traffic {
    uint64_t sent, received;
};
struct link_traffic link_traffic(void);

/* Server: sends HEADER (copied), at most 2048 bytes, to a peer that may not be
 * admitted. Sent only while the peer reads its earlier replies, so that unread
 * ones cannot pile up. False: not sent. */
bool link_reply(struct link *link, uint32_t peer, const void *header,
                size_t bytes);

#endif
