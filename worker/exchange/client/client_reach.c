/* SPDX-License-Identifier: Apache-2.0 */
/* Which ps this trainer reaches. The chief is told with each heartbeat and
 * judges who is at fault, as it knows what the others reach; here a loss is
 * only waited for. A connection counts, not an answer: libzmq's own thread
 * keeps it also for a ps that computes, or writes a snapshot, for long. */
#include "worker/exchange/client/client_internal.h"

static const int64_t FLAP = 6 * TIME_S;

/* A path that loses large packets alone lets connections begin and small
 * requests pass; each connection ends 3 to 5 s after a large one. So a loss is
 * made good only once the ps has answered for a block by the new connection, or
 * that has lasted for as long as a loss may. */
void client_follow_peer(struct client_peer *peer, int64_t since,
                        uint64_t received, int64_t limit, int64_t now) {
    bool answered = received != peer->received;
    peer->received = received;
    if (since) {
        peer->flaps |= peer->lost && peer->back && now - peer->back < FLAP;
        peer->back = 0;
        if (!peer->lost)
            peer->lost = since;
        return;
    }
    if (!peer->back)
        peer->back = now;
    if (answered || now - peer->back >= limit) {
        peer->lost = 0;
        peer->flaps = false;
    }
}

/* A loss does not grow while there is a connection, unless that is one of
 * several that ended soon: the ps may only compute for long. */
int64_t client_peer_lost_for(const struct client_peer *peer, int64_t now) {
    if (!peer->lost)
        return 0;
    return (peer->back && !peer->flaps ? peer->back : now) - peer->lost;
}

/* A standstill of this process moves what the link says by its length. */
void client_follow_connections(struct client *client, int64_t stall,
                               int64_t now) {
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        struct client_peer *peer = &client->peers[p];
        int64_t since = 0;
        deadline_shift(&peer->lost, stall, now);
        deadline_shift(&peer->back, stall, now);
        if (!peer->holds)
            continue;
        link_is_lost(peer->link, &since);
        client_follow_peer(peer, since,
                           window_received_count(client->window, p),
                           client->lost_limit, now);
    }
}

struct deadline client_lost(const struct client *client) {
    const struct client_peer *first = NULL;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        const struct client_peer *peer = &client->peers[p];
        bool out = peer->lost && (!peer->back || peer->flaps);
        if (out && (!first || peer->lost < first->lost))
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
        int64_t time = client_peer_lost_for(&client->peers[p], now);
        if (!time)
            continue;
        Capstan__LostPs *lost = &client->lost[heartbeat->n_lost];
        capstan__lost_ps__init(lost);
        lost->ps = p;
        lost->seconds = time_to_seconds(time);
        client->lost_pointers[heartbeat->n_lost++] = lost;
    }
}
