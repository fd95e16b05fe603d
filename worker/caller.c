/* SPDX-License-Identifier: Apache-2.0 */
/* Listed ps are asked one after the other, as a ps may have been called by the
 * chief already; each answer, and each call, is handed on, and the latest
 * counts. */
#include "worker/caller.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"
#include "proto/net/security/call_guard.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t ASK_EVERY = 2 * TIME_S; /* one ps after the other */
static const int64_t SAY_EVERY = TIME_S / 5;
static const int64_t CALLED_WITHIN = 30 * TIME_S; /* nobody has to stay */

struct caller {
    struct caller_settings settings;
    struct link *door;  /* my own port */
    struct link *asked; /* the ps I ask */
    struct resolve *resolve;
    struct call_guard calls;
    bool found; /* calls do not matter any more */
    uint32_t next_ps;
    int64_t asked_at, said_at;
    struct message_arena arena;
};

enum status caller_open(struct caller **out,
                        const struct caller_settings *settings,
                        struct failure *why) {
    struct caller *caller = calloc(1, sizeof *caller);
    if (!caller)
        return status_fail(why, STATUS_RETRY, "no memory for a worker");
    caller->settings = *settings;
    caller->calls =
        (struct call_guard){.cluster = settings->cluster, .log = settings->log};
    caller->asked_at = caller->said_at = time_now() - ASK_EVERY;
    struct link_settings link = {.max_frame = MESSAGE_MAX_HEADER,
                                 .receive_frames = 64};
    enum status status = STATUS_OK;
    if (settings->self) {
        status =
            link_open(&caller->door, settings->zmq, LINK_SERVER, &link, why);
        if (!status)
            status = link_bind(caller->door, settings->self->port, why);
        if (!status)
            link_admit_within(caller->door, CALLED_WITHIN);
    }
    if (!status && settings->cluster &&
        settings->cluster->jobs[CLUSTER_PS].count)
        status =
            link_open(&caller->asked, settings->zmq, LINK_CLIENT, &link, why);
    if (status)
        caller_close(&caller);
    *out = caller;
    return status;
}

void caller_close(struct caller **where) {
    struct caller *caller = *where;
    *where = NULL;
    if (!caller)
        return;
    resolve_end(&caller->resolve);
    call_guard_close(&caller->calls);
    link_close(&caller->door);
    link_close(&caller->asked);
    free(caller);
}

uint16_t caller_port(const struct caller *caller) {
    return caller->door ? link_port(caller->door) : 0;
}

zmq_pollitem_t caller_poll_item(struct caller *caller) {
    zmq_pollitem_t item = {NULL, -1, ZMQ_POLLIN, 0};
    if (caller->door)
        item.socket = link_socket(caller->door);
    return item;
}

int64_t caller_deadline(const struct caller *caller) {
    return caller->asked ? caller->said_at + SAY_EVERY : TIME_NEVER;
}

/* A listed ps that was asked is believed, who comes by itself looked at. */
static bool take_call(struct caller *caller, struct link *link,
                      struct link_frame *frame,
                      const Capstan__DataHeader *header, char *address,
                      size_t size) {
    if (link == caller->door && !caller->found)
        call_guard_take(&caller->calls, link, frame, header->text);
    else
        snprintf(address, size, "%s", header->text);
    return link != caller->door;
}

static bool hear(struct caller *caller, struct link *link, char *address,
                 size_t size) {
    struct link_frame frame;
    bool heard = false;
    char text[128];
    while (link && link_view(link, &frame)) {
        Capstan__DataHeader *header;
        struct failure bad;
        if (message_read_data(&header, &caller->arena, frame.header.data,
                              frame.header.size, &bad)) {
            if (link_may_say(link, bad.text))
                log_warning(
                    caller->settings.log,
                    "a peer sent %s; its connection is not read any more",
                    bad.text);
            link_ban(link, frame.peer);
        } else if (header->kind == CAPSTAN__DATA_HEADER__KIND__CALL) {
            heard |= take_call(caller, link, &frame, header, address, size);
        } else if (link_may_say(link, "not a call")) {
            log_warning(caller->settings.log,
                        "a peer sent what a worker does not take here");
        }
        link_release(&frame);
    }
    while (link && link_stranger(link, text, sizeof text))
        log_warning(caller->settings.log, "a stranger on port %u %s",
                    link_port(link), text);
    return heard;
}

/* To TASK, once its name is found. */
static void connect_to(struct caller *caller, const struct cluster_task *task) {
    char text[300];
    struct failure why;
    enum resolve_state state = resolve_poll(caller->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    if (state == RESOLVE_FAILED)
        log_warning(caller->settings.log, "cannot find host %s of ps %u: %s",
                    task->host, task->index, text);
    else if (link_connect(caller->asked, text, &why))
        log_warning(caller->settings.log, "%s", why.text);
    resolve_end(&caller->resolve);
    caller->next_ps++;
}

/* Asks one listed ps after the other who the chief is. */
static void ask(struct caller *caller, int64_t now) {
    const struct cluster_job *ps = &caller->settings.cluster->jobs[CLUSTER_PS];
    const struct cluster_task *task = &ps->tasks[caller->next_ps % ps->count];
    if (!caller->resolve && now - caller->asked_at >= ASK_EVERY) {
        caller->asked_at = now;
        caller->resolve = resolve_start(task->host, task->port);
    }
    if (caller->resolve)
        connect_to(caller, task);
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[256];
    header.kind = CAPSTAN__DATA_HEADER__KIND__WHO;
    size_t bytes = message_write_data(&header, space);
    link_commit(caller->asked, 0, space, bytes, NULL);
}

void caller_found(struct caller *caller) {
    caller->found = true;
    resolve_end(&caller->resolve);
    link_close(&caller->asked);
}

bool caller_step(struct caller *caller, int64_t now, char *address,
                 size_t size) {
    if (caller->asked && now - caller->said_at >= SAY_EVERY) {
        caller->said_at = now;
        ask(caller, now);
    }
    hear(caller, caller->door, address, size);
    bool told = hear(caller, caller->asked, address, size);
    return told ||
           (caller->door &&
            call_guard_step(&caller->calls, caller->door, address, size));
}
