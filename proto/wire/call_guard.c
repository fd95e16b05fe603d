#include "proto/wire/call_guard.h"

#include <stdio.h>

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
    if (guard->look_up || guard->address[0])
        return; /* one at a time: calls are repeated */
    unsigned count = list_others(guard->cluster, hosts);
    bool near = link_is_near(frame);
    if (count && !near && !link_peer_host(frame, from, sizeof from))
        return;
    snprintf(guard->address, sizeof guard->address, "%s", address);
    if (count && !near)
        guard->look_up = resolve_among(from, hosts, count);
}

bool call_guard_step(struct call_guard *guard, char *address, size_t size) {
    char text[300];
    if (!guard->address[0])
        return false;
    enum resolve_state state =
        guard->look_up ? resolve_poll(guard->look_up, text, sizeof text)
                       : RESOLVE_FOUND;
    if (state == RESOLVE_WAITING)
        return false;
    resolve_end(&guard->look_up);
    if (state == RESOLVE_FOUND)
        snprintf(address, size, "%s", guard->address);
    else
        log_warning(guard->log,
                    "a call to join a chief at %.64s is passed over: it comes "
                    "from a host that the cluster description does not list; "
                    "name the chief there (chief, --chief_hosts)",
                    guard->address);
    guard->address[0] = 0;
    return state == RESOLVE_FOUND;
}

void call_guard_close(struct call_guard *guard) {
    resolve_end(&guard->look_up);
}
