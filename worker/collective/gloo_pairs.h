/* SPDX-License-Identifier: Apache-2.0 */
/* Connections between two ranks that the calling thread reads and writes
 * itself: Gloo's in its synchronous mode, over sockets that have proved
 * themselves (gloo_connect.h), or between two ranks on one host shared memory.
 * A received message is added to the
 * data or replaces it, at the offset from the beginning of the call's data at
 * which it was sent. All errors are thrown as a std::exception. */
#ifndef CAPSTAN_GLOO_PAIRS_H
#define CAPSTAN_GLOO_PAIRS_H

extern "C" {
#include "core/net/shm/buffer.h"
}
#include "worker/collective/gloo_connect.h"
#include "worker/collective/gloo_shm.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/tcp/device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/* Maximum bytes per message. */
static constexpr size_t GLOO_CHUNK = 131072;

enum gloo_operation { GLOO_SUM, GLOO_COPY, GLOO_OPERATIONS };

struct gloo_pairs {
    const struct gloo_connect *connect; /* borrowed; has the sockets */
    /* Gloo listens at an address of this host alone, drawn at random, that
     * nobody calls. NULL: all data are in shared memory. */
    std::shared_ptr<gloo::transport::Device> device;
    /* By rank, each with one pair: it can be dropped alone. NULL: none. */
    std::vector<std::shared_ptr<gloo::transport::Context>> contexts;
    std::string unfiltered; /* why the kernel does not filter Gloo's ports, in a
                               run without a secret; "" */
    std::vector<std::string> names; /* by rank: as Gloo's texts name it */
    /* By rank: for how long what was sent has been unacknowledged, in ns. */
    std::vector<int64_t> unanswered;
    struct pair_buffers {
        std::unique_ptr<gloo::transport::Buffer> to[2], from[2];
        size_t largest; /* bytes sent; Gloo sizes the socket's buffer by it */
    };
    /* By rank; per side, indexed by gloo_operation. */
    std::vector<pair_buffers> peers;
    std::vector<struct gloo_shm *> shm; /* by rank; NULL: none */
    std::vector<std::string> errors; /* by rank: why shared memory failed; "" */
    bool use_shm;                    /* this rank may use shared memory */
    std::vector<char> receive_buffer; /* the last message to be added */
    char *data;                       /* of the current call */
    size_t bytes;
    std::vector<struct buffer *> registered; /* borrowed */
    struct buffer *shared_buffer; /* the registered buffer that holds the call's
                                     data; messages of */
    enum gloo_operation shared_operation; /* this operation are sent in place;
                                             NULL: all are copied */
    /* Messages that may be sent ahead of those received: every connection holds
     * as many, so that a ring of ranks never blocks in sending. */
    size_t window;
};

/* For the ranks of CONNECT, which are connected. */
void gloo_pairs_open(struct gloo_pairs *pairs,
                     const struct gloo_connect *connect, bool use_shm);

/* Makes the socket of PEER a pair. Both sides determine first whether they can
 * share memory, which then carries the data; the socket stays idle. */
void gloo_pairs_connect(struct gloo_pairs *pairs, uint32_t peer);

/* TEXT of Gloo's, in which each rank has the address where it listened. */
std::string gloo_pairs_plain(const struct gloo_pairs *pairs, std::string text);

/* The next messages belong to DATA, BYTES long on all ranks. Data sent with
 * SHARED_OPERATION stay unchanged until every receiver has read them. */
void gloo_pairs_begin(struct gloo_pairs *pairs, void *data, size_t bytes,
                      enum gloo_operation shared_operation);

/* Waits until the kernel has taken the bytes. */
void gloo_pairs_send(struct gloo_pairs *pairs, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation);

/* Waits for the next message, SIZE bytes for PLACE. */
void gloo_pairs_receive(struct gloo_pairs *pairs, uint32_t from, void *place,
                        size_t size);

/* Waits for the next message and adds its COUNT floats to SUM. */
void gloo_pairs_add(struct gloo_pairs *pairs, uint32_t from, float *sum,
                    size_t count);

/* Has the kernels of all partners acknowledge each second that a connection
 * stands, also an idle one; for gloo_pairs_find_silent with LIMIT seconds. */
void gloo_pairs_keep_alive(struct gloo_pairs *pairs, double limit);

/* From one thread: the rank whose kernel has acknowledged nothing for more than
 * LIMIT ns, by repeated calls of which the last was ELAPSED ns ago; -1: none.
 */
int64_t gloo_pairs_find_silent(struct gloo_pairs *pairs, int64_t elapsed,
                               int64_t limit);

/* From any thread, while open: current and later calls fail. */
void gloo_pairs_shutdown(struct gloo_pairs *pairs) noexcept;

/* Drops messages in flight; no thread may be in a call. */
void gloo_pairs_close(struct gloo_pairs *pairs) noexcept;

#endif
