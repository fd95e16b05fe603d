/* SPDX-License-Identifier: Apache-2.0 */
/* All trainers that a broken ps has lost notice it within seconds of each
 * other: idle connections and busy ones end at different times. Nobody is
 * judged before the limit, which is longer than that, so by then each trainer's
 * report counts. A ps is at fault only once every trainer has been without it
 * for the limit; one that has lost it later is waited for. */
#include "chief/control/reachability.h"

#include "core/base/time.h"
#include "proto/messages/ps_links.h"

#include <stdlib.h>
#include <string.h>

/* Heartbeats come at least each half second. */
static const int64_t HEARD_LATELY = 2 * TIME_S;

bool reachability_open(struct reachability *reachability,
                       const struct roster *roster) {
    size_t pairs = (size_t)roster->num_ranks * roster->num_ps;
    *reachability = (struct reachability){
        .num_ranks = roster->num_ranks,
        .num_ps = roster->num_ps,
        .limit = ps_links_lost_limit(roster->peer_limit),
        .lost = calloc(pairs + 1, sizeof *reachability->lost),
        .reported =
            calloc(roster->num_ranks + 1, sizeof *reachability->reported),
    };
    return reachability->lost && reachability->reported;
}

void reachability_close(struct reachability *reachability) {
    free(reachability->lost);
    free(reachability->reported);
    *reachability = (struct reachability){0};
}

static int64_t *lost_by(const struct reachability *reachability,
                        uint32_t rank) {
    return reachability->lost + (size_t)rank * reachability->num_ps;
}

void reachability_report(struct reachability *reachability, uint32_t rank,
                         int64_t now) {
    reachability->reported[rank] = now;
    memset(lost_by(reachability, rank), 0,
           reachability->num_ps * sizeof *reachability->lost);
}

void reachability_lose(struct reachability *reachability, uint32_t rank,
                       uint32_t ps, int64_t since) {
    lost_by(reachability, rank)[ps] = since;
}

void reachability_forget(struct reachability *reachability, uint32_t rank) {
    reachability->reported[rank] = 0;
}

void reachability_shift(struct reachability *reachability, int64_t stall,
                        int64_t now) {
    size_t pairs = (size_t)reachability->num_ranks * reachability->num_ps;
    for (size_t i = 0; i < pairs; i++)
        deadline_shift(&reachability->lost[i], stall, now);
    for (uint32_t r = 0; r < reachability->num_ranks; r++)
        deadline_shift(&reachability->reported[r], stall, now);
}

/* How long a loss had lasted when it was last reported counts: it may have been
 * made good since. */
static struct reachability_verdict judge_ps(
    const struct reachability *reachability, const struct roster *roster,
    uint32_t ps, int64_t now) {
    struct reachability_verdict verdict = {.ps = ps, .since = now};
    bool is_reached = false, all_late = true, late = false;
    for (uint32_t r = 0; r < reachability->num_ranks; r++) {
        int64_t since = lost_by(reachability, r)[ps];
        int64_t reported = reachability->reported[r];
        bool is_fresh = now - reported < HEARD_LATELY;
        if (roster->slots[r].state != ROSTER_HELD || !reported)
            continue;
        bool is_late =
            is_fresh && since && reported - since > reachability->limit;
        is_reached |= is_fresh && !since;
        all_late &= is_late;
        if (is_late && since < verdict.since) {
            late = true;
            verdict.rank = r;
            verdict.since = since;
        }
    }
    if (late && is_reached)
        verdict.fault = REACHABILITY_TRAINER;
    else if (late && all_late)
        verdict.fault = REACHABILITY_PS;
    return verdict;
}

struct reachability_verdict reachability_judge(
    const struct reachability *reachability, const struct roster *roster,
    int64_t now) {
    struct reachability_verdict none = {REACHABILITY_NONE, 0, 0, 0};
    for (uint32_t p = 0; p < reachability->num_ps; p++) {
        const struct roster_slot *slot =
            &roster->slots[reachability->num_ranks + p];
        if (slot->state != ROSTER_HELD || now - slot->last_seen >= HEARD_LATELY)
            continue;
        struct reachability_verdict verdict =
            judge_ps(reachability, roster, p, now);
        if (verdict.fault)
            return verdict;
    }
    return none;
}
