/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_consensus.h"

extern "C" {
#include "core/base/time.h"
}

#include <cerrno>
#include <cstdio>
#include <poll.h>
#include <sys/socket.h>

using std::chrono::seconds;

/* Time limit for naming a rank that has reported a failure or is gone. */
static constexpr auto GRACE = seconds(1);

/* Receives what there is of the verdict of RANK. True: it is complete. */
static bool has_verdict(struct gloo_group *group, uint32_t rank) {
    auto bytes = reinterpret_cast<char *>(&group->verdicts[rank]);
    size_t *received = &group->received[rank];
    int socket = group->connect.sockets[GLOO_VERDICTS][rank];
    while (socket != -1 && !group->ended[rank] &&
           *received < sizeof(gloo_verdict)) {
        ssize_t count = recv(socket, bytes + *received,
                             sizeof(gloo_verdict) - *received, MSG_DONTWAIT);
        if (count > 0)
            *received += (size_t)count;
        else if (count < 0 && errno == EAGAIN)
            break;
        else if (!count || errno != EINTR)
            group->ended[rank] = true;
    }
    return *received == sizeof(gloo_verdict);
}

/* Two ranks that do not reach each other, as one of them has noticed. */
struct cut {
    uint32_t from, to; /* GLOO_NO_RANK: none */
};

/* A rank hands on what it hears: the verdict of the one that has noticed does
 * not reach the other. */
static struct cut find_cut(struct gloo_group *group) {
    uint32_t own = group->cut_off.load();
    if (own != GLOO_NO_RANK)
        return {group->rank, own};
    for (uint32_t i = 0; i < group->size; i++) {
        const gloo_verdict *verdict = &group->verdicts[i];
        if (has_verdict(group, i) && verdict->cut_off &&
            verdict->witness < group->size && verdict->blamed < group->size)
            return {verdict->witness, verdict->blamed};
    }
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
    group->own_verdict = {cut_off ? cut.to : blamed, disconnected && !cut_off,
                          group->timed_out.load(), cut_off, cut.from};
    /* So short that it always finds room; a rank that is gone needs none. */
    for (int socket : group->connect.sockets[GLOO_VERDICTS])
        if (socket != -1)
            send(socket, &group->own_verdict, sizeof group->own_verdict,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool gloo_consensus_receive(struct gloo_group *group, uint32_t rank,
                            gloo_group::clock::time_point until) {
    struct pollfd fd = {group->connect.sockets[GLOO_VERDICTS][rank], POLLIN, 0};
    while (!has_verdict(group, rank) && !group->ended[rank]) {
        auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
            until - gloo_group::clock::now());
        if (rest.count() <= 0)
            break;
        poll(&fd, 1, (int)rest.count() + 1);
    }
    return has_verdict(group, rank);
}

/* The rank that was lost without a verdict; preferably the one that this rank
 * was waiting for. */
static uint32_t find_lost(struct gloo_group *group) {
    uint32_t lost = GLOO_NO_RANK;
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank && !has_verdict(group, i) && group->ended[i])
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
static uint32_t reporter_of_loss(struct gloo_group *group) {
    for (uint32_t i = 0; i < group->size; i++) {
        const gloo_verdict *verdict = &group->verdicts[i];
        if (has_verdict(group, i) && verdict->disconnected &&
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
static enum status report_suspect(struct gloo_group *group,
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
    if (has_verdict(group, suspect) &&
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
