/* SPDX-License-Identifier: Apache-2.0 */
/* The links of a client to its ps, one to each: a trainer's, the chief's, the
 * bench's or the bandwidth meter's. They find the ps by its address, sign
 * requests, and pass on answers of the right run and ps. When a request is
 * repeated, and how long a ps may be silent, is the client's decision. One
 * thread. */
#ifndef CAPSTAN_PS_LINKS_H
#define CAPSTAN_PS_LINKS_H

#include "core/base/status.h"
#include "core/net/link/link.h"
#include "proto/messages/member.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_links_peer {
    uint32_t index;       /* of the ps */
    char address[300];    /* host:port of a ps's data link */
    uint64_t incarnation; /* answers of others are dropped; 0: of none */
    uint64_t shm_key;     /* key of its shared-memory offer, 0: none */
};

/* All pointers are borrowed. PROCESS is the client's: its log gets malformed
 * answers, and if it allows shared memory, that is tried first with a ps on
 * this host. */
struct ps_links_settings {
    const struct process *process;
    uint32_t rank; /* the client's; 0 if it has none */
    uint32_t num_ps;
    const struct ps_links_peer *ps; /* [num_ps] */
    const char *inproc;             /* the ps's link in this process, or NULL */
};

struct ps_links;

/* How long a ps may be out of reach, if PEER is timeouts.peer: as long, but not
 * less than a cut of some seconds takes to be made good. */
int64_t ps_links_lost_limit(int64_t peer);

/* STATUS_RETRY: no memory, no descriptors, or an address without a port. */
enum status ps_links_open(struct ps_links **out,
                          const struct ps_links_settings *settings,
                          struct failure *why) MUST_CHECK;

/* Closes the links and clears *LINKS (may be NULL). */
void ps_links_close(struct ps_links **links);

/* The link to each ps; views. */
struct link *const *ps_links_all(const struct ps_links *links);

/* Connects to PS: looks its name up at first, and again every 5 s while it
 * cannot be found or has been silent for as long at NOW, since HEARD.
 * STATUS_RETRY says why a look-up has failed; the next one may succeed. */
enum status ps_links_connect(struct ps_links *links, uint32_t ps, int64_t now,
                             int64_t heard, struct failure *why);

/* Has PS admitted this client on the present connection? Before that requests
 * that it does not read would end the connection. If not, asks it by a PROBE
 * without payload, whose answer ps_links_receive takes; again after a second,
 * as ps_links_connect counts time. */
bool ps_links_greet(struct ps_links *links, uint32_t ps);

/* Sends HEADER, signed by run, incarnation and rank, and PAYLOAD to PS. False:
 * they cannot leave now, or have to wait for ps_links_greet. */
bool ps_links_send(struct ps_links *links, uint32_t ps,
                   Capstan__DataHeader *header, struct link_payload *payload);

/* The other end: admits the sender of HEADER, a PROBE, if it knows the run of
 * PROCESS, and answers. If it ECHOES, the payload goes back; else one that has
 * a payload is not answered. */
void ps_links_answer_probe(struct link *server_link,
                           const struct process *process, bool echoes,
                           const struct link_frame *frame,
                           const Capstan__DataHeader *header);

/* Views the next answer of PS: of this run and incarnation, or a refusal.
 * HEADER is valid until the next call; the caller releases FRAME before it. */
bool ps_links_receive(struct ps_links *links, uint32_t ps,
                      Capstan__DataHeader **header, struct link_frame *frame);

#endif
