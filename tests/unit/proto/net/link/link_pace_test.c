/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "tests/lib/link_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* What the kernel queues for the connections of PORT in this process, their
 * sums by side. */
static void kernel_buffers(uint16_t port, int *server_link, int *client) {
    *server_link = *client = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in6 own = {0}, other = {0};
        socklen_t size = sizeof own, others = sizeof other, length = sizeof fd;
        int bytes = 0;
        if (getsockname(fd, (struct sockaddr *)&own, &size) ||
            getpeername(fd, (struct sockaddr *)&other, &others) ||
            getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length))
            continue;
        if (ntohs(own.sin6_port) == port)
            *server_link += bytes;
        if (ntohs(other.sin6_port) == port)
            *client += bytes;
    }
}

/* A rate so low that the kernel's least is more. */
static void a_known_rate_bounds_the_kernel_queue(void **state) {
    struct link_fixture *fixture = *state;
    const int little = 2 * (12 << 10);
    int server_link, client;
    link_pace(fixture->server_link, 0.001, 2);
    link_pace(fixture->client, -1, 2);
    link_pace(fixture->client, NAN, 2);
    link_pace(fixture->client, INFINITY, 2);
    link_pace(fixture->client, 0.001, 0);
    link_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server_link, &client);
    assert_in_range(server_link, 1, little);
    assert_true(client > little);
    link_pace(fixture->client, 0.001, 2);
    link_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server_link, &client);
    assert_in_range(client, 1, little);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LINK_FIXTURE_TEST(a_known_rate_bounds_the_kernel_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
