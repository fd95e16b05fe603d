#include "chief/crier.h"

#include "proto/base/time.h"
#include "proto/wire/link.h"
#include "proto/wire/message.h"
#include "proto/wire/resolve.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t CALL_EVERY = 2 * TIME_S;

struct call {
    struct link *link;
    struct resolve *resolve;
    bool connected;
};

struct crier {
    void *zmq;
    const struct cluster *cluster;
    const struct roster *roster;
    char address[300];
    struct call *calls; /* a slot each */
    int64_t called;
};

struct crier *crier_open(void *zmq, const struct cluster *cluster,
                         const struct roster *roster, const char *address) {
    struct crier *crier = calloc(1, sizeof *crier);
    if (!crier)
        return NULL;
    *crier = (struct crier){
        .zmq = zmq, .cluster = cluster, .roster = roster, .called = time_now()};
    snprintf(crier->address, sizeof crier->address, "%s", address);
    crier->calls = calloc(roster->count + 1, sizeof *crier->calls);
    if (!crier->calls)
        crier_close(&crier);
    return crier;
}

static void hang_up(struct call *call) {
    resolve_end(&call->resolve);
    link_close(&call->link);
    call->connected = false;
}

void crier_close(struct crier **where) {
    struct crier *crier = *where;
    *where = NULL;
    if (!crier)
        return;
    for (uint32_t i = 0; crier->calls && i < crier->roster->count; i++)
        hang_up(&crier->calls[i]);
    free(crier->calls);
    free(crier);
}

static void call_out(struct crier *crier, struct call *call) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[1024];
    header.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    header.text = crier->address;
    size_t bytes = message_write_data(&header, space);
    link_commit(call->link, 0, space, bytes, NULL);
}

/* Looks the peer up, then connects, then calls: a step each time. */
static void go_on(struct crier *crier, const struct roster_slot *slot,
                  struct call *call) {
    const struct cluster_task *task =
        cluster_find(crier->cluster, slot->role, slot->index);
    struct link_settings settings = {.max_frame = MESSAGE_MAX_HEADER,
                                     .receive_frames = 16};
    struct failure why;
    char text[300];
    if (!task || !task->port)
        return;
    if (call->connected) {
        call_out(crier, call);
        return;
    }
    if (!call->resolve) {
        call->resolve = resolve_start(task->host, task->port);
        return;
    }
    if (resolve_poll(call->resolve, text, sizeof text) == RESOLVE_WAITING)
        return;
    resolve_end(&call->resolve);
    if (!link_open(&call->link, crier->zmq, LINK_CLIENT, &settings, &why) &&
        !link_connect(call->link, text, &why))
        call->connected = true;
    else
        hang_up(call);
}

/* Only those that have not come are called; once they join they know us. */
void crier_step(struct crier *crier, int64_t now) {
    if (!crier->address[0] || now - crier->called < CALL_EVERY)
        return;
    crier->called = now;
    for (uint32_t i = 0; i < crier->roster->count; i++) {
        const struct roster_slot *slot = &crier->roster->slots[i];
        if (slot->state == ROSTER_ABSENT)
            go_on(crier, slot, &crier->calls[i]);
        else
            hang_up(&crier->calls[i]);
    }
}
