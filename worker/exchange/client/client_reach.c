/* SPDX-License-Identifier: Apache-2.0 */
/* Which ps this trainer reaches. The chief is told with each heartbeat and
 * judges who is at fault, as it knows what the others reach; here a loss is
 * only waited for. A connection counts, not an answer: libzmq's own thread
 * keeps it also for a ps that computes, or writes a snapshot, for long. */
#include "worker/exchange/client/client_internal.h"

/* A standstill of this process moves what the link says by its length. */
static void follow_ps(struct client_peer *peer) {
    int64_t since;
    if (!link_is_lost(peer->link, &since))
        peer->lost = 0;
    else if (!peer->lost)
        peer->lost = since;
}

void client_follow_connections(struct client *client, int64_t stall,
                               int64_t now) {
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        struct client_peer *peer = &client->peers[p];
        deadline_shift(&peer->lost, stall, now);
        if (peer->holds)
            follow_ps(peer);
    }
}

struct deadline client_lost(const struct client *client) {
    const struct client_peer *first = NULL;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        const struct client_peer *peer = &client->peers[p];
        if (peer->lost && (!first || peer->lost < first->lost))
            first = peer;
    }
    if (!first)
        return (struct deadline){.until = TIME_NEVER};
    return deadline_start(first->name, "timeouts.peer", first->lost,
                          client->lost_limit);
}

void client_report_lost(const struct client *client, int64_t now,
                        Capstan__Heartbeat *heartbeat) {
    heartbeat->lost = client->lost_pointers;
    heartbeat->n_lost = 0;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        int64_t since = client->peers[p].lost;
        if (!since)
            continue;
        Capstan__LostPs *lost = &client->lost[heartbeat->n_lost];
        capstan__lost_ps__init(lost);
        lost->ps = p;
        lost->seconds = time_to_seconds(now - since);
        client->lost_pointers[heartbeat->n_lost++] = lost;
    }
}
