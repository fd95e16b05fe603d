/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a run: looks the chief's name up until it is found, and repeats the
 * join until the chief answers. */
#include "proto/messages/control_client_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int64_t WAIT_LOG_INTERVAL = 30 * TIME_S;
/* What has not answered for this long is there no more. */
static const int64_t FOREIGN_AGE = 5 * TIME_S;
/* A chief answers a join at once, unless its machine stands still. */
static const int64_t WELCOME_LIMIT = 5 * TIME_S;
#define NOT_AS_CHIEF "answers, but not as a Capstan chief; it "

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

bool control_client_note_foreign(struct control_client *client, unsigned index,
                                 const char *what) {
    char text[sizeof client->foreign_server];
    snprintf(text, sizeof text, "%s:%u %s", client->chief_host,
             client->chief_port + index, what);
    bool is_new = strcmp(text, client->foreign_server) != 0;
    snprintf(client->foreign_server, sizeof client->foreign_server, "%s", text);
    return is_new;
}

/* Looks at what answers at each port. Of several ports the chief takes the
 * first that is free: programs on those before it are expected. */
static void check_answers(struct control_client *client, int64_t now) {
    static const char *const texts[] = {
        [LINK_ANSWER_LINK] =
            "has not answered a join for 5 s: a ps, a worker or another "
            "program over ZeroMQ has the port, or the chief stands still, or "
            "it waits until this task's last process counts as dead",
        [LINK_ANSWER_PROTOCOL] = NOT_AS_CHIEF "speaks another protocol: is "
                                              "another program using the port?",
        [LINK_ANSWER_CLOSED] = NOT_AS_CHIEF
        "closes each connection: is another program using the port, or a proxy "
        "before a chief that has not come?",
        [LINK_ANSWER_SILENT] = NOT_AS_CHIEF
        "accepts connections and says nothing: is another program using the "
        "port, or a proxy before a chief that has not come, or does the chief "
        "stand still?",
    };
    if (client->member->chief_inproc || client->answered)
        return;
    for (unsigned i = 0; i < client->multi_connect.count; i++) {
        int64_t since;
        enum link_answer answer =
            link_answer(client->multi_connect.links[i], &since);
        bool too_early =
            answer == LINK_ANSWER_LINK && now - since < WELCOME_LIMIT;
        if (!texts[answer] || too_early)
            continue;
        bool is_new = control_client_note_foreign(client, i, texts[answer]);
        client->foreign_at = now;
        if (is_new && client->multi_connect.count == 1 &&
            (!client->last_foreign_log ||
             now - client->last_foreign_log > WAIT_LOG_INTERVAL)) {
            client->last_foreign_log = now;
            log_warning(client->process->log, "foreign_server_found", "%s",
                        client->foreign_server);
        }
    }
    if (client->foreign_at && now - client->foreign_at > FOREIGN_AGE)
        client->foreign_server[0] = 0; /* it has gone */
}

static enum status fail_without_chief(const struct control_client *client,
                                      const struct deadline *deadline,
                                      struct failure *why) {
    const char *foreign = client->foreign_server;
    return status_fail(
        why, FAILURE_NO_CHIEF, "%s did not answer within %.0f s (%s)%s%s",
        deadline->peer, time_to_seconds(client->join_limit), deadline->limit,
        foreign[0] ? ": " : "; is it started, and does its host answer?",
        foreign);
}

enum status control_client_step_joining(struct control_client *client,
                                        int64_t now, struct failure *why) {
    struct deadline deadline = control_client_chief_deadline(client);
    char text[512];
    if (deadline_passed(&deadline, now))
        return fail_without_chief(client, &deadline, why);
    check_answers(client, now);
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
