/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_consensus.h"

extern "C" {
#include "core/base/time.h"
}

#include <cstdio>

using std::chrono::seconds;

/* Time limit for naming a rank that has reported a failure or is gone. */
static constexpr auto GRACE = seconds(1);
enum : uint64_t { SLOT_VERDICT, SLOT_PROBE, SLOT_EXCHANGE };

static size_t address_of(const void *bytes) {
    return reinterpret_cast<uintptr_t>(bytes);
}

/* Written by Gloo's thread before it completes the buffer waited for. */
static bool has_verdict(const gloo_verdict *verdict) {
    return *static_cast<const volatile uint32_t *>(&verdict->received) != 0;
}

/* Two ranks that do not reach each other, as one of them has noticed. */
struct cut {
    uint32_t from, to; /* GLOO_NO_RANK: none */
};

/* A rank hands on what it hears: the verdict of the one that has noticed does
 * not reach the other. */
static struct cut find_cut(const struct gloo_group *group) {
    uint32_t own = group->cut_off.load();
    if (own != GLOO_NO_RANK)
        return {group->rank, own};
    for (const gloo_verdict &verdict : group->verdicts)
        if (has_verdict(&verdict) && verdict.cut_off &&
            verdict.witness < group->size && verdict.blamed < group->size)
            return {verdict.witness, verdict.blamed};
    return {GLOO_NO_RANK, GLOO_NO_RANK};
}

static enum status report_cut(const struct gloo_group *group,
                              const struct cut *cut, struct failure *why) {
    char from[32] = "this rank", to[32] = "this rank";
    if (cut->from != group->rank)
        snprintf(from, sizeof from, "rank %u", cut->from);
    if (cut->to != group->rank)
        snprintf(to, sizeof to, "rank %u", cut->to);
    return status_fail(why, FAILURE_PEER_LOST,
                       "%s and %s do not reach each other: of what %s sends, "
                       "nothing was acknowledged for %.3g s (timeouts.peer, at "
                       "least 8 s); does a firewall drop packets between their "
                       "hosts?",
                       from, to, from, group->silence);
}

void gloo_consensus_send(struct gloo_group *group, uint32_t blamed,
                         bool disconnected) {
    struct cut cut = find_cut(group);
    bool cut_off = cut.to != GLOO_NO_RANK;
    group->own_verdict = {1,
                          cut_off ? cut.to : blamed,
                          disconnected && !cut_off,
                          group->timed_out.load(),
                          cut_off,
                          cut.from};
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        try {
            group->verdict_buffers[i]->send((int)i, SLOT_VERDICT,
                                            address_of(&group->own_verdict),
                                            sizeof group->own_verdict);
        } catch (const std::exception &) {
            /* that rank is gone as well */
        }
    }
}

void gloo_consensus_exchange(struct gloo_group *group, uint32_t rank,
                             unsigned number, void *own, void *theirs,
                             size_t size) {
    auto from = group->context->createUnboundBuffer(theirs, size);
    auto to = group->context->createUnboundBuffer(own, size);
    auto limit =
        std::chrono::milliseconds((int64_t)(group->connect_timeout * 1000));
    from->recv((int)rank, SLOT_EXCHANGE + number, 0, size);
    to->send((int)rank, SLOT_EXCHANGE + number, 0, size);
    to->waitSend(nullptr, limit);
    from->waitRecv(nullptr, limit);
}

/* Ends a wait for BUFFER at UNTIL. Gloo's own timeout would close all its
 * connections, and no verdict could be sent any more. */
class receive_timeout {
  public:
    receive_timeout(gloo::transport::UnboundBuffer *buffer,
                    gloo_group::clock::time_point until)
        : waiter([=] {
              std::unique_lock<std::mutex> lock(mutex);
              if (!changed.wait_until(lock, until, [=] { return cancelled; }))
                  buffer->abortWaitRecv();
          }) {
    }
    ~receive_timeout() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            cancelled = true;
        }
        changed.notify_all();
        waiter.join();
    }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    bool cancelled = false;
    std::thread waiter; /* declared last: it uses the other members */
};

bool gloo_consensus_receive(struct gloo_group *group, uint32_t rank,
                            gloo_group::clock::time_point until) {
    gloo::transport::UnboundBuffer *buffer = group->verdict_buffers[rank].get();
    if (has_verdict(&group->verdicts[rank]))
        return true;
    try {
        receive_timeout alarm(buffer, until);
        buffer->waitRecv(nullptr, std::chrono::hours(24));
    } catch (const std::exception &) {
        /* the rank is gone */
    }
    return has_verdict(&group->verdicts[rank]);
}

/* True if the connection to RANK is lost. Sends an empty message that is never
 * received. */
static bool is_disconnected(struct gloo_group *group, uint32_t rank) {
    try {
        group->probe->send((int)rank, SLOT_PROBE, 0, 0);
        return false;
    } catch (const std::exception &) {
        return true;
    }
}

/* The rank that was lost without a verdict; preferably the one that this rank
 * was waiting for. */
static uint32_t find_lost(struct gloo_group *group) {
    uint32_t lost = GLOO_NO_RANK;
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank && is_disconnected(group, i) &&
            !has_verdict(&group->verdicts[i]))
            if (lost == GLOO_NO_RANK || i == group->waiting_for)
                lost = i;
    return lost;
}

/* The number came over the wire: a number out of range blames nobody. */
static uint32_t blamed_rank(const struct gloo_group *group,
                            const gloo_verdict *verdict) {
    return verdict->blamed < group->size ? verdict->blamed : GLOO_NO_RANK;
}

/* The rank that reports another as lost. */
static uint32_t reporter_of_loss(const struct gloo_group *group) {
    for (uint32_t i = 0; i < group->size; i++) {
        const gloo_verdict *verdict = &group->verdicts[i];
        if (has_verdict(verdict) && verdict->disconnected &&
            blamed_rank(group, verdict) != GLOO_NO_RANK)
            return i;
    }
    return GLOO_NO_RANK;
}

/* The suspect, a rank that sent no verdict, and the witness that blames it. */
struct diagnosis {
    uint32_t suspect, witness;
    bool timed_out; /* the witness timed out; else its connection ended */
};

/* Follows the chain of ranks waiting for each other to one that has sent no
 * verdict. */
static struct diagnosis find_suspect(struct gloo_group *group) {
    auto until = gloo_group::clock::now() + GRACE;
    struct diagnosis found = {group->waiting_for, group->rank,
                              group->timed_out.load()};
    for (uint32_t hops = 0; hops < group->size; hops++) {
        if (found.suspect == group->rank || found.suspect == GLOO_NO_RANK ||
            !gloo_consensus_receive(group, found.suspect, until))
            break;
        const gloo_verdict *verdict = &group->verdicts[found.suspect];
        uint32_t next = blamed_rank(group, verdict);
        if (next == GLOO_NO_RANK)
            break;
        found = {next, found.suspect, verdict->timed_out != 0};
    }
    return found;
}

/* Two ranks that blame each other are both alive, so the connection between
 * them has failed. */
static enum status report_mutual(const struct gloo_group *group,
                                 const struct diagnosis *found,
                                 const std::string &cause,
                                 struct failure *why) {
    if (found->timed_out)
        return status_fail(why, FAILURE_PEER_SILENT,
                           "rank %u and this rank have waited for each other "
                           "for %.3g s",
                           found->witness, group->timeout);
    return status_fail(why, FAILURE_PEER_LOST,
                       "rank %u has lost its connection to this rank: %s",
                       found->witness, cause.c_str());
}

/* A timeout and a lost connection are reported differently, as they have
 * different remedies. */
static enum status report_suspect(const struct gloo_group *group,
                                  const struct diagnosis *found,
                                  const std::string &cause,
                                  struct failure *why) {
    char witness[48] = "";
    uint32_t suspect = found->suspect;
    if (suspect == GLOO_NO_RANK)
        return status_fail(why, FAILURE_COLLECTIVE_FAILED, "collective: %s",
                           cause.c_str());
    if (suspect == group->rank)
        return report_mutual(group, found, cause, why);
    if (found->witness != group->rank)
        snprintf(witness, sizeof witness, ", as rank %u says", found->witness);
    if (has_verdict(&group->verdicts[suspect]) &&
        blamed_rank(group, &group->verdicts[suspect]) == GLOO_NO_RANK)
        return status_fail(why, FAILURE_PEER_LOST, "rank %u has left the group",
                           suspect);
    if (found->timed_out)
        return status_fail(why, FAILURE_PEER_SILENT,
                           "rank %u did not come to the collective within %.3g "
                           "s%s",
                           suspect, group->timeout, witness);
    return status_fail(why, FAILURE_PEER_LOST, "rank %u was lost%s%s", suspect,
                       *witness ? witness : ": ",
                       *witness ? "" : cause.c_str());
}

enum status gloo_consensus_resolve(struct gloo_group *group,
                                   const std::string &cause,
                                   struct failure *why) {
    if (group->failed)
        return status_fail(why, FAILURE_COLLECTIVE_FAILED,
                           "the collective has failed before");
    group->failed = true;
    group->deadline.store(TIME_NEVER);
    if (group->aborted.load())
        return status_fail(why, FAILURE_CANCELLED,
                           "this rank has aborted the collective");
    /* A connection that ends here was closed by a rank that will send its
     * verdict, or by a lost one. */
    struct cut cut = find_cut(group);
    if (!group->timed_out.load() && group->waiting_for != GLOO_NO_RANK &&
        cut.to == GLOO_NO_RANK)
        gloo_consensus_receive(group, group->waiting_for,
                               gloo_group::clock::now() + GRACE);
    uint32_t lost = find_lost(group);
    bool disconnected = lost != GLOO_NO_RANK;
    gloo_consensus_send(group, disconnected ? lost : group->waiting_for,
                        disconnected);
    gloo_pairs_shutdown(&group->pairs);
    cut = find_cut(group);
    if (cut.to != GLOO_NO_RANK)
        return report_cut(group, &cut, why);
    if (disconnected && group->timed_out.load())
        return status_fail(why, FAILURE_PEER_LOST,
                           "rank %u was lost: its connections have ended",
                           lost);
    if (disconnected)
        return status_fail(why, FAILURE_PEER_LOST, "rank %u was lost: %s", lost,
                           cause.c_str());
    struct diagnosis found = find_suspect(group);
    cut = find_cut(group);
    if (cut.to != GLOO_NO_RANK)
        return report_cut(group, &cut, why);
    uint32_t witness = reporter_of_loss(group);
    if (witness != GLOO_NO_RANK)
        return status_fail(why, FAILURE_PEER_LOST,
                           "rank %u was lost, as rank %u says",
                           group->verdicts[witness].blamed, witness);
    return report_suspect(group, &found, cause, why);
}

void gloo_consensus_listen(struct gloo_group *group) {
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank)
            group->verdict_buffers[i]->recv((int)i, SLOT_VERDICT,
                                            address_of(&group->verdicts[i]),
                                            sizeof(gloo_verdict));
}
