/* SPDX-License-Identifier: Apache-2.0 */
/* The listener queries the listed ps in turn, as the chief may have announced
 * itself to any of them already. It returns every answer and every announcement
 * to the caller; the latest counts. */
#include "worker/discovery_listener.h"

#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/net/link/resolve.h"
#include "proto/messages/discovery_guard.h"
#include "proto/messages/message.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t CONNECT_INTERVAL =
    2 * TIME_S; /* time for each ps in turn */
static const int64_t QUERY_INTERVAL = TIME_S / 5;
static const int64_t FIRST_MESSAGE_LIMIT =
    30 * TIME_S; /* no peer needs to stay connected */

struct discovery_listener {
    const struct process *process;
    const struct member *member;
    struct link *listener; /* this worker's port */
    struct link *ps_link;  /* the ps being queried */
    struct resolve *resolve;
    struct discovery_guard guard;
    bool chief_found; /* announcements are ignored */
    uint32_t next_ps;
    int64_t connected_at, queried_at;
    struct message_arena arena;
};

enum status discovery_listener_open(struct discovery_listener **out,
                                    const struct process *process,
                                    const struct member *member,
                                    struct failure *why) {
    struct discovery_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a worker");
    listener->process = process;
    listener->member = member;
    listener->guard =
        (struct discovery_guard){.cluster = member->discovery_cluster,
                                 .chief = member->chief,
                                 .log = process->log};
    listener->connected_at = listener->queried_at =
        time_now() - CONNECT_INTERVAL;
    struct link_settings link = {
        .max_frame = MESSAGE_MAX_HEADER,
        .address = process->address,
        .keys = process->keys,
        .party = cluster_party(CLUSTER_WORKER, member->index)};
    enum status status = STATUS_OK;
    if (member->self) {
        status = link_open(&listener->listener, process->zmq, LINK_SERVER,
                           &link, why);
        if (!status)
            status = link_bind(listener->listener, member->self->port, why);
        if (!status)
            link_admit_within(listener->listener, FIRST_MESSAGE_LIMIT,
                              MESSAGE_MAX_HEADER);
    }
    if (!status && member->discovery_cluster &&
        member->discovery_cluster->jobs[CLUSTER_PS].count) {
        link.party = cluster_party(
            CLUSTER_PS,
            member->discovery_cluster->jobs[CLUSTER_PS].tasks->index);
        status = link_open(&listener->ps_link, process->zmq, LINK_CLIENT, &link,
                           why);
    }
    if (status)
        discovery_listener_close(&listener);
    *out = listener;
    return status;
}

void discovery_listener_close(struct discovery_listener **where) {
    struct discovery_listener *listener = *where;
    *where = NULL;
    if (!listener)
        return;
    resolve_end(&listener->resolve);
    discovery_guard_close(&listener->guard);
    link_close(&listener->listener);
    link_close(&listener->ps_link);
    free(listener);
}

uint16_t discovery_listener_port(const struct discovery_listener *listener) {
    return listener->listener ? link_port(listener->listener) : 0;
}

zmq_pollitem_t discovery_listener_poll_item(
    struct discovery_listener *listener) {
    zmq_pollitem_t item = {NULL, -1, ZMQ_POLLIN, 0};
    if (listener->listener)
        item.socket = link_socket(listener->listener);
    return item;
}

int64_t discovery_listener_deadline(const struct discovery_listener *listener) {
    return listener->ps_link ? listener->queried_at + QUERY_INTERVAL
                             : TIME_NEVER;
}

/* The answer of a queried ps is trusted. An announcement that arrives unasked
 * goes through discovery_guard first. */
static bool handle_call(struct discovery_listener *listener, struct link *link,
                        struct link_frame *frame,
                        const Capstan__DataHeader *header, char *address,
                        size_t size) {
    if (link == listener->listener && !listener->chief_found)
        discovery_guard_receive(&listener->guard, link, frame, header->text);
    else
        snprintf(address, size, "%s", header->text);
    return link != listener->listener;
}

static bool discovery_listener_receive(struct discovery_listener *listener,
                                       struct link *link, char *address,
                                       size_t size) {
    struct link_frame frame;
    bool found = false;
    char text[128];
    while (link && link_view(link, &frame)) {
        Capstan__DataHeader *header;
        struct failure error;
        if (message_read_data(&header, &listener->arena, frame.header.data,
                              frame.header.size, &error)) {
            if (link_may_log(link, error.text))
                log_warning(
                    listener->process->log, "malformed_message_rejected",
                    "a peer sent %s; its connection is not read any more",
                    error.text);
            link_ban(link, frame.peer);
        } else if (header->kind == CAPSTAN__DATA_HEADER__KIND__CHIEF_AT) {
            found |= handle_call(listener, link, &frame, header, address, size);
        } else if (link_may_log(link, "not a call")) {
            log_warning(
                listener->process->log, "message_refused",
                "a peer sent a message that a worker does not accept here");
        }
        link_release(&frame);
    }
    while (link && link_bad_peer(link, text, sizeof text))
        log_warning(listener->process->log, "unknown_peer_rejected",
                    "an unknown peer on port %u %s", link_port(link), text);
    return found;
}

/* Connects to TASK once its host name is resolved. */
static void discovery_listener_connect_to(struct discovery_listener *listener,
                                          const struct cluster_task *task) {
    char text[300];
    struct failure why;
    enum resolve_state state =
        resolve_poll(listener->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    if (state == RESOLVE_FAILED)
        log_warning(listener->process->log, "host_not_found",
                    "cannot find host %s of ps %u: %s", task->host, task->index,
                    text);
    else if (link_expect(listener->ps_link,
                         cluster_party(CLUSTER_PS, task->index), &why) ||
             link_connect(listener->ps_link, text, &why))
        log_warning(listener->process->log, "connect_failed", "%s", why.text);
    resolve_end(&listener->resolve);
    listener->next_ps++;
}

/* Of the ps that it is connected to, or tries to be. */
static void name_listener_refusal(const struct discovery_listener *listener,
                                  const struct cluster_task *task) {
    char text[512];
    int64_t since;
    const char *refusal =
        link_answer_of_keys(link_answer(listener->ps_link, &since));
    if (!refusal)
        return;
    snprintf(text, sizeof text, "ps %u at %.256s:%u %s", task->index,
             task->host, task->port, refusal);
    if (link_may_log(listener->ps_link, text))
        log_warning(listener->process->log, "foreign_server_found", "%s", text);
}

/* Asks the next listed ps for the chief's address. */
static void query_ps(struct discovery_listener *listener, int64_t now) {
    const struct cluster_job *ps =
        &listener->member->discovery_cluster->jobs[CLUSTER_PS];
    const struct cluster_task *task = &ps->tasks[listener->next_ps % ps->count];
    if (listener->next_ps)
        name_listener_refusal(listener,
                              &ps->tasks[(listener->next_ps - 1) % ps->count]);
    if (!listener->resolve &&
        now - listener->connected_at >= CONNECT_INTERVAL) {
        listener->connected_at = now;
        listener->resolve = resolve_start(task->host, task->port);
    }
    if (listener->resolve)
        discovery_listener_connect_to(listener, task);
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char buffer[256];
    header.kind = CAPSTAN__DATA_HEADER__KIND__FIND_CHIEF;
    size_t bytes = message_write_data(&header, buffer);
    link_commit(listener->ps_link, 0, buffer, bytes, NULL);
}

void discovery_listener_stop_queries(struct discovery_listener *listener) {
    listener->chief_found = true;
    resolve_end(&listener->resolve);
    link_close(&listener->ps_link);
}

bool discovery_listener_step(struct discovery_listener *discovery_listener,
                             int64_t now, char *address, size_t size) {
    if (discovery_listener->ps_link &&
        now - discovery_listener->queried_at >= QUERY_INTERVAL) {
        discovery_listener->queried_at = now;
        query_ps(discovery_listener, now);
    }
    discovery_listener_receive(discovery_listener, discovery_listener->listener,
                               address, size);
    bool found = discovery_listener_receive(
        discovery_listener, discovery_listener->ps_link, address, size);
    return found ||
           (discovery_listener->listener &&
            discovery_guard_step(&discovery_listener->guard,
                                 discovery_listener->listener, address, size));
}
