/* SPDX-License-Identifier: Apache-2.0 */
/* After a frame has come, a link polls for the next one for a while before it
 * sleeps: a wakeup takes longer than most replies. It does so only with cores
 * to spare (spin_policy.h), as it could otherwise take the other side's core.
 */
#include "core/base/time.h"
#include "core/net/link/link_internal.h"

#include <sched.h>

enum { POLLS_PER_CLOCK = 32 }; /* of the rings, a reading of the clock */
static const int64_t BUSY_POLL = 50 * TIME_US, TCP_BUSY_POLL = 200 * TIME_US;

static bool has_pending(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (links[i]->shm_endpoint &&
            shm_endpoint_pending(links[i]->shm_endpoint))
            return true;
    return false;
}

/* Polls the sockets, then yields the core: libzmq's I/O threads, which deliver
 * the frame, may need it. */
static bool has_pending_tcp(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        int events = 0;
        size_t size = sizeof events;
        if (links[i]->transport == LINK_TCP &&
            !zmq_getsockopt(links[i]->socket, ZMQ_EVENTS, &events, &size) &&
            events & ZMQ_POLLIN)
            return true;
    }
    sched_yield();
    return false;
}

bool link_busy_poll(struct link *const *links, unsigned count) {
    int64_t now = time_now();
    unsigned threads = 1;
    bool received = false, tcp = false;
    for (unsigned i = 0; i < count; i++) {
        received |= links[i]->received;
        tcp |= links[i]->received_tcp;
        links[i]->received = links[i]->received_tcp = false;
        threads += links[i]->shm_endpoint
                       ? shm_endpoint_count(links[i]->shm_endpoint)
                       : 0;
    }
    if ((!received && !tcp) ||
        !spin_policy(&links[0]->spin_policy, threads, now))
        return false;
    int64_t end = now + (tcp ? TCP_BUSY_POLL : BUSY_POLL);
    for (; now < end; now = time_now()) {
        for (int poll = 0; poll < POLLS_PER_CLOCK; poll++) {
            if (has_pending(links, count))
                return true;
            __builtin_ia32_pause();
        }
        if (tcp && has_pending_tcp(links, count))
            return true;
    }
    return false;
}
