/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_adopt.h"

#include "tests/simulation/simulated_chief.h"
#include "tests/simulation/simulated_copies.h"
#include "tests/simulation/simulated_oracle.h"

#include <string.h>

static const int64_t RECONNECT_LIMIT = 2 * TIME_S;
enum { TERM_SHIFT = 40 };

void simulated_adopt_close(struct simulated *s) {
    adoption_close(&s->chief.adopt.core);
}

static bool is_ps(const struct simulated *s, uint32_t i) {
    return i >= s->scenario.num_ranks;
}

static void take_ranks(struct simulated *s,
                       const struct simulated_control *sent) {
    struct adoption *core = &s->chief.adopt.core;
    struct adoption_rank ranks[SIMULATED_RANKS];
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        ranks[r] =
            (struct adoption_rank){sent->slots[r].incarnation,
                                   sent->slots[r].from, sent->slots[r].live};
    if (simulated_has_fault(s, SIMULATION_OLD_VIEW_ADOPTED) &&
        core->view > sent->number)
        core->view = 0;
    adoption_receive_view(core, sent->number, ranks);
}

static void keep_answer(struct simulated *s, const struct simulated_peer *from,
                        uint32_t i, const struct simulated_message *message) {
    struct simulated_adopt *adopt = &s->chief.adopt;
    const struct simulated_control *sent = &message->control_message;
    struct adoption_answer answer = {.run = message->run,
                                     .incarnation = message->incarnation,
                                     .term = sent->term,
                                     .has_begun = sent->ok};
    adopt->answers[i] = *sent;
    adopt->peers[i] = *from;
    adoption_receive(&adopt->core, i, &answer, s->now);
    if (is_ps(s, i))
        take_ranks(s, sent);
}

static bool open_adoption(struct simulated *s) {
    struct simulated_adopt *adopt = &s->chief.adopt;
    if (adopt->is_open)
        return true;
    if (!adoption_open(&adopt->core, s->scenario.num_ranks, s->scenario.num_ps,
                       SIMULATED_PEER_LIMIT + RECONNECT_LIMIT))
        return false;
    adopt->is_open = true;
    if (roster_count(&s->chief.roster, CLUSTER_ROLES, ROSTER_HELD))
        adoption_refuse(&adopt->core, "a process of it has joined anew");
    return true;
}

static bool is_undecided(const struct simulated *s) {
    const struct simulated_chief *chief = &s->chief;
    return chief->is_fresh && chief->phase == SIMULATED_JOINING &&
           !chief->adopt.is_decided;
}

bool simulated_adopt_receive(struct simulated *s,
                             const struct simulated_peer *from, uint32_t i,
                             const struct simulated_message *message) {
    struct simulated_adopt *adopt = &s->chief.adopt;
    if (!s->scenario.adopts)
        return false;
    if (message->kind == SIMULATED_REJOIN) {
        if (is_undecided(s) && open_adoption(s))
            keep_answer(s, from, i, message);
        else if (s->chief.roster.slots[i].incarnation == message->incarnation)
            s->chief.sessions[i].peer = *from; /* by another connection */
        else
            simulated_chief_send_back(s, from, i);
        return true;
    }
    bool waits = is_undecided(s) &&
                 (adopt->is_open || s->now - s->chief.since < RECONNECT_LIMIT);
    if (message->kind != SIMULATED_JOIN || !waits)
        return false;
    if (adopt->is_open)
        adoption_claim(&adopt->core, i, s->now);
    return true;
}

static void take_member(struct simulated *s, uint32_t i) {
    const struct simulated_adopt *adopt = &s->chief.adopt;
    const struct simulated_control *sent = &adopt->answers[i];
    struct roster_slot *slot = &s->chief.roster.slots[i];
    struct roster_claim claim = {
        adopt->core.places[i].answered, 0, 0, "", "", 0};
    (void)roster_claim(slot, &claim, s->now);
    s->chief.sessions[i] =
        (struct simulated_session){.peer = adopt->peers[i],
                                   .ready = true,
                                   .view = is_ps(s, i) ? sent->number : 0};
}

/* As take_missing of chief/adopt.c. */
static void take_missing(struct simulated *s, uint32_t i) {
    struct roster_slot *slot = &s->chief.roster.slots[i];
    if (is_ps(s, i)) {
        simulated_fail(s, "a run is adopted without ps %u", slot->index);
        return;
    }
    slot->incarnation = s->chief.adopt.core.ranks[i].incarnation;
    slot->state = slot->incarnation ? ROSTER_HELD : ROSTER_VACATED;
    slot->last_seen = s->now - SIMULATED_PEER_LIMIT - 1;
}

static void take_trainer(struct simulated *s, uint32_t r) {
    const struct adoption *core = &s->chief.adopt.core;
    const struct adoption_rank *rank = &core->ranks[r];
    struct simulated_trainer *trainer = &s->chief.trainers[r];
    if (s->chief.roster.slots[r].state != ROSTER_HELD)
        return;
    *trainer = (struct simulated_trainer){.planned = true,
                                          .viewed = true,
                                          .finished = !rank->live,
                                          .from = rank->from,
                                          .clock = rank->from - 1};
    if (adoption_has(core, r) && s->chief.adopt.answers[r].clock)
        trainer->clock = s->chief.adopt.answers[r].clock;
}

static void adopt_run(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    struct adoption *core = &chief->adopt.core;
    chief->run = core->run;
    chief->term = core->term + 1;
    chief->cuts_asked = chief->term << TERM_SHIFT;
    chief->start = s->start.step;
    for (uint32_t i = 0; i < chief->roster.count; i++)
        if (adoption_has(core, i))
            take_member(s, i);
        else
            take_missing(s, i);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        take_trainer(s, r);
    simulated_copies_adopted(s);
    simulated_oracle_adopted(s);
    chief->view = core->view;
    const struct simulated_control adopted = {.term = chief->term,
                                              .step = s->disk.step};
    simulated_chief_lead_on(s, &adopted);
}

void simulated_adopt_step(struct simulated *s) {
    struct simulated_adopt *adopt = &s->chief.adopt;
    if (!adopt->is_open || !is_undecided(s))
        return;
    enum adoption_verdict verdict = adoption_decide(&adopt->core, s->now);
    adopt->is_decided = verdict != ADOPTION_WAIT;
    if (verdict == ADOPTION_ADOPT) {
        simulated_trace(s, "chief: adopts run %llu",
                        (unsigned long long)adopt->core.run);
        s->adoptions++;
        adopt_run(s);
    }
    for (uint32_t i = 0;
         verdict == ADOPTION_REWIND && i < s->chief.roster.count; i++)
        if (adopt->core.places[i].answered)
            simulated_chief_send_back(s, &adopt->peers[i], i);
}
