/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/net/link/link.h"

#include "core/base/time.h"
#include "core/net/shm/shm_segment.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(nothing_is_sent_without_a_connection) {
    struct link_payload payload;
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    assert_true(link_reserve(fixture->client, 0, &payload, 100));
    assert_false(link_commit(fixture->client, 0, "x", 1, &payload));
    assert_false(link_commit(fixture->server_link, 12345, "x", 1, NULL));
}

LINK_FIXTURE_SHM(nothing_is_sent_without_a_connection);

TEST(a_borrowed_buffer_is_held_until_it_is_sent) {
    uint32_t peer = link_fixture_connect(fixture);
    struct buffer *buffer = buffer_open(4000, NULL, NULL);
    struct link_payload payload;
    struct link_frame frame;
    memset(buffer_data(buffer), 7, 4000);
    link_borrow(&payload, buffer, 1000, 2000);
    assert_false(buffer_is_unique(buffer));
    link_drop(&payload);
    assert_true(buffer_is_unique(buffer));
    link_borrow(&payload, buffer, 1000, 2000);
    assert_true(link_commit(fixture->server_link, peer, "w", 1, &payload));
    link_fixture_receive(fixture->client, &frame);
    assert_int_equal(frame.payload.size, 2000);
    assert_int_equal(*(char *)frame.payload.data, 7);
    link_release(&frame);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!buffer_is_unique(buffer) && time_now() < deadline)
        zmq_poll(NULL, 0, 1);
    assert_true(buffer_is_unique(buffer));
    link_borrow(&payload, buffer, 0, 4000);
    assert_false(link_commit(fixture->server_link, peer + 1, "w", 1, &payload));
    assert_true(buffer_is_unique(buffer));
    buffer_release(&buffer);
}

LINK_FIXTURE_SHM(a_borrowed_buffer_is_held_until_it_is_sent);

static void a_borrowed_slice_of_shared_memory_is_not_copied(void **state) {
    struct link_fixture *fixture = *state;
    struct shm_segment *segment =
        shm_segment_open(1 << 20, SHM_SEGMENT_OWNER_WRITES);
    struct buffer *buffer = buffer_open_in(segment, 4096, 4000, NULL, NULL);
    struct buffer *plain = buffer_open(8, NULL, NULL);
    struct link_payload payload;
    struct link_frame frame;
    uint32_t peer = link_fixture_connect(fixture);
    assert_true(link_can_share(fixture->server_link, peer, buffer));
    assert_false(link_can_share(fixture->server_link, peer, plain));
    assert_false(link_can_share(fixture->server_link, peer + 256, buffer));
    link_borrow(&payload, buffer, 1000, 2000);
    assert_true(link_commit(fixture->server_link, peer, "w", 1, &payload));
    link_fixture_receive(fixture->client, &frame);
    assert_false(buffer_is_unique(buffer));
    *((char *)buffer_data(buffer) + 1999) = 9;
    assert_int_equal(((const char *)frame.payload.data)[999], 9);
    link_release(&frame);
    link_fixture_expect_nothing(fixture->server_link);
    assert_true(buffer_is_unique(buffer));
    buffer_release(&buffer);
    buffer_release(&plain);
    shm_segment_release(&segment);
}

LINK_FIXTURE_SHM(a_borrowed_slice_of_shared_memory_is_not_copied);

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
TEST(a_known_rate_bounds_the_kernel_queue) {
    const int little = 2 * (12 << 10);
    int server_link, client;
    link_limit_rate(fixture->server_link, 0.001, 2);
    link_limit_rate(fixture->client, -1, 2);
    link_limit_rate(fixture->client, NAN, 2);
    link_limit_rate(fixture->client, INFINITY, 2);
    link_limit_rate(fixture->client, 0.001, 0);
    link_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server_link, &client);
    assert_in_range(server_link, 1, little);
    assert_true(client > little);
    link_limit_rate(fixture->client, 0.001, 2);
    link_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server_link, &client);
    assert_in_range(client, 1, little);
}
