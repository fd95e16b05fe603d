/* SPDX-License-Identifier: Apache-2.0 */
/* One block per message and no buffering: a served snapshot is the current
 * weights, as no rank trains meanwhile. The chief reaches it as ps 0. A message
 * that is neither the chief's nor a bandwidth probe loses its sender the
 * connection. */
#include "worker/exchange/allreduce/weights_server.h"

#include "core/base/time.h"
#include "core/net/link/link.h"
#include "proto/messages/message.h"
#include "proto/messages/ps_links.h"

#include <stdlib.h>
#include <string.h>

struct weights_server {
    struct weights_server_settings settings;
    struct link *link;
    uint64_t served_snapshot; /* id, 0: none */
    bool frozen;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

/* The chief connects when it reads or assigns. */
static const int64_t FIRST_MESSAGE_LIMIT = 30 * TIME_S;

enum status weights_server_open(struct weights_server **out,
                                const struct weights_server_settings *settings,
                                struct failure *why) {
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .address = settings->process->address,
                                 .keys = settings->process->keys,
                                 .party = cluster_party(CLUSTER_PS, 0),
                                 .flush_ms = 0};
    struct weights_server *server = calloc(1, sizeof *server);
    *out = NULL;
    if (!server)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a link");
    server->settings = *settings;
    enum status status = link_open(&server->link, settings->process->zmq,
                                   LINK_SERVER, &link, why);
    if (!status)
        status = link_bind(server->link, 0, why);
    if (!status && settings->inproc)
        status = link_bind_inproc(server->link, settings->inproc, why);
    if (status)
        weights_server_close(&server);
    else
        link_admit_within(server->link, FIRST_MESSAGE_LIMIT, MESSAGE_CREDIT);
    *out = server;
    return status;
}

void weights_server_close(struct weights_server **where) {
    struct weights_server *server = *where;
    *where = NULL;
    if (!server)
        return;
    link_close(&server->link);
    free(server);
}

uint16_t weights_server_port(const struct weights_server *server) {
    return link_port(server->link);
}

void weights_server_serve(struct weights_server *server, uint64_t snapshot) {
    server->served_snapshot = snapshot;
}

void weights_server_freeze(struct weights_server *server) {
    server->frozen = true;
}

zmq_pollitem_t weights_server_poll_item(struct weights_server *server) {
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    link_poll_items(server->link,
                    items); /* no shared memory is offered: one item */
    return items[0];
}

static float *weights_of(const struct weights_server *server, uint32_t b) {
    const struct block *block = &server->settings.layout->blocks[b];
    return server->settings.weights +
           server->settings.offsets[block->parameter] + block->offset;
}

static size_t weights_server_bytes_of(const struct weights_server *server,
                                      uint32_t b) {
    return server->settings.layout->blocks[b].elements * sizeof(float);
}

/* Takes PAYLOAD (NULL: none). If the reply cannot leave, the chief asks
 * again. */
static void weights_server_reply(struct weights_server *server, uint32_t peer,
                                 const Capstan__DataHeader *request,
                                 Capstan__DataHeader__Kind kind,
                                 const char *text,
                                 struct link_payload *payload) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.run = server->settings.process->run;
    header.incarnation = server->settings.process->incarnation;
    header.seq = request->seq;
    header.snapshot = request->snapshot;
    header.n_blocks = request->n_blocks;
    header.blocks = request->blocks;
    header.text = (char *)text;
    size_t bytes = message_write_data(&header, server->header);
    link_commit(server->link, peer, server->header, bytes, payload);
}

static const char *read_block(struct weights_server *server, uint32_t peer,
                              const Capstan__DataHeader *header) {
    struct link_payload payload;
    uint32_t b = header->blocks[0];
    if (!header->snapshot || header->snapshot != server->served_snapshot)
        return "a snapshot that is not held";
    if (!link_reserve(server->link, peer, &payload,
                      weights_server_bytes_of(server, b)))
        return NULL; /* the chief asks again */
    memcpy(link_reserved(&payload), weights_of(server, b),
           weights_server_bytes_of(server, b));
    weights_server_reply(server, peer, header,
                         CAPSTAN__DATA_HEADER__KIND__WEIGHTS, "", &payload);
    return NULL;
}

static const char *set_block(struct weights_server *server,
                             const struct link_frame *frame,
                             const Capstan__DataHeader *header) {
    uint32_t b = header->blocks[0];
    if (server->frozen)
        return "initial weights after the first round has begun";
    if (frame->payload.size != weights_server_bytes_of(server, b))
        return "a payload whose size differs from its block's";
    memcpy(weights_of(server, b), frame->payload.data,
           weights_server_bytes_of(server, b));
    weights_server_reply(server, frame->peer, header,
                         CAPSTAN__DATA_HEADER__KIND__ASSIGNED, "", NULL);
    return NULL;
}

/* Returns the error text, or NULL. */
static const char *handle_request(struct weights_server *server,
                                  const struct link_frame *frame,
                                  const Capstan__DataHeader *header) {
    if (header->n_blocks != 1 ||
        header->blocks[0] >= server->settings.layout->num_blocks)
        return "blocks that are not in the plan";
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        return read_block(server, frame->peer, header);
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return set_block(server, frame, header);
    return "a message that only a ps accepts";
}

static void handle_frame(struct weights_server *server,
                         struct link_frame *frame) {
    Capstan__DataHeader *header;
    struct failure why;
    bool is_valid = !message_read_data(
        &header, &server->arena, frame->header.data, frame->header.size, &why);
    if (is_valid && header->run == server->settings.process->run &&
        header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE) {
        ps_links_answer_probe(server->link, server->settings.process,
                              !server->frozen, frame, header);
        return;
    }
    if (!is_valid || header->run != server->settings.process->run ||
        header->incarnation != server->settings.chief ||
        !link_is_from(server->link, frame, cluster_party(CLUSTER_CHIEF, 0))) {
        if (link_may_log(server->link, "a message that is not the chief's"))
            log_warning(server->settings.process->log, "message_refused",
                        "a message that is not the chief's reached the port "
                        "where the chief reads weights; it is not answered");
        link_ban(server->link, frame->peer);
        return;
    }
    link_admit(server->link, frame->peer);
    const char *error = handle_request(server, frame, header);
    if (error)
        weights_server_reply(server, frame->peer, header,
                             CAPSTAN__DATA_HEADER__KIND__REFUSED, error, NULL);
}

void weights_server_step(struct weights_server *server) {
    struct link_frame frame;
    char text[128];
    while (link_view(server->link, &frame)) {
        handle_frame(server, &frame);
        link_release(&frame);
    }
    while (link_bad_peer(server->link, text, sizeof text))
        log_warning(server->settings.process->log, "unknown_peer_rejected",
                    "an unknown peer on port %u %s", link_port(server->link),
                    text);
}
