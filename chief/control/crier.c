/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/crier.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 8 }; /* at once, so that they take few descriptors */
static const int64_t STEP_EVERY = TIME_S / 4, GIVE_UP = 2 * TIME_S;

/* To one absent peer: looked up, connected, called, hung up. */
struct call {
    const struct roster_slot *slot; /* NULL: none is under way */
    struct link *link;
    struct resolve *resolve;
    int64_t connecting; /* since when */
};

struct crier {
    void *zmq;
    const struct cluster *cluster;
    const struct roster *roster;
    char address[300];
    struct call calls[CALLS];
    uint32_t next; /* slot to be called after those */
    int64_t stepped;
};

struct crier *crier_open(void *zmq, const struct cluster *cluster,
                         const struct roster *roster, const char *address) {
    struct crier *crier = calloc(1, sizeof *crier);
    if (!crier)
        return NULL;
    *crier = (struct crier){.zmq = zmq,
                            .cluster = cluster,
                            .roster = roster,
                            .stepped = time_now()};
    snprintf(crier->address, sizeof crier->address, "%s", address);
    return crier;
}

static void hang_up(struct call *call) {
    resolve_end(&call->resolve);
    link_close(&call->link);
    *call = (struct call){0};
}

void crier_close(struct crier **where) {
    struct crier *crier = *where;
    *where = NULL;
    if (!crier)
        return;
    for (int i = 0; i < CALLS; i++)
        hang_up(&crier->calls[i]);
    free(crier);
}

static bool call_out(struct crier *crier, struct call *call) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[1024];
    header.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    header.text = crier->address;
    size_t bytes = message_write_data(&header, space);
    return link_commit(call->link, 0, space, bytes, NULL);
}

/* To where the name was found. */
static bool connect_to(struct crier *crier, struct call *call,
                       const char *address) {
    struct link_settings settings = {.max_frame = MESSAGE_MAX_HEADER,
                                     .receive_frames = 16,
                                     .linger_ms = 1000};
    struct failure why;
    return !link_open(&call->link, crier->zmq, LINK_CLIENT, &settings, &why) &&
           !link_connect(call->link, address, &why);
}

/* A step each time; false: it is over, whatever came of it. */
static bool go_on(struct crier *crier, struct call *call, int64_t now) {
    const struct cluster_task *task =
        cluster_find(crier->cluster, call->slot->role, call->slot->index);
    char text[300];
    if (call->slot->state != ROSTER_ABSENT || !task || !task->port)
        return false;
    if (call->link)
        return now - call->connecting < GIVE_UP && !call_out(crier, call);
    if (!call->resolve)
        return (call->resolve = resolve_start(task->host, task->port)) != NULL;
    enum resolve_state state = resolve_poll(call->resolve, text, sizeof text);
    call->connecting = now;
    return state == RESOLVE_WAITING ||
           (state == RESOLVE_FOUND && connect_to(crier, call, text));
}

/* The next absent one, ps before trainers, who may ask them. */
static const struct roster_slot *next_absent(struct crier *crier) {
    const struct roster *roster = crier->roster;
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct roster_slot *slot =
            &roster->slots[roster->count - 1 - crier->next++ % roster->count];
        bool called = false;
        for (int c = 0; c < CALLS; c++)
            called |= crier->calls[c].slot == slot;
        if (slot->state == ROSTER_ABSENT && !called)
            return slot;
    }
    return NULL;
}

/* Only those that have not come are called; once they join they know us. */
void crier_step(struct crier *crier, int64_t now) {
    if (!crier->address[0] || now - crier->stepped < STEP_EVERY)
        return;
    crier->stepped = now;
    for (int i = 0; i < CALLS; i++) {
        struct call *call = &crier->calls[i];
        if (call->slot && !go_on(crier, call, now))
            hang_up(call);
        if (!call->slot)
            *call = (struct call){.slot = next_absent(crier)};
    }
}
