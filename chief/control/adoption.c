/* SPDX-License-Identifier: Apache-2.0 */
/* Without one of the ps the run has lost weights, and without rank 0 nobody
 * describes the model: it goes back to a checkpoint. A trainer that does not
 * answer is taken for dead, as in any run. */
#include "chief/control/adoption.h"

#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A member that lives has answered by then, as it connects within two seconds
 * and asks twice a second. */
static const int64_t CLAIMED_LIMIT = 4 * TIME_S;

bool adoption_open(struct adoption *adoption, uint32_t num_ranks,
                   uint32_t num_ps, int64_t limit) {
    *adoption = (struct adoption){.num_ranks = num_ranks,
                                  .num_ps = num_ps,
                                  .num_shares = num_ranks,
                                  .limit = limit};
    adoption->places = calloc(num_ranks + num_ps + 1, sizeof *adoption->places);
    adoption->ranks = calloc(num_ranks + 1, sizeof *adoption->ranks);
    return adoption->places && adoption->ranks;
}

void adoption_close(struct adoption *adoption) {
    free(adoption->places);
    free(adoption->ranks);
    adoption->places = NULL;
    adoption->ranks = NULL;
}

void adoption_refuse(struct adoption *adoption, const char *why) {
    if (!adoption->why[0])
        snprintf(adoption->why, sizeof adoption->why, "%s", why);
}

void adoption_receive(struct adoption *adoption, uint32_t place,
                      const struct adoption_answer *answer, int64_t now) {
    if (!adoption->since) {
        adoption->since = now;
        adoption->run = answer->run;
    }
    if (answer->run != adoption->run)
        adoption_refuse(adoption, "its members are in two runs");
    uint64_t *answered = &adoption->places[place].answered;
    if (*answered && *answered != answer->incarnation)
        adoption_refuse(adoption, "two processes have one place in it");
    *answered = answer->incarnation;
    adoption->places[place].share = answer->share;
    adoption->has_begun |= answer->has_begun;
    if (answer->term > adoption->term)
        adoption->term = answer->term;
}

void adoption_receive_view(struct adoption *adoption, uint64_t view,
                           const struct adoption_rank *ranks) {
    if (view <= adoption->view)
        return;
    adoption->view = view;
    memcpy(adoption->ranks, ranks,
           adoption->num_ranks * sizeof *adoption->ranks);
}

bool adoption_has(const struct adoption *adoption, uint32_t place) {
    uint64_t answered = adoption->places[place].answered;
    return answered && (place >= adoption->num_ranks ||
                        adoption->ranks[place].incarnation == answered);
}

void adoption_claim(struct adoption *adoption, uint32_t place, int64_t now) {
    if (!adoption->places[place].claimed)
        adoption->places[place].claimed = now;
}

/* Is an answer of PLACE awaited at NOW? */
static bool is_awaited_place(const struct adoption *adoption, uint32_t place,
                             int64_t now) {
    int64_t claimed = adoption->places[place].claimed;
    if (adoption_has(adoption, place) ||
        now - adoption->since >= adoption->limit ||
        (claimed && now - claimed >= CLAIMED_LIMIT))
        return false;
    return place >= adoption->num_ranks || adoption->ranks[place].incarnation;
}

static bool has_all(const struct adoption *adoption, int64_t now) {
    for (uint32_t p = 0; p < adoption->num_ranks + adoption->num_ps; p++)
        if (is_awaited_place(adoption, p, now))
            return false;
    return true;
}

/* Which sample a step is at follows from the shares of all trainers, and each
 * tells its own alone. */
static void refuse_unknown_share(struct adoption *adoption) {
    bool any = false, all = true;
    for (uint32_t r = 0; r < adoption->num_shares; r++) {
        any |= adoption->places[r].share;
        all &= adoption->places[r].share && adoption_has(adoption, r);
    }
    if (any && !all)
        adoption_refuse(adoption, "nobody tells how much data a trainer had "
                                  "that is gone");
}

/* A trainer may lack the first view, so that it joins anew: before the first
 * step nothing is lost, and no step is to lack it. */
static void refuse_beginning(struct adoption *adoption) {
    for (uint32_t r = 0; !adoption->has_begun && r < adoption->num_ranks; r++)
        if (adoption->ranks[r].incarnation && !adoption_has(adoption, r))
            adoption_refuse(adoption, "it has not begun, and a trainer has not "
                                      "answered");
}

static void refuse_without(struct adoption *adoption) {
    char why[sizeof adoption->why];
    if (!adoption_has(adoption, 0))
        adoption_refuse(adoption, "its trainer of rank 0 has not answered");
    for (uint32_t p = 0; p < adoption->num_ps; p++) {
        if (adoption_has(adoption, adoption->num_ranks + p))
            continue;
        snprintf(why, sizeof why, "ps %u has not answered", p);
        adoption_refuse(adoption, why);
    }
    refuse_unknown_share(adoption);
    refuse_beginning(adoption);
}

enum adoption_verdict adoption_decide(struct adoption *adoption, int64_t now) {
    if (!adoption->since)
        return ADOPTION_WAIT;
    if (!adoption->why[0] && !has_all(adoption, now))
        return ADOPTION_WAIT;
    refuse_without(adoption);
    return adoption->why[0] ? ADOPTION_REWIND : ADOPTION_ADOPT;
}
