/* SPDX-License-Identifier: Apache-2.0 */
/* Lines that the calling thread reads and writes itself, each rank to each:
 * connections of Gloo's in its synchronous mode, and between two ranks on one
 * host, once they are connected, shared memory. A message is added to what is
 * there, or lands in its place: where it has, counted from the beginning of the
 * call's data, been sent from. All that fails is thrown as a std::exception. */
#ifndef CAPSTAN_GLOO_PAIRS_H
#define CAPSTAN_GLOO_PAIRS_H

extern "C" {
#include "proto/net/shm/buffer.h"
}
#include "worker/collective/gloo_shm.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/tcp/device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/* Bytes of a message, at most. */
static constexpr size_t GLOO_CHUNK = 131072;

enum gloo_operation { GLOO_SUM, GLOO_COPY, GLOO_OPERATIONS };

struct gloo_pairs {
    /* By rank. A connection is known by its listening addresses, so each has
     * its own: Gloo of 2023 has one for each device. */
    std::vector<std::shared_ptr<gloo::transport::Device>> devices;
    std::vector<std::shared_ptr<gloo::transport::Context>> contexts;
    std::vector<int> sockets; /* by rank; duplicates, so that a cut is safe */
    struct pair_buffers {
        std::unique_ptr<gloo::transport::Buffer> to[2], from[2];
        size_t largest; /* sent: Gloo sizes the socket's buffer by it */
    };
    std::vector<pair_buffers> peers; /* by rank; each side by gloo_operation */
    std::vector<struct gloo_shm *> shm; /* by rank; NULL: none */
    std::vector<std::string> errors;    /* by rank: why it failed; "" */
    bool use_shm;                       /* this rank is to try */
    std::vector<bool> partners;         /* by rank: data go between us */
    std::vector<char> receive_buffer;   /* what came last to be added */
    char *data;                         /* of the call under way */
    size_t bytes;
    std::vector<struct buffer *> registered; /* borrowed */
    struct buffer
        *shared_buffer; /* that holds the call's data, and lends what is */
    enum gloo_operation
        shared_operation; /* sent with this goal; NULL: all is copied */
    /* Messages that may be sent before as many have been received: so many are
     * held by any line, and a circle of ranks is never blocked in sending. */
    size_t window;
};

/* Listens at HOST, for SECONDS and each peer. */
void gloo_pairs_listen(struct gloo_pairs *pairs, const char *host,
                       uint32_t rank, uint32_t size, double seconds);

/* Where PEER reaches this rank. */
std::vector<char> gloo_pairs_address(const struct gloo_pairs *pairs,
                                     uint32_t peer);

/* Connects to PEER at ADDRESS, which it has told. Waits as long as it was told
 * to listen. */
void gloo_pairs_connect(struct gloo_pairs *pairs, uint32_t peer,
                        const std::vector<char> &address);

/* Connected, both sides find out whether they can share memory, which is then
 * their line. One of the two OFFERS it. */
void gloo_pairs_open_shm(struct gloo_pairs *pairs, uint32_t peer,
                         bool is_server);

/* With whom memory is shared, and why not with others on this host. */
void gloo_pairs_transport(const struct gloo_pairs *pairs, char *text,
                          size_t size);

/* Data will lie in BUFFER, which stays until the lines are closed. */
void gloo_pairs_register(struct gloo_pairs *pairs, struct buffer *buffer);

/* The next messages are of DATA, BYTES long on all ranks. What is sent stays as
 * it is until all have had it, where its goal is LENDS. */
void gloo_pairs_begin(struct gloo_pairs *pairs, void *data, size_t bytes,
                      enum gloo_operation shared_operation);

/* Waits until the system has taken them. */
void gloo_pairs_send(struct gloo_pairs *pairs, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation);

/* Waits for the next message, SIZE bytes for PLACE. */
void gloo_pairs_receive(struct gloo_pairs *pairs, uint32_t from, void *place,
                        size_t size);

/* Waits for the next message, and adds its COUNT floats to SUM. */
void gloo_pairs_add(struct gloo_pairs *pairs, uint32_t from, float *sum,
                    size_t count);

/* From any thread, while open: calls under way and later ones fail. */
void gloo_pairs_shutdown(struct gloo_pairs *pairs) noexcept;

/* Ends all lines, and what is still under way on them; nobody may be in a call.
 */
void gloo_pairs_close(struct gloo_pairs *pairs) noexcept;

#endif
