/* SPDX-License-Identifier: Apache-2.0 */
/* The way into a run: the chief's name is looked up until it is known, and the
 * chief asked to be let in until it answers. */
#include "proto/net/messages/member_parts.h"

#include <string.h>
#include <unistd.h>

static const int64_t SAY_WAITING_EVERY = 30 * TIME_S;

/* Starts a look-up (a thread of its own, resolve.h) or takes what one has
 * found. Connects to the chief's name as it stands now: a name can move, and a
 * name server can be late. */
void member_look_up(struct member *member, int64_t now) {
    char text[300];
    if (!member->chief_host[0])
        return;
    if (!member->resolve) {
        if (now - member->looked_up < MEMBER_LOOK_UP_EVERY)
            return;
        member->looked_up = member->looked = now;
        member->resolve = resolve_start(member->chief_host, member->chief_port);
        return;
    }
    member->looked = now;
    enum resolve_state state = resolve_poll(member->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    struct failure why = {0};
    if (state == RESOLVE_FAILED)
        log_warning(member->settings.log, "cannot find host %s: %s",
                    member->chief_host, text);
    else if (doors_connect(&member->doors, text, &why))
        log_warning(member->settings.log, "%s", why.text);
    resolve_end(&member->resolve);
}

/* What is sent is sent more often than it is worth reading. */
unsigned member_memory(struct member *member, int64_t now, int64_t every,
                       Capstan__MemoryLimit ***limits) {
    *limits = member->list;
    if (member->num_limits && now - member->limits_read < every)
        return member->num_limits;
    member->limits_read = now;
    member->num_limits = free_memory_limits(member->limits);
    for (unsigned i = 0; i < member->num_limits; i++) {
        Capstan__MemoryLimit *told = member->list[i] = &member->told[i];
        capstan__memory_limit__init(told);
        told->key = member->limits[i].key;
        told->name = member->limits[i].name;
        told->free = member->limits[i].free;
        told->most = member->limits[i].most;
    }
    return member->num_limits;
}

/* Unnumbered, so it is repeated until a welcome comes. */
bool member_send_join(struct member *member, int64_t now) {
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    join.role = member->settings.role;
    join.index = member->settings.index;
    join.host = member->host;
    join.pid = (uint32_t)getpid();
    join.port = member->settings.port;
    join.lane = member->settings.lane;
    if (member->settings.host)
        join.address = (char *)member->settings.host;
    join.end_key = member->end_key;
    join.device = (char *)member->settings.device;
    if (member->settings.key)
        join.key = (char *)member->settings.key;
    if (member->settings.size.source) {
        join.source = (char *)member->settings.size.source;
        join.workers = member->settings.size.workers;
        join.ps = member->settings.size.ps;
    }
    join.n_memory =
        member_memory(member, now, MEMBER_LOOK_UP_EVERY, &join.memory);
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    return member_send(member, &control);
}

enum status member_step_joining(struct member *member, int64_t now,
                                struct failure *why) {
    struct wait wait = member_wait(member);
    char text[512];
    if (wait_over(&wait, now))
        return status_fail(
            why, STATUS_RETRY,
            "%s did not answer within %.0f s (%s); is it started, and does its "
            "host answer?",
            wait.peer, time_to_seconds(member->join_limit), wait.limit);
    if (now - member->said_waiting > SAY_WAITING_EVERY / 6 &&
        (now - member->said_waiting > SAY_WAITING_EVERY ||
         member->said_waiting == member->opened)) {
        member->said_waiting = now;
        wait_text(&wait, now, text, sizeof text);
        log_info(member->settings.log, "%s", text);
    }
    member_look_up(member, now);
    member->looked = now;
    if (now - member->join_sent >= MEMBER_JOIN_EVERY) {
        member->join_sent = now;
        if (!member_send_join(member, now)) /* not connected yet */
            member->join_sent += MEMBER_LOOK_EVERY - MEMBER_JOIN_EVERY;
    }
    return STATUS_OK;
}
