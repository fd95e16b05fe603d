/* How much of what waits to leave the kernel is handed at a time. */
#include "proto/wire/link_parts.h"

#include <arpa/inet.h>
#include <limits.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* Seconds; and bytes, for with less than a train of segments TCP stalls. */
static const double AT_A_TIME = 0.25e-3, LEAST = 12 << 10;

void link_pace(struct link *link, double gbits, unsigned connections) {
    if (gbits > 0 && gbits <= LINK_MAX_GBITS && connections)
        link->pace = gbits * 1e9 / 8 / connections;
}

bool link_wants_pace(const struct link *link) {
    return link->kind == LINK_CLIENT && link->pace > 0 && !link->paced;
}

/* The kernel takes twice what it is told, for what it needs itself. The
 * descriptor may meanwhile be another's: then one of ours, which gets its pace
 * a little earlier, or no TCP connection. */
void link_pace_connection(struct link *link, int descriptor) {
    struct tcp_info about = {0};
    socklen_t size = sizeof about;
    if (link->pace <= 0 ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &about, &size))
        return;
    double seconds = fmax(AT_A_TIME, 2e-6 * about.tcpi_min_rtt);
    int bytes = (int)fmin(fmax(link->pace * seconds / 2, LEAST), INT_MAX / 4);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    link->paced = true;
}

/* Its two addresses are then the same but for the port. */
bool link_is_near(struct link_frame *frame) {
    struct sockaddr_in6 own = {0}, other = {0};
    socklen_t size = sizeof own, others = sizeof other;
    int descriptor =
        zmq_msg_get((zmq_msg_t *)frame->header_room.bytes, ZMQ_SRCFD);
    return !getsockname(descriptor, (struct sockaddr *)&own, &size) &&
           !getpeername(descriptor, (struct sockaddr *)&other, &others) &&
           own.sin6_family == AF_INET6 && other.sin6_family == AF_INET6 &&
           !memcmp(&own.sin6_addr, &other.sin6_addr, sizeof own.sin6_addr);
}

/* IPv4 comes to a socket of both families as a part of IPv6. */
bool link_peer_host(struct link_frame *frame, char *text, size_t size) {
    struct sockaddr_in6 other = {0};
    socklen_t length = sizeof other;
    int descriptor =
        zmq_msg_get((zmq_msg_t *)frame->header_room.bytes, ZMQ_SRCFD);
    const unsigned char *bytes = other.sin6_addr.s6_addr;
    text[0] = 0;
    if (getpeername(descriptor, (struct sockaddr *)&other, &length))
        return false;
    if (other.sin6_family == AF_INET)
        return inet_ntop(AF_INET, &((struct sockaddr_in *)&other)->sin_addr,
                         text, (socklen_t)size) != NULL;
    if (other.sin6_family != AF_INET6)
        return false;
    return IN6_IS_ADDR_V4MAPPED(&other.sin6_addr)
               ? inet_ntop(AF_INET, bytes + 12, text, (socklen_t)size) != NULL
               : inet_ntop(AF_INET6, bytes, text, (socklen_t)size) != NULL;
}
