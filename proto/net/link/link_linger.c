/* SPDX-License-Identifier: Apache-2.0 */
/* Who has just heard something looks for the next frame a while before it
 * sleeps: waking takes longer than most answers do. Only while there are cores
 * to spare (spare_core.h), as it is the other side's that it would take. */
#include "proto/base/time.h"
#include "proto/net/link/link_parts.h"

#include <sched.h>

enum { LOOKS = 32 }; /* at the rings before one at the clock */
static const int64_t LINGER = 50 * TIME_US, TCP_LINGER = 200 * TIME_US;

static bool has_waiting(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (links[i]->lanes && lanes_waiting(links[i]->lanes))
            return true;
    return false;
}

/* Looks at the sockets, and lets whoever can run take this core: the threads
 * that bring the frame are among them. */
static bool has_waiting_tcp(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        int events = 0;
        size_t size = sizeof events;
        if (links[i]->way == LINK_BY_TCP &&
            !zmq_getsockopt(links[i]->socket, ZMQ_EVENTS, &events, &size) &&
            events & ZMQ_POLLIN)
            return true;
    }
    sched_yield();
    return false;
}

bool link_linger(struct link *const *links, unsigned count) {
    int64_t now = time_now();
    unsigned threads = 1;
    bool heard = false, tcp = false;
    for (unsigned i = 0; i < count; i++) {
        heard |= links[i]->heard;
        tcp |= links[i]->heard_tcp;
        links[i]->heard = links[i]->heard_tcp = false;
        threads += links[i]->lanes ? lanes_count(links[i]->lanes) : 0;
    }
    if ((!heard && !tcp) || !spare_core(&links[0]->core, threads, now))
        return false;
    int64_t end = now + (tcp ? TCP_LINGER : LINGER);
    for (; now < end; now = time_now()) {
        for (int look = 0; look < LOOKS; look++) {
            if (has_waiting(links, count))
                return true;
            __builtin_ia32_pause();
        }
        if (tcp && has_waiting_tcp(links, count))
            return true;
    }
    return false;
}
