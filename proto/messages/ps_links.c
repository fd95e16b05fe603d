/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/ps_links.h"

#include "core/base/time.h"
#include "core/net/link/resolve.h"

#include <stdlib.h>
#include <string.h>

static const int64_t LOOKUP_INTERVAL = 5 * TIME_S, GREET_INTERVAL = TIME_S;
/* TCP may need four seconds to notice a cut, and libzmq two to connect again
 * after its end. */
static const int64_t LEAST_LOST = 8 * TIME_S;

int64_t ps_links_lost_limit(int64_t peer) {
    return peer > LEAST_LOST ? peer : LEAST_LOST;
}

struct lookup {
    char host[256];
    uint16_t port;
    bool found;
    int64_t now; /* of the last ps_links_connect */
    int64_t started_at, greeted_at;
    uint64_t greeted, admitted; /* numbers of connections */
    struct resolve *resolve;
};

struct ps_links {
    struct ps_links_settings settings;
    struct link **links;
    struct lookup *lookups;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static enum status open_link(struct ps_links *links, uint32_t p,
                             struct failure *why) {
    const struct ps_links_settings *s = &links->settings;
    struct lookup *lookup = &links->lookups[p];
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .address = s->process->address,
                                 .keys = s->process->keys,
                                 .party =
                                     cluster_party(CLUSTER_PS, s->ps[p].index)};
    enum status status =
        link_open(&links->links[p], s->process->zmq, LINK_CLIENT, &link, why);
    if (status)
        return status;
    if (s->inproc)
        return link_connect_inproc(links->links[p], s->inproc, why);
    if (s->process->shm && s->ps[p].shm_key)
        link_prefer_shm(links->links[p], s->ps[p].shm_key);
    lookup->started_at = -LOOKUP_INTERVAL;
    return resolve_split(s->ps[p].address, lookup->host, sizeof lookup->host,
                         &lookup->port)
               ? STATUS_OK
               : status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                             "cannot look up %s", s->ps[p].address);
}

enum status ps_links_open(struct ps_links **out,
                          const struct ps_links_settings *settings,
                          struct failure *why) {
    struct ps_links *links = calloc(1, sizeof *links);
    enum status status = STATUS_OK;
    if (links) {
        links->settings = *settings;
        links->links = calloc(settings->num_ps + 1, sizeof *links->links);
        links->lookups = calloc(settings->num_ps + 1, sizeof *links->lookups);
    }
    if (!links || !links->links || !links->lookups)
        status = status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for links to %u ps", settings->num_ps);
    for (uint32_t p = 0; !status && p < settings->num_ps; p++)
        status = open_link(links, p, why);
    if (status)
        ps_links_close(&links);
    *out = links;
    return status;
}

void ps_links_close(struct ps_links **where) {
    struct ps_links *links = *where;
    *where = NULL;
    if (!links)
        return;
    for (uint32_t p = 0;
         links->links && links->lookups && p < links->settings.num_ps; p++) {
        resolve_end(&links->lookups[p].resolve);
        link_close(&links->links[p]);
    }
    free(links->links);
    free(links->lookups);
    free(links);
}

struct link *const *ps_links_all(const struct ps_links *links) {
    return links->links;
}

enum status ps_links_connect(struct ps_links *links, uint32_t p, int64_t now,
                             int64_t heard, struct failure *why) {
    struct lookup *lookup = &links->lookups[p];
    char text[300];
    lookup->now = now;
    if (links->settings.inproc)
        return STATUS_OK;
    if (!lookup->resolve && now - lookup->started_at >= LOOKUP_INTERVAL &&
        (!lookup->found || now - heard >= LOOKUP_INTERVAL)) {
        lookup->started_at = now;
        lookup->resolve = resolve_start(lookup->host, lookup->port);
    }
    if (!lookup->resolve)
        return STATUS_OK;
    enum resolve_state state = resolve_poll(lookup->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return STATUS_OK;
    resolve_end(&lookup->resolve);
    if (state == RESOLVE_FAILED)
        return status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                           "cannot find host %s of ps %u: %s", lookup->host,
                           links->settings.ps[p].index, text);
    enum status status = link_connect(links->links[p], text, why);
    lookup->found |= !status;
    return status;
}

static bool sign_and_send(struct ps_links *links, uint32_t p,
                          Capstan__DataHeader *header,
                          struct link_payload *payload) {
    header->run = links->settings.process->run;
    header->incarnation = links->settings.process->incarnation;
    header->rank = links->settings.rank;
    size_t bytes = message_write_data(header, links->header);
    return link_commit(links->links[p], 0, links->header, bytes, payload);
}

/* The greeting has the number of its connection, so that a late answer by the
 * one before does not count. */
bool ps_links_greet(struct ps_links *links, uint32_t p) {
    struct lookup *lookup = &links->lookups[p];
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    if (links->settings.inproc || link_is_over_shm(links->links[p]))
        return true;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PROBE;
    header.seq = link_connection(links->links[p]);
    if (header.seq && lookup->admitted == header.seq)
        return true;
    if ((lookup->greeted != header.seq ||
         lookup->now - lookup->greeted_at >= GREET_INTERVAL) &&
        sign_and_send(links, p, &header, NULL)) {
        lookup->greeted = header.seq;
        lookup->greeted_at = lookup->now;
    }
    return false;
}

bool ps_links_send(struct ps_links *links, uint32_t p,
                   Capstan__DataHeader *header, struct link_payload *payload) {
    if (ps_links_greet(links, p))
        return sign_and_send(links, p, header, payload);
    if (payload)
        link_drop(payload);
    return false;
}

/* A refusal names no run, as a ps refuses those of other runs too. */
static bool ps_links_is_addressed(const struct ps_links *links, uint32_t p,
                                  const Capstan__DataHeader *header) {
    uint64_t incarnation = links->settings.ps[p].incarnation;
    return header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED ||
           (header->run == links->settings.process->run &&
            (!incarnation || header->incarnation == incarnation));
}

void ps_links_answer_probe(struct link *server_link,
                           const struct process *process, bool echoes,
                           const struct link_frame *frame,
                           const Capstan__DataHeader *header) {
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[256];
    struct link_payload payload;
    size_t size = frame->payload.size;
    if (!process->run || header->run != process->run)
        return;
    link_admit(server_link, frame->peer);
    link_no_payload(&payload);
    if (size && (!echoes || size > MESSAGE_GROUP_BYTES ||
                 !link_reserve(server_link, frame->peer, &payload, size)))
        return;
    if (size)
        memcpy(link_reserved(&payload), frame->payload.data, size);
    reply.kind = CAPSTAN__DATA_HEADER__KIND__PROBE_REPLY;
    reply.run = process->run;
    reply.incarnation = process->incarnation;
    reply.seq = header->seq;
    size_t bytes = message_write_data(&reply, space);
    link_commit(server_link, frame->peer, space, bytes, &payload);
}

/* Takes the answer to a greeting. */
static bool take_admission(struct ps_links *links, uint32_t p,
                           const Capstan__DataHeader *header,
                           const struct link_frame *frame) {
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__PROBE_REPLY ||
        frame->payload.size)
        return false;
    links->lookups[p].admitted = header->seq;
    return true;
}

bool ps_links_receive(struct ps_links *links, uint32_t p,
                      Capstan__DataHeader **header, struct link_frame *frame) {
    struct failure why;
    while (link_view(links->links[p], frame)) {
        if (message_read_data(header, &links->arena, frame->header.data,
                              frame->header.size, &why))
            log_warning(links->settings.process->log,
                        "malformed_message_rejected", "from ps %u: %s",
                        links->settings.ps[p].index, why.text);
        else if (ps_links_is_addressed(links, p, *header) &&
                 !take_admission(links, p, *header, frame))
            return true;
        link_release(frame);
    }
    return false;
}
