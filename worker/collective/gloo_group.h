/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are connected by Gloo's TCP transport, each to each, and twice:
 * data go by lines that the calling thread reads and writes itself, last words
 * by connections that Gloo's thread listens to. One thread calls, any may
 * abort. Whatever goes wrong comes out of the calls below as a std::exception;
 * gloo_group_failed tells it in words, after it has found out which rank is at
 * fault: who fails tells all others which rank it was waiting for, then cuts
 * its lines, and whoever is blamed and says nothing is the one. So all ranks
 * end soon, and name the same one. */
#ifndef CAPSTAN_GLOO_GROUP_H
#define CAPSTAN_GLOO_GROUP_H

extern "C" {
#include "proto/base/status.h"
}
#include "worker/collective/collective.h"
#include "worker/collective/gloo_pairs.h"

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/* The last that a rank says: whom it was waiting for, where it fails. */
struct gloo_verdict {
    uint32_t received;     /* 0: nothing came yet */
    uint32_t blamed;       /* a rank, or GLOO_NO_RANK */
    uint32_t disconnected; /* its connections broke, all of them */
    uint32_t timed_out; /* it did not come in time; else its line has ended */
};
enum : uint32_t { GLOO_NO_RANK = UINT32_MAX };

struct gloo_group {
    using clock = std::chrono::steady_clock;

    uint32_t rank, size;
    double timeout,
        connect_timeout; /* seconds a call, and a connection, may take */

    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::transport::Context> context;
    struct gloo_pairs pairs;
    /* Each covers all memory: offsets are addresses. A lost connection fails
     * the waits on all buffers it is to fill: so each sender has one. */
    std::unique_ptr<gloo::transport::UnboundBuffer> probe;
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>
        verdict_buffers;
    std::vector<gloo_verdict> verdicts; /* by rank */
    gloo_verdict own_verdict;

    uint32_t waiting_for; /* whom the present wait is for */
    bool failed;
    bool thread_stuck; /* a thread waits in Gloo for ever, and uses all of this
                        */

    /* Cuts the lines at `deadline`; rests at most `timeout`. */
    std::thread watchdog;
    std::mutex mutex;
    std::condition_variable closing;
    bool closed;
    std::atomic<int64_t> deadline; /* of the call under way, by time_now */
    std::atomic<bool> timed_out;   /* the watchdog has cut them */
    std::atomic<bool> aborted;
};

/* Meets all ranks. PARTNERS by rank: whether data go between it and this one;
 * both say the same. Throws; STATUS_RETRY in WHY when the store fails. */
enum status gloo_group_open(struct gloo_group *group,
                            const struct collective_settings *settings,
                            const std::vector<bool> &partners,
                            struct failure *why);

/* Says goodbye where nothing has failed, and disconnects. False: something of
 * it is still in use and must not be freed. */
bool gloo_group_close(struct gloo_group *group) noexcept;

/* From any thread, while open: calls under way and later ones throw. */
void gloo_group_abort(struct gloo_group *group) noexcept;

/* As gloo_pairs_begin; the messages may together take `timeout` seconds. */
void gloo_group_begin(struct gloo_group *group, void *data, size_t bytes,
                      enum gloo_operation shared_operation);

/* No message is under way. */
void gloo_group_end(struct gloo_group *group);

/* Messages between two ranks arrive in the order of these calls, which have to
 * be the same on both sides (gloo_pairs.h). */
void gloo_group_send(struct gloo_group *group, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation);
void gloo_group_receive(struct gloo_group *group, uint32_t from,
                        void *destination, size_t size);
void gloo_group_add(struct gloo_group *group, uint32_t from, float *sum,
                    size_t count);

/* To be called while handling an exception of the above. Fills WHY. */
enum status gloo_group_failed(struct gloo_group *group,
                              struct failure *why) noexcept;

#endif
