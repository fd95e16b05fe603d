/* SPDX-License-Identifier: Apache-2.0 */
/* Limits how much unsent data the kernel gets at a time. */
#include "proto/net/link/link_internal.h"

#include <limits.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* Seconds; and bytes: TCP stalls with less than a train of segments. */
static const double BURST_SECONDS = 0.25e-3, MIN_BURST_BYTES = 12 << 10;

void link_pace(struct link *link, double gbits, unsigned connections) {
    if (gbits > 0 && gbits <= LINK_MAX_GBITS && connections)
        link->pace = gbits * 1e9 / 8 / connections;
}

bool link_needs_pacing(const struct link *link) {
    return link->kind == LINK_CLIENT && link->pace > 0 && !link->paced;
}

/* The kernel doubles SO_SNDBUF for its own overhead (socket(7)), hence / 2. If
 * the descriptor has been reused meanwhile, it is another connection of this
 * process, which gets its pace a little earlier, or not TCP. */
void link_pace_connection(struct link *link, int descriptor) {
    struct tcp_info about = {0};
    socklen_t size = sizeof about;
    if (link->pace <= 0 ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &about, &size))
        return;
    double seconds = fmax(BURST_SECONDS, 2e-6 * about.tcpi_min_rtt);
    int bytes =
        (int)fmin(fmax(link->pace * seconds / 2, MIN_BURST_BYTES), INT_MAX / 4);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    link->paced = true;
}
