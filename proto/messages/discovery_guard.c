/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/discovery_guard.h"

#include <stdio.h>
#include <string.h>

enum { MAX_HOSTS = 4096 };

/* The hosts of all listed tasks but this process's own; returns how many. */
static unsigned list_other_hosts(const struct cluster *cluster,
                                 const char *hosts[MAX_HOSTS]) {
    const struct cluster_task *self = cluster_own_task(cluster);
    unsigned count = 0;
    for (int role = 0; role < CLUSTER_ROLES; role++)
        for (uint32_t i = 0; i < cluster->jobs[role].count; i++) {
            const struct cluster_task *task = &cluster->jobs[role].tasks[i];
            if (task != self && count < MAX_HOSTS)
                hosts[count++] = task->host;
        }
    return count;
}

/* A free entry for a message from host FROM; NULL: a look-up for that host runs
 * already, or there is none. Senders repeat their messages. */
static struct discovery_guard_sender *free_sender(struct discovery_guard *guard,
                                                  const char *from) {
    struct discovery_guard_sender *found = NULL;
    for (int i = 0; i < DISCOVERY_GUARD_SENDERS; i++) {
        if (!strcmp(guard->senders[i].from, from))
            return NULL;
        if (!guard->senders[i].from[0])
            found = &guard->senders[i];
    }
    return found;
}

/* The chief that the description names calls members that have not joined. */
static bool is_named_chief(const struct discovery_guard *guard,
                           const char *address) {
    char named[300];
    if (!guard->chief)
        return false;
    cluster_address(guard->chief, named, sizeof named);
    return !strcmp(named, address);
}

/* A sender on this host is on a listed one: this process's own. */
void discovery_guard_receive(struct discovery_guard *guard, struct link *link,
                             struct link_frame *frame, const char *address) {
    const char *hosts[MAX_HOSTS];
    char from[64];
    if (!link_is_from(link, frame, cluster_party(CLUSTER_CHIEF, 0))) {
        if (link_may_log(link, "a discovery message by another key"))
            log_warning(guard->log, "chief_address_ignored",
                        "a message to join the chief at %.64s is ignored: it "
                        "has not the chief's key",
                        address);
        return;
    }
    if (!guard->cluster) {
        if (!is_named_chief(guard, address) &&
            link_may_log(link, "a discovery message"))
            log_warning(guard->log, "chief_address_ignored",
                        "a message to join the chief at %.64s is ignored: the "
                        "cluster description names this process's chief",
                        address);
        return;
    }
    struct discovery_guard_sender *sender =
        link_peer_host(frame, from, sizeof from) ? free_sender(guard, from)
                                                 : NULL;
    if (!sender)
        return;
    unsigned count = list_other_hosts(guard->cluster, hosts);
    bool listed = !count || link_is_local(frame);
    if (!listed && !(sender->lookup = resolve_match(from, hosts, count)))
        return;
    snprintf(sender->from, sizeof sender->from, "%s", from);
    snprintf(sender->address, sizeof sender->address, "%s", address);
}

static enum resolve_state judge(struct discovery_guard *guard,
                                struct link *link,
                                struct discovery_guard_sender *sender) {
    char text[300];
    enum resolve_state state =
        sender->lookup ? resolve_poll(sender->lookup, text, sizeof text)
                       : RESOLVE_FOUND;
    if (state == RESOLVE_FAILED &&
        link_may_log(link, "an unlisted discovery message"))
        log_warning(guard->log, "chief_address_ignored",
                    "a message from %s to join the chief at %.64s is ignored: "
                    "the cluster description does not list that host; name the "
                    "chief there (chief, --chief_hosts)",
                    sender->from, sender->address);
    return state;
}

bool discovery_guard_step(struct discovery_guard *guard, struct link *link,
                          char *address, size_t size) {
    for (int i = 0; i < DISCOVERY_GUARD_SENDERS; i++) {
        struct discovery_guard_sender *sender = &guard->senders[i];
        enum resolve_state state =
            sender->from[0] ? judge(guard, link, sender) : RESOLVE_WAITING;
        if (state == RESOLVE_WAITING)
            continue;
        resolve_end(&sender->lookup);
        sender->from[0] = 0;
        if (state == RESOLVE_FAILED)
            continue;
        snprintf(address, size, "%s", sender->address);
        return true;
    }
    return false;
}

void discovery_guard_close(struct discovery_guard *guard) {
    for (int i = 0; i < DISCOVERY_GUARD_SENDERS; i++)
        resolve_end(&guard->senders[i].lookup);
}
