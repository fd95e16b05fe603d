/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_copies.h"

#include "tests/simulation/simulated_chief.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_oracle.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)COPIES_MOST <= (int)SIMULATED_UNITS,
              "a join has room for all copies");

enum { FETCHED_PER_STEP = 500, OLD_BASES = 300 }; /* chances of 1000 */

bool simulated_copies_has(struct simulated *s, uint32_t p, uint64_t step,
                          uint32_t part, uint64_t *out) {
    struct copy copy, base;
    if (!copies_find(&s->copies[p], step, part, &copy))
        return false;
    const struct simulated_part *held = &s->parts[copy.size];
    if (out)
        *out = copy.size;
    return !held->base ||
           (copies_find(&s->copies[p], held->base, part, &base) &&
            base.size == held->base_part);
}

static void report(struct simulated *s, uint32_t p, uint64_t step, bool fetched,
                   bool failed) {
    struct copy own;
    bool is_there = !fetched && copies_find(&s->copies[p], step, p, &own);
    const struct simulated_control sent = {
        .id = step,
        .written = fetched,
        .failed = failed,
        .base = is_there ? s->parts[own.size].base : 0};
    simulated_member_send_reliable(s, &s->ps[p].member, simulated_ps_process(p),
                                   SIMULATED_COPY_REPORT, &sent);
}

void simulated_copies_written(struct simulated *s, uint32_t p, uint64_t step,
                              const struct simulated_snapshot *snapshot) {
    const struct simulated_ps *ps = &s->ps[p];
    if (s->num_parts == SIMULATED_PARTS) {
        simulated_fail(s, "no room for a part in memory");
        return;
    }
    struct simulated_part *part = &s->parts[s->num_parts];
    struct copy base;
    if (ps->copy_base && copies_find(&s->copies[p], ps->copy_base, p, &base)) {
        part->base = ps->copy_base;
        part->base_part = base.size;
    }
    part->run = ps->member.run;
    part->count = ps->count;
    for (uint32_t b = 0; b < ps->count; b++) {
        part->ids[b] = ps->ids[b];
        part->values[b] = snapshot->values[b];
        part->versions[b] = snapshot->versions[b];
    }
    copies_put(&s->copies[p],
               (struct copy){
                   .step = step, .part = p, .fd = -1, .size = s->num_parts++});
    report(s, p, step, false, false);
}

void simulated_copies_skipped(struct simulated *s, uint32_t p, uint64_t step) {
    report(s, p, step, false, true);
}

void simulated_copies_list(struct simulated *s, uint32_t p,
                           struct simulated_control *join) {
    struct copy list[COPIES_MOST];
    join->round = copies_list(&s->copies[p], list);
    for (uint64_t i = 0; i < join->round; i++) {
        join->values[i] = list[i].step;
        join->versions[i] = list[i].part;
    }
    char *base, *manifest = copies_manifest(&s->copies[p], &base);
    join->complete_base = base ? strtoull(base, NULL, 10) : 0;
    free(base);
    if (manifest)
        sscanf(manifest, "%" SCNu64 " %" SCNu64, &join->id, &join->step);
    free(manifest);
}

static void describe(struct simulated *s, uint32_t p, uint64_t step,
                     uint64_t run, uint64_t base_step) {
    char manifest[64], base[32];
    snprintf(base, sizeof base, "%" PRIu64, base_step);
    snprintf(manifest, sizeof manifest, "%" PRIu64 " %" PRIu64, step, run);
    copies_describe(&s->copies[p], step, manifest, base_step ? base : NULL);
}

/* The part of ps P of STEP, which is in its memory. */
static void load(struct simulated *s, uint32_t p, uint64_t step) {
    struct simulated_ps *ps = &s->ps[p];
    uint64_t number;
    if (!simulated_copies_has(s, p, step, p, &number)) {
        simulated_fail(s, "ps %u restores a delta without its base", p);
        return;
    }
    const struct simulated_part *part = &s->parts[number];
    for (uint32_t b = 0; b < ps->count; b++)
        if (part->count != ps->count || part->ids[b] != ps->ids[b])
            simulated_fail(s, "ps %u restores a part of other blocks", p);
        else
            ps->values[b] = part->values[b];
}

static void fetch(struct simulated *s, uint32_t p,
                  struct simulated_fetch fetch) {
    fetch.is_on = true;
    fetch.since = s->now;
    s->ps[p].fetch = fetch;
}

/* Has ps P the part of ps PART of STEP, and that of BASE (0: there is none)? */
static bool has_both(struct simulated *s, uint32_t p, uint64_t step,
                     uint64_t base, uint32_t part) {
    return copies_find(&s->copies[p], step, part, NULL) &&
           (!base || copies_find(&s->copies[p], base, part, NULL));
}

void simulated_copies_plan(struct simulated *s, uint32_t p,
                           const struct simulated_control *plan) {
    uint64_t base = plan->memory ? plan->complete_base : 0;
    if (!simulated_has_fault(s, SIMULATION_COPY_UNDONE))
        copies_begin(&s->copies[p], plan->memory ? plan->step : 0, base);
    s->ps[p].copy_base = 0;
    if (plan->memory)
        describe(s, p, plan->step, plan->round, base);
    if (!plan->memory || !s->ps[p].count)
        return;
    if (has_both(s, p, plan->step, base, p))
        load(s, p, plan->step);
    else
        fetch(s, p,
              (struct simulated_fetch){.restores = true,
                                       .step = plan->step,
                                       .base = base,
                                       .part = p,
                                       .from = (uint32_t)plan->versions[p]});
}

void simulated_copies_order(struct simulated *s, uint32_t p,
                            const struct simulated_control *order) {
    bool early = simulated_has_fault(s, SIMULATION_COPY_DROPPED);
    bool drops = simulated_has_fault(s, SIMULATION_COPY_BASE_DROPPED);
    uint32_t part = (uint32_t)order->number;
    copies_order(&s->copies[p], order->id,
                 early && order->id ? order->id : order->clock,
                 drops ? 0 : order->complete_base);
    if (order->round)
        describe(s, p, order->clock, order->round, order->complete_base);
    s->ps[p].copy_base = order->whole           ? 0
                         : order->complete_base ? order->complete_base
                                                : order->clock;
    if (!order->id || !s->ps[p].count)
        return;
    if (!copies_find(&s->copies[p], order->id, p, NULL))
        report(s, p, order->id, true, true);
    else if (has_both(s, p, order->id, order->base, part))
        report(s, p, order->id, true, false);
    else
        fetch(s, p,
              (struct simulated_fetch){.step = order->id,
                                       .base = order->base,
                                       .part = part,
                                       .from = part});
}

/* Its pieces need neither a line of their own nor order: they are checked by
 * their hash, and a ps that is gone is found by the chief. */
static void take_pieces(struct simulated *s, uint32_t p) {
    struct simulated_fetch *on = &s->ps[p].fetch;
    const struct simulated_process *from =
        &s->processes[simulated_ps_process(on->from)];
    struct copy copy, base;
    bool late = s->now - on->since > 2 * SIMULATED_PEER_LIMIT;
    bool there = from->running && from->paused_until <= s->now &&
                 has_both(s, on->from, on->step, on->base, on->part);
    if (!late && (!there || !simulated_chance(s, FETCHED_PER_STEP)))
        return;
    on->is_on = false;
    if (late && on->restores) {
        simulated_end(s, simulated_ps_process(p), false);
        return;
    }
    if (!late && on->base &&
        copies_find(&s->copies[on->from], on->base, on->part, &base))
        copies_put(&s->copies[p], base);
    if (!late && copies_find(&s->copies[on->from], on->step, on->part, &copy))
        copies_put(&s->copies[p], copy);
    if (on->restores)
        load(s, p, on->step);
    else
        report(s, p, on->step, true, late);
}

bool simulated_copies_step(struct simulated *s, uint32_t p) {
    const struct simulated_fetch *on = &s->ps[p].fetch;
    if (on->is_on)
        take_pieces(s, p);
    return s->processes[simulated_ps_process(p)].running &&
           (!on->is_on || !on->restores);
}

void simulated_copies_joined(struct simulated *s, uint32_t p,
                             const struct simulated_control *join) {
    struct membership_copies *held = &s->chief.held[p];
    held->count = (uint32_t)join->round;
    for (uint32_t i = 0; i < held->count; i++) {
        held->list[i].step = join->values[i];
        held->list[i].part = (uint32_t)join->versions[i];
    }
    if (!s->chief.is_fresh || join->id <= s->chief.lineage.copy)
        return;
    s->chief.lineage.copy = join->id;
    s->chief.lineage.run = join->step;
    s->chief.lineage.copy_base = join->complete_base;
}

void simulated_copies_adopted(struct simulated *s) {
    uint64_t step;
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        simulated_copies_joined(
            s, p, &s->chief.adopt.answers[s->scenario.num_ranks + p]);
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        for (uint32_t i = 0; i < s->chief.held[p].count; i++)
            (void)buddies_may_copy(&s->chief.buddies,
                                   s->chief.held[p].list[i].step);
    step = s->memory.step = s->chief.lineage.copy;
    memcpy(s->memory.values, s->truth.copied[step], sizeof s->memory.values);
}

static bool has_part(const struct simulated *s, uint32_t p, uint32_t part) {
    const struct simulated_lineage *lineage = &s->chief.lineage;
    const struct membership_copies *held = &s->chief.held[p];
    return membership_has_copy(held, lineage->copy, part) &&
           (!lineage->copy_base ||
            membership_has_copy(held, lineage->copy_base, part));
}

/* As membership_find_copy. */
static uint32_t find_holder(const struct simulated *s, uint32_t part) {
    uint32_t p = 0;
    if (has_part(s, part, part))
        return part;
    while (p < s->scenario.num_ps && !has_part(s, p, part))
        p++;
    return p;
}

static bool find_all(struct simulated *s, struct simulated_control *plan) {
    const struct simulated_lineage *lineage = &s->chief.lineage;
    s->placed_as[s->chief.run] = s->placed_as[lineage->run];
    for (uint32_t p = 0; p < simulated_coordinator_num_parts(s); p++) {
        plan->versions[p] = find_holder(s, p);
        if (plan->versions[p] < s->scenario.num_ps)
            continue;
        s->placed_as[s->chief.run] = (uint32_t)s->chief.run;
        return false;
    }
    return true;
}

void simulated_copies_choose(struct simulated *s,
                             struct simulated_control *plan) {
    struct simulated_lineage *lineage = &s->chief.lineage;
    bool older = simulated_has_fault(s, SIMULATION_OLDER_START);
    plan->memory =
        lineage->copy &&
        buddies_are_chosen(lineage->copy, lineage->in_vain, s->disk.step > 0,
                           s->disk.step) != older &&
        find_all(s, plan);
    simulated_oracle_chosen(s, plan->memory);
    s->start = s->disk;
    if (!plan->memory || !simulated_has_fault(s, SIMULATION_OLD_BASE))
        lineage->base = plan->memory ? 0 : s->disk.base;
    plan->base = lineage->base;
    if (plan->memory) {
        uint64_t step = s->start.step = s->memory.step = lineage->copy;
        memcpy(s->start.values, s->truth.copied[step], sizeof s->start.values);
        plan->round = lineage->run;
        plan->complete_base = lineage->copy_base;
    }
    s->run_schedule.buddy_steps =
        simulated_coordinator_num_parts(s) > 1 ? s->scenario.buddy_steps : 0;
    if (plan->memory)
        return;
    lineage->copy = lineage->copy_base = s->memory.step = 0;
}

static void fill_complete(const struct simulated *s,
                          struct simulated_control *order) {
    const struct buddies_base *base = &s->chief.buddies.base;
    order->clock = s->chief.lineage.copy;
    order->complete_base = s->chief.lineage.copy_base;
    order->whole = !base->step || base->is_old;
}

static void order_next(struct simulated *s) {
    bool one = simulated_has_fault(s, SIMULATION_COPY_BASE_ON_ONE_PS);
    const struct buddies_set *set = buddies_order(&s->chief.buddies, s->now);
    for (uint32_t p = 0; set && p < set->num_ps; p++) {
        struct simulated_control order = {.id = set->step,
                                          .base = one ? 0 : set->base,
                                          .number = (p + set->num_ps - 1) %
                                                    set->num_ps};
        fill_complete(s, &order);
        if (!set->parts[order.number].written)
            simulated_fail(s,
                           "the part of ps %llu of step %llu is ordered "
                           "before it is there",
                           (unsigned long long)order.number,
                           (unsigned long long)set->step);
        simulated_chief_send(s, s->scenario.num_ranks + p, SIMULATED_COPY_ORDER,
                             &order);
    }
}

static struct buddies_set *set_of(struct simulated *s, uint64_t step) {
    struct buddies_set *set = buddies_find(&s->chief.buddies, step);
    return set ? set
               : buddies_begin(&s->chief.buddies, step,
                               simulated_coordinator_num_parts(s),
                               s->scenario.num_ranks, s->now);
}

void simulated_copies_begin(struct simulated *s) {
    uint64_t every = s->run_schedule.buddy_steps;
    struct buddies_set *set;
    s->chief.buddies.every_seen = every ? s->start.step / every : 0;
    s->chief.buddies.newest = 0;
    s->chief.buddies.base = (struct buddies_base){
        .step = s->chief.lineage.copy_base, .is_old = true};
    if (!every || !s->chief.lineage.copy ||
        !(set = set_of(s, s->chief.lineage.copy)))
        return;
    set->base = s->chief.lineage.copy_base;
    for (uint32_t p = 0; p < set->num_ps; p++)
        set->parts[p].written = true;
    order_next(s);
}

bool simulated_copies_are_due(struct simulated *s) {
    struct run_buddies *buddies = &s->chief.buddies;
    uint64_t every = s->run_schedule.buddy_steps,
             step = simulated_chief_step_reached(s);
    return every && !simulated_synchronous(s) && s->chief.began &&
           !buddies->ordered && step < s->scenario.total &&
           buddies_is_due(buddies, every, step);
}

static void tell_complete(struct simulated *s) {
    struct simulated_control sent = {.round = s->chief.lineage.run};
    fill_complete(s, &sent);
    simulated_chief_send_ps(s, SIMULATED_COPY_ORDER, &sent);
}

/* As choose_base; how much has changed is a matter of chance. */
static void choose(struct simulated *s, const struct buddies_set *set) {
    struct buddies_base *base = &s->chief.buddies.base;
    if (set->base)
        base->is_old |= simulated_chance(s, OLD_BASES);
    else
        *base = (struct buddies_base){.step = set->step};
}

static void complete(struct simulated *s, struct buddies_set *set) {
    simulated_trace(s, "chief: copy %llu is in memory",
                    (unsigned long long)set->step);
    simulated_oracle_copied(s, set->step);
    s->copied++;
    if (s->chief.lineage.copy != set->step)
        choose(s, set);
    s->chief.lineage.copy = set->step;
    s->chief.lineage.run = s->chief.run;
    s->chief.lineage.copy_base = set->base;
    buddies_forget(&s->chief.buddies, set);
    tell_complete(s);
    order_next(s);
}

static void take_part(struct simulated *s, uint32_t p, bool fetched,
                      struct buddies_set *set) {
    if (!fetched)
        set->parts[p].written = true;
    else if (set->step == s->chief.buddies.ordered)
        set->parts[p].fetched = true;
    order_next(s);
    bool one = simulated_has_fault(s, SIMULATION_COPY_ON_ONE_PS);
    if (set->step == s->chief.buddies.ordered &&
        (one || buddies_is_on_two(set)))
        complete(s, set);
}

void simulated_copies_receive(struct simulated *s, uint32_t p,
                              const struct simulated_control *sent) {
    struct buddies_set *set =
        sent->written ? buddies_find(&s->chief.buddies, sent->id) : NULL;
    if (s->chief.phase != SIMULATED_TRAINING || !s->run_schedule.buddy_steps)
        return;
    if (!sent->written && sent->id > s->chief.lineage.copy)
        set = set_of(s, sent->id);
    if (!set)
        return;
    bool is_based =
        sent->written || buddies_take_base(&s->chief.buddies, set, sent->base);
    if (!sent->failed && is_based) {
        take_part(s, p, sent->written, set);
        return;
    }
    buddies_forget(&s->chief.buddies, set);
    struct simulated_control news = {0};
    fill_complete(s, &news);
    if (!is_based)
        simulated_chief_send(s, s->scenario.num_ranks + p, SIMULATED_COPY_ORDER,
                             &news);
    order_next(s);
}

void simulated_copies_check(struct simulated *s) {
    struct run_buddies *buddies = &s->chief.buddies;
    const struct buddies_set *set =
        buddies->ordered ? buddies_find(buddies, buddies->ordered) : NULL;
    if (buddies->ordered && !set)
        simulated_fail(s, "the copy that is ordered is forgotten");
    else if (set && s->now - set->since > SIMULATED_STEP_LIMIT)
        simulated_fail(s, "a copy is under way since %.3f s",
                       time_to_seconds(set->since));
}

void simulated_copies_close(struct simulated *s) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (s->chief.buddies.sets[i].step)
            buddies_forget(&s->chief.buddies, &s->chief.buddies.sets[i]);
}
