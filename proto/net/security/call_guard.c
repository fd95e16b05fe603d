/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/security/call_guard.h"

#include <stdio.h>
#include <string.h>

enum { MOST_HOSTS = 4096 };

/* Hosts of all that are listed but this process; how many. */
static unsigned list_others(const struct cluster *cluster,
                            const char *hosts[MOST_HOSTS]) {
    const struct cluster_task *self = cluster_self(cluster);
    unsigned count = 0;
    for (int role = 0; role < CLUSTER_ROLES; role++)
        for (uint32_t i = 0; i < cluster->jobs[role].count; i++) {
            const struct cluster_task *task = &cluster->jobs[role].tasks[i];
            if (task != self && count < MOST_HOSTS)
                hosts[count++] = task->host;
        }
    return count;
}

/* Room for who calls FROM there; NULL: it is being looked up, or there is none,
 * and calls are repeated. */
static struct call_guard_caller *free_caller(struct call_guard *guard,
                                             const char *from) {
    struct call_guard_caller *found = NULL;
    for (int i = 0; i < CALL_GUARD_CALLERS; i++) {
        if (!strcmp(guard->callers[i].from, from))
            return NULL;
        if (!guard->callers[i].from[0])
            found = &guard->callers[i];
    }
    return found;
}

/* A caller on this very host is on a listed one: this process's own. */
void call_guard_take(struct call_guard *guard, struct link *link,
                     struct link_frame *frame, const char *address) {
    const char *hosts[MOST_HOSTS];
    char from[64];
    if (!guard->cluster) {
        if (link_may_say(link, "a call"))
            log_warning(guard->log,
                        "a call to join a chief at %.64s is passed over: the "
                        "cluster description names this process's chief",
                        address);
        return;
    }
    struct call_guard_caller *caller = link_peer_host(frame, from, sizeof from)
                                           ? free_caller(guard, from)
                                           : NULL;
    if (!caller)
        return;
    unsigned count = list_others(guard->cluster, hosts);
    bool listed = !count || link_is_near(frame);
    if (!listed && !(caller->look_up = resolve_among(from, hosts, count)))
        return;
    snprintf(caller->from, sizeof caller->from, "%s", from);
    snprintf(caller->address, sizeof caller->address, "%s", address);
}

static enum resolve_state judge(struct call_guard *guard, struct link *link,
                                struct call_guard_caller *caller) {
    char text[300];
    enum resolve_state state =
        caller->look_up ? resolve_poll(caller->look_up, text, sizeof text)
                        : RESOLVE_FOUND;
    if (state == RESOLVE_FAILED && link_may_say(link, "an unlisted call"))
        log_warning(guard->log,
                    "a call from %s to join a chief at %.64s is passed over: "
                    "the cluster description does not list that host; name the "
                    "chief there (chief, --chief_hosts)",
                    caller->from, caller->address);
    return state;
}

bool call_guard_step(struct call_guard *guard, struct link *link, char *address,
                     size_t size) {
    for (int i = 0; i < CALL_GUARD_CALLERS; i++) {
        struct call_guard_caller *caller = &guard->callers[i];
        enum resolve_state state =
            caller->from[0] ? judge(guard, link, caller) : RESOLVE_WAITING;
        if (state == RESOLVE_WAITING)
            continue;
        resolve_end(&caller->look_up);
        caller->from[0] = 0;
        if (state == RESOLVE_FAILED)
            continue;
        snprintf(address, size, "%s", caller->address);
        return true;
    }
    return false;
}

void call_guard_close(struct call_guard *guard) {
    for (int i = 0; i < CALL_GUARD_CALLERS; i++)
        resolve_end(&guard->callers[i].look_up);
}
