/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/port.h"

#include "tests/lib/test.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum { PORTS = 64 };

TEST(held_ports_differ) {
    uint16_t ports[PORTS];
    int holders[PORTS];
    for (unsigned i = 0; i < PORTS; i++) {
        assert_ok(port_reserve(&ports[i], &holders[i], &failure));
        assert_true(ports[i] > 0);
        for (unsigned j = 0; j < i; j++)
            assert_int_not_equal(ports[i], ports[j]);
    }
    for (unsigned i = 0; i < PORTS; i++)
        close(holders[i]);
}

TEST(a_held_port_is_refused_to_other_processes) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    uint16_t port;
    int port_socket, other_socket = socket(AF_INET, SOCK_STREAM, 0);
    assert_ok(port_reserve(&port, &port_socket, &failure));
    address.sin_port = htons(port);
    assert_int_equal(
        bind(other_socket, (struct sockaddr *)&address, sizeof address), -1);
    assert_int_equal(errno, EADDRINUSE);
    close(port_socket);
    assert_int_equal(
        bind(other_socket, (struct sockaddr *)&address, sizeof address), 0);
    close(other_socket);
}

/* Binds a libzmq socket to a held port, then another in its place. */
static void bind_twice(const char *host, int ipv6) {
    uint16_t port;
    int port_socket;
    assert_ok(port_reserve(&port, &port_socket, &failure));
    const char *endpoint = textf("tcp://%s:%d", host, port);
    for (unsigned life = 0; life < 2; life++) {
        void *context = zmq_ctx_new();
        void *router = zmq_socket(context, ZMQ_ROUTER);
        zmq_setsockopt(router, ZMQ_IPV6, &ipv6, sizeof ipv6);
        assert_int_equal(zmq_bind(router, endpoint), 0);
        zmq_close(router);
        zmq_ctx_term(context);
    }
    close(port_socket);
}

TEST(libzmq_binds_a_held_port_again_and_again) {
    bind_twice("*", 0);
    bind_twice("*", 1);
    bind_twice("127.0.0.1", 0);
}
