/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a run: looks the chief's name up until it is found, and repeats the
 * join until the chief answers. */
#include "proto/net/messages/control_client_internal.h"

#include <string.h>
#include <unistd.h>

static const int64_t WAIT_LOG_INTERVAL = 30 * TIME_S;

/* Starts a look-up (a thread of its own, resolve.h) or handles its result. Each
 * look-up takes the name's present address: a name can move, and a name server
 * can be late. */
void control_client_look_up(struct control_client *control_client,
                            int64_t now) {
    char text[300];
    if (!control_client->chief_host[0])
        return;
    if (!control_client->resolve) {
        if (now - control_client->lookup_started <
            CONTROL_CLIENT_LOOKUP_INTERVAL)
            return;
        control_client->lookup_started = control_client->last_poll = now;
        control_client->resolve = resolve_start(control_client->chief_host,
                                                control_client->chief_port);
        return;
    }
    control_client->last_poll = now;
    enum resolve_state state =
        resolve_poll(control_client->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    struct failure why = {0};
    if (state == RESOLVE_FAILED)
        log_warning(control_client->process->log, "host_not_found",
                    "cannot find host %s: %s", control_client->chief_host,
                    text);
    else if (multi_connect_connect(&control_client->multi_connect, text, &why))
        log_warning(control_client->process->log, "connect_failed", "%s",
                    why.text);
    resolve_end(&control_client->resolve);
}

/* Heartbeats are more frequent than these files are worth reading. */
unsigned control_client_memory(struct control_client *control_client,
                               int64_t now, int64_t every,
                               Capstan__MemoryLimit ***limits) {
    *limits = control_client->limit_pointers;
    if (control_client->num_limits && now - control_client->limits_read < every)
        return control_client->num_limits;
    control_client->limits_read = now;
    control_client->num_limits = free_memory_limits(control_client->limits);
    for (unsigned i = 0; i < control_client->num_limits; i++) {
        Capstan__MemoryLimit *message = control_client->limit_pointers[i] =
            &control_client->limit_messages[i];
        capstan__memory_limit__init(message);
        message->key = control_client->limits[i].key;
        message->name = control_client->limits[i].name;
        message->free = control_client->limits[i].free;
        message->most = control_client->limits[i].most;
    }
    return control_client->num_limits;
}

/* Without a number: repeated until a welcome arrives. */
bool control_client_send_join(struct control_client *control_client,
                              int64_t now) {
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    join.role = control_client->member->role;
    join.index = control_client->member->index;
    join.host = control_client->host;
    join.pid = (uint32_t)getpid();
    join.port = control_client->port;
    join.shm_key = control_client->shm_key;
    if (control_client->member->self)
        join.address = (char *)control_client->member->self->host;
    join.end_key = control_client->end_key;
    join.device = "cpu";
    if (control_client->member->key)
        join.key = (char *)control_client->member->key;
    if (control_client->member->size.source) {
        join.source = (char *)control_client->member->size.source;
        join.workers = control_client->member->size.workers;
        join.ps = control_client->member->size.ps;
    }
    join.n_memory = control_client_memory(
        control_client, now, CONTROL_CLIENT_LOOKUP_INTERVAL, &join.memory);
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    return control_client_send_unreliable(control_client, &control);
}

enum status control_client_step_joining(struct control_client *control_client,
                                        int64_t now, struct failure *why) {
    struct deadline deadline = control_client_chief_deadline(control_client);
    char text[512];
    if (deadline_passed(&deadline, now))
        return status_fail(
            why, FAILURE_NO_CHIEF,
            "%s did not answer within %.0f s (%s); is it started, and does its "
            "host answer?",
            deadline.peer, time_to_seconds(control_client->join_limit),
            deadline.limit);
    if (now - control_client->last_wait_log > WAIT_LOG_INTERVAL / 6 &&
        (now - control_client->last_wait_log > WAIT_LOG_INTERVAL ||
         control_client->last_wait_log == control_client->opened)) {
        control_client->last_wait_log = now;
        deadline_text(&deadline, now, text, sizeof text);
        log_info(control_client->process->log, "waiting_for_chief", "%s", text);
    }
    control_client_look_up(control_client, now);
    control_client->last_poll = now;
    if (now - control_client->last_join >= CONTROL_CLIENT_JOIN_INTERVAL) {
        control_client->last_join = now;
        /* Not connected yet: try again soon. */
        if (!control_client_send_join(control_client, now))
            control_client->last_join +=
                CONTROL_CLIENT_POLL_INTERVAL - CONTROL_CLIENT_JOIN_INTERVAL;
    }
    return STATUS_OK;
}
