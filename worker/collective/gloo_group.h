/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks connected each to each (gloo_connect.h): data travel between those that
 * exchange any (gloo_pairs.h), verdicts between all. One thread calls, any may
 * abort. All errors leave the calls below as a std::exception;
 * gloo_group_failed turns it into text after it has determined the rank at
 * fault: a rank that fails sends all others a verdict naming the rank that it
 * was waiting for, then shuts its connections down; a blamed rank that sends no
 * verdict is at fault. So all ranks end soon and name the same one. */
#ifndef CAPSTAN_GLOO_GROUP_H
#define CAPSTAN_GLOO_GROUP_H

extern "C" {
#include "core/base/status.h"
}
#include "worker/collective/collective.h"
#include "worker/collective/gloo_pairs.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/* A rank's last message: the rank that it was waiting for when it failed. */
struct gloo_verdict {
    uint32_t blamed;       /* a rank, or GLOO_NO_RANK */
    uint32_t disconnected; /* all its connections are lost */
    uint32_t timed_out;    /* it timed out; else its connection ended */
    uint32_t cut_off;      /* `witness` and `blamed` do not reach each other */
    uint32_t witness;
};
enum : uint32_t { GLOO_NO_RANK = UINT32_MAX };

struct gloo_group {
    using clock = std::chrono::steady_clock;

    uint32_t rank, size;
    double timeout; /* time limit of a call in seconds */
    double silence; /* as in collective_settings */

    struct gloo_connect connect;
    struct gloo_pairs pairs;
    std::vector<gloo_verdict> verdicts; /* by rank */
    std::vector<size_t> received;       /* by rank: bytes of its verdict */
    std::vector<bool> ended;            /* by rank: its connection is lost */
    gloo_verdict own_verdict;

    uint32_t waiting_for; /* the rank that the current wait is for */
    bool failed;

    /* Shuts the connections down at `deadline`, and when the network between
     * this rank and another has been cut for `silence`. */
    std::thread watchdog;
    std::mutex mutex;
    std::condition_variable closing;
    bool closed;
    std::atomic<int64_t>
        deadline;                /* of the current call, on time_now's clock */
    std::atomic<bool> timed_out; /* the watchdog has shut them down */
    std::atomic<uint32_t> cut_off; /* it has, as this rank is out of reach */
    std::atomic<bool> aborted;
};

/* Connects all ranks. PARTNERS by rank: true if data travel between it and this
 * one; both sides agree. Throws; STATUS_RETRY in WHY if the store fails. */
enum status gloo_group_open(struct gloo_group *group,
                            const struct collective_settings *settings,
                            const std::vector<bool> &partners,
                            struct failure *why);

/* Says goodbye unless something has failed, and disconnects. */
void gloo_group_close(struct gloo_group *group) noexcept;

/* From any thread, while open: current and later calls throw. */
void gloo_group_abort(struct gloo_group *group) noexcept;

/* As gloo_pairs_begin; all messages together may take `timeout` seconds. */
void gloo_group_begin(struct gloo_group *group, void *data, size_t bytes,
                      enum gloo_operation shared_operation);

/* Call when no message is in flight. */
void gloo_group_end(struct gloo_group *group);

/* Messages between two ranks arrive in the order of these calls, which must be
 * equal on both sides (gloo_pairs.h). */
void gloo_group_send(struct gloo_group *group, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation);
void gloo_group_receive(struct gloo_group *group, uint32_t from,
                        void *destination, size_t size);
void gloo_group_add(struct gloo_group *group, uint32_t from, float *sum,
                    size_t count);

/* Call while handling an exception of the functions above. Fills WHY. */
enum status gloo_group_failed(struct gloo_group *group,
                              struct failure *why) noexcept;

#endif
