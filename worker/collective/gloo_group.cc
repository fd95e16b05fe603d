/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_group.h"

extern "C" {
#include "core/base/time.h"
}
#include "worker/collective/gloo_address.h"
#include "worker/collective/gloo_consensus.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

/* Seconds within which a rank that has published its address must answer
 * there. */
static constexpr double CONNECT_SECONDS = 10;
static const int64_t LOOK_INTERVAL = TIME_S / 4; /* at connections that may be
                                                    cut */
/* A wait ended without its result. */
struct wait_ended : std::exception {
    const char *what() const noexcept override {
        return "the wait was ended";
    }
};

/* Shuts the connections down if one of them has been cut. Of the time since the
 * last look this thread, or the machine, may have stood still. */
static void check_cut(struct gloo_group *group, int64_t elapsed) {
    int64_t limit = time_from_seconds(group->silence);
    int64_t silent = gloo_pairs_find_silent(
        &group->pairs, std::min(elapsed, 2 * LOOK_INTERVAL), limit);
    if (silent < 0)
        return;
    group->cut_off.store((uint32_t)silent);
    gloo_pairs_shutdown(&group->pairs);
}

static void gloo_group_watch(struct gloo_group *group) {
    int64_t longest = time_from_seconds(group->timeout);
    int64_t looked_at = time_now();
    if (group->silence > 0)
        longest = std::min(longest, LOOK_INTERVAL);
    std::unique_lock<std::mutex> lock(group->mutex);
    while (!group->closed) {
        int64_t now = time_now(), deadline = group->deadline.load();
        if (group->silence > 0 && group->cut_off.load() == GLOO_NO_RANK &&
            now - looked_at >= LOOK_INTERVAL) {
            check_cut(group, now - looked_at);
            looked_at = now;
        }
        if (deadline <= now) {
            if (group->deadline.compare_exchange_strong(deadline, TIME_NEVER)) {
                group->timed_out.store(true);
                gloo_pairs_shutdown(&group->pairs);
            }
            continue;
        }
        int64_t rest = std::min(longest, deadline - now);
        group->closing.wait_for(lock, nanoseconds(rest));
    }
}

void gloo_group_begin(struct gloo_group *group, void *data, size_t bytes,
                      enum gloo_operation shared_operation) {
    if (group->aborted.load() || group->failed)
        throw wait_ended();
    group->waiting_for = GLOO_NO_RANK;
    gloo_pairs_begin(&group->pairs, data, bytes, shared_operation);
    group->deadline.store(time_now() + time_from_seconds(group->timeout));
}

void gloo_group_send(struct gloo_group *group, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation) {
    group->waiting_for = to;
    gloo_pairs_send(&group->pairs, to, bytes, size, operation);
}

void gloo_group_receive(struct gloo_group *group, uint32_t from,
                        void *destination, size_t size) {
    group->waiting_for = from;
    gloo_pairs_receive(&group->pairs, from, destination, size);
}

void gloo_group_add(struct gloo_group *group, uint32_t from, float *sum,
                    size_t count) {
    group->waiting_for = from;
    gloo_pairs_add(&group->pairs, from, sum, count);
}

/* If the shutdown comes at the last moment, the next call fails. */
void gloo_group_end(struct gloo_group *group) {
    group->deadline.store(TIME_NEVER);
}

/* Gloo begins its texts with "[file:line] ". */
static std::string plain_text(const struct gloo_group *group,
                              const std::exception &error) {
    std::string text = error.what();
    size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos)
        text.erase(0, end + 2);
    return gloo_pairs_plain(&group->pairs, text);
}

/* Before all are connected there are no verdicts. */
static enum status fail_to_connect(struct gloo_group *group,
                                   const std::string &cause,
                                   struct failure *why) {
    if (group->waiting_for == GLOO_NO_RANK)
        return status_fail(why, FAILURE_CONNECTION_FAILED,
                           "rank %u cannot be reached: %s", group->rank,
                           cause.c_str());
    return status_fail(
        why, FAILURE_CONNECTION_FAILED,
        "rank %u has published an address, but there is no connection to it: "
        "%s",
        group->waiting_for, cause.c_str());
}

enum status gloo_group_failed(struct gloo_group *group,
                              struct failure *why) noexcept try {
    try {
        throw;
    } catch (const std::exception &error) {
        std::string cause = plain_text(group, error);
        return group->watchdog.joinable()
                   ? gloo_consensus_resolve(group, cause, why)
                   : fail_to_connect(group, cause, why);
    }
} catch (...) {
    return status_fail(why, FAILURE_NO_MEMORY, "collective: out of memory");
}

static enum status publish_place(struct gloo_group *group,
                                 const struct collective_store *store,
                                 struct failure *why) {
    const struct gloo_place *own = &group->connect.places[group->rank];
    std::string key = "gloo.at." + std::to_string(group->rank);
    return store->set(store->context, key.c_str(), own, sizeof *own, why);
}

static enum status receive_place(struct gloo_group *group, uint32_t peer,
                                 const struct collective_store *store,
                                 int64_t until, struct failure *why) {
    struct gloo_place *place = &group->connect.places[peer];
    void *value = nullptr;
    size_t size = 0;
    std::string key = "gloo.at." + std::to_string(peer);
    group->waiting_for = peer;
    enum status status =
        store->get(store->context, key.c_str(), until, &value, &size, why);
    if (status) {
        status_context(why, "rank %u did not come", peer);
        return status;
    }
    bool complete = size == sizeof *place;
    if (complete)
        memcpy(place, value, sizeof *place);
    free(value);
    if (!complete || (place->address.ss_family != AF_INET &&
                      place->address.ss_family != AF_INET6))
        return status_fail(
            why, FAILURE_PEER_SILENT,
            "rank %u has published no IP address: does it run the same "
            "version?",
            peer);
    return STATUS_OK;
}

/* All ranks publish their addresses before any connects: a rank that then does
 * not answer at once is gone, and the wait for it is short. */
static enum status connect_all(struct gloo_group *group,
                               const struct collective_settings *settings,
                               int64_t until, struct failure *why) {
    enum status status = publish_place(group, settings->store, why);
    for (uint32_t i = 0; !status && i < group->size; i++)
        if (i != group->rank)
            status = receive_place(group, i, settings->store, until, why);
    if (status)
        return status;
    gloo_connect_all(&group->connect);
    group->waiting_for = GLOO_NO_RANK;
    gloo_pairs_open(&group->pairs, &group->connect,
                    settings->shm && gloo_shm_is_available());
    for (uint32_t i = 0; i < group->size; i++) {
        group->waiting_for = i;
        if (group->connect.partners[i])
            gloo_pairs_connect(&group->pairs, i);
    }
    return STATUS_OK;
}

enum status gloo_group_open(struct gloo_group *group,
                            const struct collective_settings *settings,
                            const std::vector<bool> &partners,
                            struct failure *why) {
    group->rank = settings->rank;
    group->size = settings->size;
    group->timeout = settings->timeout;
    group->silence = settings->silence;
    group->cut_off.store(GLOO_NO_RANK);
    group->deadline.store(TIME_NEVER);
    group->verdicts.resize(group->size);
    group->received.resize(group->size);
    group->ended.resize(group->size);
    group->waiting_for = GLOO_NO_RANK;
    group->connect.settings = *settings;
    group->connect.partners = partners;
    group->connect.time =
        time_from_seconds(std::min(group->timeout, CONNECT_SECONDS));
    group->connect.waiting_for = &group->waiting_for;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    std::string host;
    enum status status = gloo_address_choose(settings, until, &host, why);
    if (status)
        return status;
    gloo_connect_listen(&group->connect, host.c_str());
    status = connect_all(group, settings, until, why);
    if (status)
        return status;
    if (group->silence > 0)
        gloo_pairs_keep_alive(&group->pairs, group->silence);
    group->watchdog = std::thread(gloo_group_watch, group);
    return STATUS_OK;
}

/* A connection that is closed too early loses messages in flight: each rank
 * waits until all others have said that they need nothing more. */
static void exchange_goodbyes(struct gloo_group *group) {
    auto longest = duration<double>(std::min(group->timeout, 5.0));
    auto until = gloo_group::clock::now() +
                 duration_cast<gloo_group::clock::duration>(longest);
    gloo_consensus_send(group, GLOO_NO_RANK, false);
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank && !gloo_consensus_receive(group, i, until))
            break;
}

void gloo_group_close(struct gloo_group *group) noexcept {
    if (group->watchdog.joinable()) {
        {
            std::lock_guard<std::mutex> lock(group->mutex);
            group->closed = true;
        }
        group->closing.notify_all();
        group->watchdog.join();
        if (!group->failed && !group->aborted.load())
            exchange_goodbyes(group);
    }
    gloo_pairs_close(&group->pairs);
    gloo_connect_close(&group->connect);
}

void gloo_group_abort(struct gloo_group *group) noexcept {
    group->aborted.store(true);
    gloo_pairs_shutdown(&group->pairs);
}
