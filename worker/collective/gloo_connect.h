/* SPDX-License-Identifier: Apache-2.0 */
/* The connections between ranks, each proved before anything else is read from
 * it. A rank listens at one port while ranks connect. The higher rank of two
 * connects to the lower:
 *
 *   it sends    what it is (struct gloo_hello), with a challenge,
 *   receives    a challenge,
 *   sends       its proof (core/base/proof.h),
 *   and receives that of the other side.
 *
 * A proof is an HMAC over both challenges and a name: the kind of connection,
 * its direction, both ranks, the addresses at which both listen, and a number
 * that each draws for this group and publishes in the rendezvous, so that a
 * proof means nothing in another group or run. Without a secret the key is
 * zero, and those numbers keep out who has not read the rendezvous.
 *
 * All failures are thrown as a std::exception. */
#ifndef CAPSTAN_GLOO_CONNECT_H
#define CAPSTAN_GLOO_CONNECT_H

extern "C" {
#include "core/base/proof.h"
}
#include "worker/collective/collective.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

enum gloo_kind : uint32_t { GLOO_DATA, GLOO_VERDICTS, GLOO_KINDS };

/* What a rank publishes. */
struct gloo_place {
    struct sockaddr_storage address;
    unsigned char number[PROOF_BYTES]; /* drawn for this group */
};

struct gloo_connect {
    struct collective_settings settings;
    std::vector<struct gloo_place> places; /* by rank */
    std::vector<int> sockets[GLOO_KINDS];  /* by rank, non-blocking; -1: none */
    std::vector<bool> partners; /* by rank: there is a connection for data */
    int64_t time;               /* for each wait, in ns */
    int listener;               /* -1: not open */
    uint32_t *waiting_for;      /* the rank that a failure is blamed on */
};

/* A socket, closed unless it is taken. */
class owned_socket {
  public:
    explicit owned_socket(int opened) : fd(opened) {
    }
    owned_socket(const owned_socket &) = delete;
    owned_socket &operator=(const owned_socket &) = delete;
    ~owned_socket() {
        if (fd != -1)
            close(fd);
    }
    int take() {
        int taken = fd;
        fd = -1;
        return taken;
    }
    int fd;
};

/* Listens at HOST. CONNECT has its settings, partners, time and waiting_for. */
void gloo_connect_listen(struct gloo_connect *connect, const char *host);

/* Connects to all ranks, whose places are known, and stops listening. */
void gloo_connect_all(struct gloo_connect *connect);

/* Exchanges bytes over SOCKET within CONNECT's time. */
void gloo_connect_write(const struct gloo_connect *connect, int socket,
                        const void *bytes, size_t size);
void gloo_connect_read(const struct gloo_connect *connect, int socket,
                       void *bytes, size_t size);

/* "10.0.0.7:4242" */
std::string gloo_connect_text(const struct sockaddr_storage *address);

/* Closes all connections. */
void gloo_connect_close(struct gloo_connect *connect) noexcept;

#endif
