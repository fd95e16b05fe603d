/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_coordinator.h"

#include "tests/simulation/simulated_chief.h"
#include "tests/simulation/simulated_oracle.h"

#include <string.h>

static struct simulated_cut *find(struct simulated *s, uint64_t id) {
    for (int i = 0; i < SIMULATED_CUTS; i++)
        if (s->chief.cuts[i].course.stage && s->chief.cuts[i].id == id)
            return &s->chief.cuts[i];
    return NULL;
}

uint32_t simulated_coordinator_num_parts(const struct simulated *s) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        if (simulated_place(s, s->chief.run, b) >= count)
            count = simulated_place(s, s->chief.run, b) + 1;
    return count;
}

static struct simulated_cut *begin(struct simulated *s, uint64_t id) {
    for (int i = 0; i < SIMULATED_CUTS; i++) {
        struct simulated_cut *cut = &s->chief.cuts[i];
        if (cut->course.stage)
            continue;
        *cut = (struct simulated_cut){.id = id, .step = id, .began = s->now};
        snapshot_round_start(&cut->course, simulated_coordinator_num_parts(s));
        return cut;
    }
    return NULL;
}

bool simulated_coordinator_is_agreeing(const struct simulated *s) {
    for (int i = 0; i < SIMULATED_CUTS; i++)
        if (s->chief.cuts[i].course.stage &&
            s->chief.cuts[i].id >= SIMULATED_REQUESTED)
            return true;
    return false;
}

bool simulated_coordinator_is_pending(const struct simulated *s) {
    for (int i = 0; i < SIMULATED_CUTS; i++)
        if (s->chief.cuts[i].course.stage)
            return true;
    return false;
}

static void tell_cut(struct simulated *s, uint64_t id, uint64_t round,
                     bool write) {
    struct simulated_control control_message = {
        .id = id, .round = round, .write = write};
    simulated_chief_send_ps(s, SIMULATED_CUT, &control_message);
}

bool simulated_coordinator_begin(struct simulated *s, bool save, bool joins,
                                 bool end) {
    if (simulated_synchronous(s) && simulated_coordinator_is_agreeing(s))
        return false;
    struct simulated_cut *cut =
        begin(s, SIMULATED_REQUESTED + ++s->chief.cuts_asked);
    if (!cut)
        return false;
    cut->save = save;
    cut->joins = joins;
    cut->step = simulated_chief_step_reached(s);
    simulated_trace(s, "chief: asks for a cut at about %llu%s",
                    (unsigned long long)cut->step, end ? ", the last" : "");
    if (simulated_synchronous(s) && !end) {
        struct simulated_control control_message = {.id = cut->id};
        snapshot_round_query(&cut->course, simulated_coordinator_num_parts(s));
        simulated_chief_send_ps(s, SIMULATED_CUT_QUERY, &control_message);
    } else {
        tell_cut(s, cut->id, 0, false);
    }
    return true;
}

void simulated_coordinator_begin_copy(struct simulated *s) {
    struct simulated_cut *cut =
        begin(s, SIMULATED_REQUESTED + ++s->chief.cuts_asked);
    if (!cut)
        return;
    cut->copy = true;
    tell_cut(s, cut->id, 0, false);
}

/* All have it: each writes it into its memory, and tells of that by itself. */
static void order_copy(struct simulated *s, struct simulated_cut *cut) {
    bool newer = buddies_may_copy(&s->chief.buddies, cut->step);
    struct simulated_control order = {
        .id = cut->id, .write = true, .memory = true, .step = cut->step};
    simulated_chief_send_ps(s, newer ? SIMULATED_CUT : SIMULATED_CUT_END,
                            &order);
    cut->course.stage = SNAPSHOT_ROUND_IDLE;
}

static void let_join(struct simulated *s, uint64_t round) {
    if (simulated_has_fault(s, SIMULATION_JOINER_TOO_EARLY))
        round--;
    if (simulated_has_fault(s, SIMULATION_JOINER_TOO_LATE))
        round++;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        struct simulated_trainer *trainer = &s->chief.trainers[r];
        if (s->chief.roster.slots[r].state != ROSTER_HELD ||
            !trainer->planned || trainer->from)
            continue;
        trainer->from = round + 1;
        trainer->clock = round;
    }
    simulated_chief_view(s);
}

void simulated_coordinator_ps_answered(struct simulated *s, uint32_t p,
                                       const struct simulated_control *mark) {
    struct simulated_cut *cut = find(s, mark->id);
    if (!cut || p >= simulated_coordinator_num_parts(s) ||
        !snapshot_round_receive_highest(&cut->course, mark->clock,
                                        s->scenario.total))
        return;
    uint64_t round = cut->course.round;
    if (simulated_has_fault(s, SIMULATION_CUT_AT_HIGHEST))
        round = cut->course.highest;
    simulated_trace(s, "chief: the cut is at %llu", (unsigned long long)round);
    if (cut->joins)
        let_join(s, round);
    if (run_schedule_saves(&s->run_schedule, round) || !cut->save) {
        cut->course.stage = SNAPSHOT_ROUND_IDLE;
        tell_cut(s, round, 0, false);
        return;
    }
    cut->step = round;
    cut->ordered = cut->save;
    tell_cut(s, cut->id, round, cut->save);
}

static void end_if_over(struct simulated *s, struct simulated_cut *cut) {
    struct simulated_control control_message = {.id = cut->id};
    if (cut->course.written < cut->course.num_holders)
        return;
    if (cut->id >= SIMULATED_REQUESTED)
        simulated_chief_send_ps(s, SIMULATED_CUT_END, &control_message);
    cut->course.stage = SNAPSHOT_ROUND_IDLE;
}

/* A full checkpoint is the base of the deltas after it. */
static void retain(struct simulated *s, const struct simulated_cut *cut) {
    struct simulated_control sent = {.base = cut->step};
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        if (cut->bases[p])
            return;
    s->chief.lineage.base = s->disk.base = cut->step;
    simulated_chief_send_ps(s, SIMULATED_RETAIN, &sent);
}

/* As snapshot_coordinator_drop_before: a chief before may have had a part. */
static void drop_before(struct simulated *s, uint64_t step) {
    for (int i = 0; s->chief.term && i < SIMULATED_CUTS; i++)
        if (s->chief.cuts[i].id < step)
            s->chief.cuts[i].course.stage = SNAPSHOT_ROUND_IDLE;
}

static void write_over(struct simulated *s, struct simulated_cut *cut) {
    if (!cut->failed) {
        simulated_trace(s, "chief: checkpoint %llu",
                        (unsigned long long)cut->step);
        simulated_oracle_cut(s, cut);
        s->cuts++;
        retain(s, cut);
        drop_before(s, cut->step);
        s->disk.step = cut->step;
        memcpy(s->disk.values, cut->values, sizeof s->disk.values);
    }
    end_if_over(s, cut);
}

static void note_part(struct simulated *s, struct simulated_cut *cut,
                      uint32_t p, const struct simulated_control *done) {
    uint32_t next = 0;
    cut->bases[p] = done->base;
    cut->known_from[p] = done->known_from;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        if (simulated_place(s, s->chief.run, b) == p) {
            cut->values[b] = done->values[next];
            cut->versions[b] = done->versions[next++];
        }
    if (!done->written && s->scenario.block_ps[0] == p)
        cut->step = done->versions[0];
}

void simulated_coordinator_ps_done(struct simulated *s, uint32_t p,
                                   const struct simulated_control *done) {
    struct simulated_cut *cut = find(s, done->id);
    if (p >= simulated_coordinator_num_parts(s))
        return;
    if (!cut && done->id < SIMULATED_REQUESTED) {
        cut = begin(s, done->id);
        if (cut)
            cut->save = cut->ordered = true;
    }
    if (!cut)
        return;
    cut->failed |= done->failed;
    if (!done->failed)
        note_part(s, cut, p, done);
    if (!done->failed && !done->written) {
        if (!snapshot_round_receive_held(&cut->course) || cut->ordered)
            return;
        cut->ordered = true;
        if (cut->copy)
            order_copy(s, cut);
        else
            tell_cut(s, cut->id, 0, true);
        return;
    }
    if (snapshot_round_receive_written(&cut->course))
        write_over(s, cut);
}

void simulated_coordinator_check(struct simulated *s) {
    for (int i = 0; i < SIMULATED_CUTS; i++) {
        const struct simulated_cut *cut = &s->chief.cuts[i];
        if (cut->course.stage && s->now - cut->began > SIMULATED_STEP_LIMIT)
            simulated_fail(s, "a cut is under way since %.3f s, in stage %d",
                           time_to_seconds(cut->began), (int)cut->course.stage);
    }
}
