/* SPDX-License-Identifier: Apache-2.0 */
/* Lines that the calling thread reads and writes itself, each rank to each:
 * connections of Gloo's in its synchronous mode, and between two ranks on one
 * host, once they are connected, shared memory. A message is added to what is
 * there, or lands in its place: where it has, counted from the beginning of the
 * call's data, been sent from. All that fails is thrown as a std::exception. */
#ifndef CAPSTAN_GLOO_LINES_H
#define CAPSTAN_GLOO_LINES_H

extern "C" {
#include "proto/net/shm/buffer.h"
}
#include "worker/collective/gloo_lane.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/tcp/device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/* Bytes of a message, at most. */
static constexpr size_t GLOO_CHUNK = 131072;

enum gloo_goal { GLOO_SUM, GLOO_PLACE, GLOO_GOALS };

struct gloo_lines {
    /* By rank. A connection is known by its listening addresses, so each has
     * its own: Gloo of 2023 has one for each device. */
    std::vector<std::shared_ptr<gloo::transport::Device>> devices;
    std::vector<std::shared_ptr<gloo::transport::Context>> contexts;
    std::vector<int> sockets; /* by rank; duplicates, so that a cut is safe */
    struct ends {
        std::unique_ptr<gloo::transport::Buffer> to[2], from[2];
        size_t largest; /* sent: Gloo sizes the socket's buffer by it */
    };
    std::vector<ends> peers;               /* by rank; each side by gloo_goal */
    std::vector<struct gloo_lane *> lanes; /* by rank; NULL: none */
    std::vector<std::string> troubles;     /* by rank: why it failed; "" */
    bool shares;                           /* this rank is to try */
    std::vector<bool> partners;            /* by rank: data go between us */
    std::vector<char> inbox;               /* what came last to be added */
    char *data;                            /* of the call under way */
    size_t bytes;
    std::vector<struct buffer *> shown; /* borrowed */
    struct buffer *lender; /* that holds the call's data, and lends what is */
    enum gloo_goal lends;  /* sent with this goal; NULL: all is copied */
    /* Messages that may be sent before as many have been received: so many are
     * held by any line, and a circle of ranks is never blocked in sending. */
    size_t window;
};

/* Listens at HOST, for SECONDS and each peer. */
void gloo_lines_listen(struct gloo_lines *lines, const char *host,
                       uint32_t rank, uint32_t size, double seconds);

/* Where PEER reaches this rank. */
std::vector<char> gloo_lines_address(const struct gloo_lines *lines,
                                     uint32_t peer);

/* Connects to PEER at ADDRESS, which it has told. Waits as long as it was told
 * to listen. */
void gloo_lines_connect(struct gloo_lines *lines, uint32_t peer,
                        const std::vector<char> &address);

/* Connected, both sides find out whether they can share memory, which is then
 * their line. One of the two OFFERS it. */
void gloo_lines_share(struct gloo_lines *lines, uint32_t peer, bool offers);

/* With whom memory is shared, and why not with others on this host. */
void gloo_lines_way(const struct gloo_lines *lines, char *text, size_t size);

/* Data will lie in BUFFER, which stays until the lines are closed. */
void gloo_lines_show(struct gloo_lines *lines, struct buffer *buffer);

/* The next messages are of DATA, BYTES long on all ranks. What is sent stays as
 * it is until all have had it, where its goal is LENDS. */
void gloo_lines_begin(struct gloo_lines *lines, void *data, size_t bytes,
                      enum gloo_goal lends);

/* Waits until the system has taken them. */
void gloo_lines_send(struct gloo_lines *lines, uint32_t to, const void *bytes,
                     size_t size, enum gloo_goal goal);

/* Waits for the next message, SIZE bytes for PLACE. */
void gloo_lines_receive(struct gloo_lines *lines, uint32_t from, void *place,
                        size_t size);

/* Waits for the next message, and adds its COUNT floats to SUM. */
void gloo_lines_add(struct gloo_lines *lines, uint32_t from, float *sum,
                    size_t count);

/* From any thread, while open: calls under way and later ones fail. */
void gloo_lines_cut(struct gloo_lines *lines) noexcept;

/* Ends all lines, and what is still under way on them; nobody may be in a call.
 */
void gloo_lines_close(struct gloo_lines *lines) noexcept;

#endif
