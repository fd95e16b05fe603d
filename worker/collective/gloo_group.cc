/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_group.h"

extern "C" {
#include "core/base/proof.h"
#include "core/base/time.h"
}
#include "worker/collective/gloo_address.h"
#include "worker/collective/gloo_consensus.h"
#include "worker/collective/gloo_thread.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/* Seconds within which a rank that has published its address must answer
 * there. */
static constexpr double CONNECT_SECONDS = 10;
static constexpr seconds CLOSE_SECONDS{2};
/* Polling interval for a cancelled rendezvous or a stopped thread of Gloo's. */
static constexpr milliseconds POLL_INTERVAL{50};
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
    gloo_thread_own_code own_code;
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
static std::string plain_text(const std::exception &error) {
    std::string text = error.what();
    size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos)
        text.erase(0, end + 2);
    return text;
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
        "rank %u has published an address, but cannot be reached "
        "there: %s",
        group->waiting_for, cause.c_str());
}

enum status gloo_group_failed(struct gloo_group *group,
                              struct failure *why) noexcept try {
    try {
        throw;
    } catch (const std::exception &error) {
        std::string cause = plain_text(error);
        return group->watchdog.joinable()
                   ? gloo_consensus_resolve(group, cause, why)
                   : fail_to_connect(group, cause, why);
    }
} catch (...) {
    return status_fail(why, FAILURE_NO_MEMORY, "collective: out of memory");
}

/* Publishes the addresses at which each rank reaches this one: two listening
 * addresses, for data and for verdicts, per rank in order, all of equal
 * size. */
static enum status publish_addresses(struct gloo_group *group,
                                     const struct collective_store *store,
                                     struct failure *why) {
    std::vector<char> all;
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        auto connection = gloo_pairs_address(&group->pairs, i);
        auto verdicts = group->context->createPair((int)i)->address().bytes();
        size_t each = connection.size();
        all.resize(group->size * 2 * each);
        memcpy(&all[i * 2 * each], connection.data(), each);
        memcpy(&all[(i * 2 + 1) * each], verdicts.data(), each);
    }
    std::string key = "gloo.at." + std::to_string(group->rank);
    return store->set(store->context, key.c_str(), all.data(), all.size(), why);
}

/* A rank's two addresses: for data and for verdicts. */
struct gloo_addresses {
    std::vector<char> connection, verdicts;
};

static enum status receive_addresses(struct gloo_group *group, uint32_t peer,
                                     const struct collective_store *store,
                                     int64_t until,
                                     struct gloo_addresses *addresses,
                                     struct failure *why) {
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
    size_t each = gloo_pairs_address(&group->pairs, peer).size();
    bool complete = size == group->size * 2 * each;
    auto own = static_cast<const char *>(value) + group->rank * 2 * each;
    if (complete) {
        addresses->connection.assign(own, own + each);
        addresses->verdicts.assign(own + each, own + 2 * each);
    }
    free(value);
    if (!complete)
        return status_fail(
            why, FAILURE_PEER_SILENT,
            "rank %u has published no address: does it run the same "
            "version?",
            peer);
    return STATUS_OK;
}

/* The result of work on a separate thread. */
struct gloo_attempt {
    std::mutex mutex;
    std::condition_variable ended;
    bool over;
    std::exception_ptr error;
};

static void end_attempt(struct gloo_attempt *attempt,
                        const std::exception_ptr &error) noexcept {
    std::lock_guard<std::mutex> lock(attempt->mutex);
    attempt->error = error;
    attempt->over = true;
    attempt->ended.notify_all();
}

struct no_proof : std::exception {
    const char *what() const noexcept override {
        return "who is connected does not prove that it has the run's secret: "
               "is the secret file the same?";
    }
};

/* Both sides prove that they have the run's secret; EXCHANGE(number, own,
 * theirs) swaps PROOF_BYTES with the other. KIND is that of the connection. */
template <typename swap>
static void prove(const struct gloo_group *group, uint32_t peer,
                  const char *kind, swap exchange) {
    unsigned char challenge[PROOF_BYTES], theirs[PROOF_BYTES] = {};
    unsigned char proof[PROOF_BYTES], answer[PROOF_BYTES] = {};
    char out[64], in[64];
    snprintf(out, sizeof out, "gloo %s from %u to %u", kind, group->rank, peer);
    snprintf(in, sizeof in, "gloo %s from %u to %u", kind, peer, group->rank);
    proof_challenge(challenge);
    exchange(0, challenge, theirs);
    proof_make(proof, group->proof.data(), out, challenge, theirs);
    exchange(1, proof, answer);
    if (!proof_holds(answer, group->proof.data(), in, challenge, theirs))
        throw no_proof();
}

static void prove_data(struct gloo_group *group, uint32_t peer) {
    if (!group->proof.empty())
        prove(group, peer, "data",
              [=](unsigned, const void *own, void *theirs) {
                  gloo_pairs_exchange(&group->pairs, peer, own, theirs,
                                      PROOF_BYTES);
              });
}

static void prove_verdicts(struct gloo_group *group, uint32_t peer) {
    if (!group->proof.empty())
        prove(group, peer, "verdicts",
              [=](unsigned number, void *own, void *theirs) {
                  gloo_consensus_exchange(group, peer, number, own, theirs,
                                          PROOF_BYTES);
              });
}

static void attempt_connection(struct gloo_group *group, uint32_t peer,
                               const struct gloo_addresses &addresses,
                               struct gloo_attempt *attempt) noexcept {
    gloo_thread_own_code own_code;
    std::exception_ptr error;
    try {
        gloo_pairs_connect(&group->pairs, peer, addresses.connection);
        prove_data(group, peer);
        if (group->pairs.partners[peer])
            gloo_pairs_open_shm(&group->pairs, peer, group->rank < peer);
        group->context->getPair((int)peer)->connect(addresses.verdicts);
        prove_verdicts(group, peer);
    } catch (...) {
        error = std::current_exception();
    }
    end_attempt(attempt, error);
}

/* On a separate thread: Gloo waits for its own threads without a limit, one of
 * which may have stopped, and its wait for a peer cannot be ended. */
static void gloo_group_connect_to(struct gloo_group *group, uint32_t peer,
                                  const struct gloo_addresses &addresses,
                                  const struct collective_store *store) {
    auto attempt = std::make_shared<struct gloo_attempt>();
    std::thread([=] {
        attempt_connection(group, peer, addresses, attempt.get());
    }).detach();
    int64_t until = time_now() + time_from_seconds(group->connect_timeout + 1);
    std::unique_lock<std::mutex> lock(attempt->mutex);
    while (!attempt->over && time_now() < until &&
           !(store->is_cancelled && store->is_cancelled(store->context)))
        attempt->ended.wait_for(lock, POLL_INTERVAL);
    group->thread_stuck = !attempt->over;
    if (group->thread_stuck)
        throw wait_ended();
    if (attempt->error)
        std::rethrow_exception(attempt->error);
}

/* All ranks publish their addresses before any connects: a rank that then does
 * not answer at once is gone, and Gloo's wait for it, which cannot be ended, is
 * short. */
static enum status connect_all(struct gloo_group *group,
                               const struct collective_store *store,
                               int64_t until, struct failure *why) {
    std::vector<struct gloo_addresses> addresses(group->size);
    for (uint32_t i = 0; i < group->size; i++) {
        enum status status =
            i == group->rank
                ? STATUS_OK
                : receive_addresses(group, i, store, until, &addresses[i], why);
        if (status)
            return status;
    }
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        group->waiting_for = i;
        gloo_group_connect_to(group, i, addresses[i], store);
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
    if (settings->proof)
        group->proof.assign(settings->proof, settings->proof + PROOF_KEY_BYTES);
    group->cut_off.store(GLOO_NO_RANK);
    group->deadline.store(TIME_NEVER);
    group->verdicts.resize(group->size);
    group->waiting_for = GLOO_NO_RANK;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    std::string host;
    enum status status = gloo_address_choose(settings, until, &host, why);
    if (status)
        return status;
    gloo::transport::tcp::attr attr(host.c_str());
    group->device = gloo::transport::tcp::CreateDevice(attr);
    group->context =
        group->device->createContext((int)group->rank, (int)group->size);
    group->connect_timeout = std::min(group->timeout, CONNECT_SECONDS);
    /* Gloo multiplies the timeout of a connection by five. */
    group->context->setTimeout(
        milliseconds((int64_t)(group->connect_timeout * 200)));
    group->probe = group->context->createUnboundBuffer(nullptr, SIZE_MAX);
    for (uint32_t i = 0; i < group->size; i++)
        group->verdict_buffers.push_back(
            group->context->createUnboundBuffer(nullptr, SIZE_MAX));
    gloo_pairs_listen(&group->pairs, host.c_str(), group->rank, group->size,
                      group->connect_timeout);
    group->pairs.use_shm = settings->shm && gloo_shm_is_available();
    group->pairs.partners = partners;
    status = publish_addresses(group, settings->store, why);
    if (!status)
        status = connect_all(group, settings->store, until, why);
    if (status)
        return status;
    if (group->silence > 0)
        gloo_pairs_keep_alive(&group->pairs, group->silence);
    gloo_consensus_listen(group);
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

static void gloo_group_release(struct gloo_group *group) noexcept {
    gloo_thread_own_code own_code;
    gloo_pairs_close(&group->pairs);
    group->probe.reset();
    group->verdict_buffers.clear();
    group->context.reset();
    group->device.reset();
}

/* On a separate thread, which is abandoned if it does not end: Gloo waits for
 * its own threads without a limit, and any may have stopped. */
static bool release_in_time(struct gloo_group *group) noexcept try {
    auto attempt = std::make_shared<struct gloo_attempt>();
    std::thread([=] {
        gloo_group_release(group);
        end_attempt(attempt.get(), nullptr);
    }).detach();
    std::unique_lock<std::mutex> lock(attempt->mutex);
    auto until = gloo_group::clock::now() + CLOSE_SECONDS;
    while (!attempt->over && !gloo_thread_stopped() &&
           gloo_group::clock::now() < until)
        attempt->ended.wait_for(lock, POLL_INTERVAL);
    return attempt->over;
} catch (const std::exception &) {
    return false; /* no thread, or no memory */
}

bool gloo_group_close(struct gloo_group *group) noexcept {
    if (group->watchdog.joinable()) {
        {
            std::lock_guard<std::mutex> lock(group->mutex);
            group->closed = true;
        }
        group->closing.notify_all();
        group->watchdog.join();
        if (!group->thread_stuck && !gloo_thread_stopped() && !group->failed &&
            !group->aborted.load())
            exchange_goodbyes(group);
    }
    gloo_pairs_shutdown(&group->pairs);
    return !group->thread_stuck && !gloo_thread_stopped() &&
           release_in_time(group);
}

void gloo_group_abort(struct gloo_group *group) noexcept {
    group->aborted.store(true);
    gloo_pairs_shutdown(&group->pairs);
}
