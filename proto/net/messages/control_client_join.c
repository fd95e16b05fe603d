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
void control_client_look_up(struct control_client *client, int64_t now) {
    char text[300];
    if (!client->chief_host[0])
        return;
    if (!client->resolve) {
        if (now - client->lookup_started < CONTROL_CLIENT_LOOKUP_INTERVAL)
            return;
        client->lookup_started = client->last_poll = now;
        client->resolve = resolve_start(client->chief_host, client->chief_port);
        return;
    }
    client->last_poll = now;
    enum resolve_state state = resolve_poll(client->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    struct failure why = {0};
    if (state == RESOLVE_FAILED)
        log_warning(client->process->log, "host_not_found",
                    "cannot find host %s: %s", client->chief_host, text);
    else if (multi_connect_connect(&client->multi_connect, text, &why))
        log_warning(client->process->log, "connect_failed", "%s", why.text);
    resolve_end(&client->resolve);
}

/* Heartbeats are more frequent than these files are worth reading. */
unsigned control_client_memory(struct control_client *client, int64_t now,
                               int64_t every, Capstan__MemoryLimit ***limits) {
    *limits = client->limit_pointers;
    if (client->num_limits && now - client->limits_read < every)
        return client->num_limits;
    client->limits_read = now;
    client->num_limits = free_memory_limits(client->limits);
    for (unsigned i = 0; i < client->num_limits; i++) {
        Capstan__MemoryLimit *message = client->limit_pointers[i] =
            &client->limit_messages[i];
        capstan__memory_limit__init(message);
        message->key = client->limits[i].key;
        message->name = client->limits[i].name;
        message->free = client->limits[i].free;
        message->most = client->limits[i].most;
    }
    return client->num_limits;
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
    join.only_there = control_client->process->address != NULL;
    if (join.only_there)
        join.address = (char *)control_client->process->address;
    else if (control_client->member->self)
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

enum status control_client_step_joining(struct control_client *client,
                                        int64_t now, struct failure *why) {
    struct deadline deadline = control_client_chief_deadline(client);
    char text[512];
    if (deadline_passed(&deadline, now))
        return status_fail(
            why, FAILURE_NO_CHIEF,
            "%s did not answer within %.0f s (%s); is it started, and does its "
            "host answer?",
            deadline.peer, time_to_seconds(client->join_limit), deadline.limit);
    if (now - client->last_wait_log > WAIT_LOG_INTERVAL / 6 &&
        (now - client->last_wait_log > WAIT_LOG_INTERVAL ||
         client->last_wait_log == client->opened)) {
        client->last_wait_log = now;
        deadline_text(&deadline, now, text, sizeof text);
        log_info(client->process->log, "waiting_for_chief", "%s", text);
    }
    control_client_look_up(client, now);
    client->last_poll = now;
    if (now - client->last_join >= CONTROL_CLIENT_JOIN_INTERVAL) {
        client->last_join = now;
        /* Not connected yet: try again soon. */
        if (!control_client_send_join(client, now))
            client->last_join +=
                CONTROL_CLIENT_POLL_INTERVAL - CONTROL_CLIENT_JOIN_INTERVAL;
    }
    return STATUS_OK;
}
