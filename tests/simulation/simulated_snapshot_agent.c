/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_snapshot_agent.h"

#include "tests/simulation/simulated_copies.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_oracle.h"

#include <string.h>

enum { WRITTEN_PER_HEARTBEAT = 700 }; /* chance of 1000 */

static struct simulated_snapshot *find(struct simulated_ps *ps, uint64_t id) {
    for (int i = 0; i < SIMULATED_SNAPSHOTS; i++)
        if (ps->snapshots[i].used && ps->snapshots[i].id == id)
            return &ps->snapshots[i];
    return NULL;
}

static struct simulated_snapshot *begin(struct simulated *s, uint32_t p,
                                        uint64_t id) {
    for (int i = 0; i < SIMULATED_SNAPSHOTS; i++) {
        struct simulated_snapshot *snapshot = &s->ps[p].snapshots[i];
        if (snapshot->used)
            continue;
        *snapshot = (struct simulated_snapshot){
            .id = id, .order = ++s->ps[p].begun, .used = true};
        return snapshot;
    }
    simulated_fail(s, "ps %u has no room for snapshot %llx", p,
                   (unsigned long long)id);
    return NULL;
}

/* As proto/messages/rejoin.c: of a planned cut, for a chief to come. */
static void keep_report(struct simulated_ps *ps,
                        const struct simulated_control *report) {
    if (report->id >= SIMULATED_REQUESTED)
        return;
    if (ps->num_reports == SIMULATED_SNAPSHOTS)
        memmove(ps->reports, ps->reports + 1,
                --ps->num_reports * sizeof *ps->reports);
    ps->reports[ps->num_reports++] = *report;
}

static void tell_done(struct simulated *s, uint32_t p,
                      const struct simulated_snapshot *snapshot, bool written,
                      bool failed) {
    const struct simulated_ps *ps = &s->ps[p];
    bool late = simulated_has_fault(s, SIMULATION_ROWS_HELD_LATE);
    struct simulated_control control_message = {.id = snapshot->id,
                                                .written = written,
                                                .failed = failed,
                                                .base = snapshot->base,
                                                .known_from = ps->known_from};
    for (uint32_t b = 0; b < ps->count; b++) {
        control_message.values[b] =
            late && simulated_is_partition(s, ps->ids[b]) ? ps->values[b]
                                                          : snapshot->values[b];
        control_message.versions[b] = snapshot->versions[b];
    }
    keep_report(&s->ps[p], &control_message);
    simulated_member_send_reliable(s, &s->ps[p].member, simulated_ps_process(p),
                                   SIMULATED_CUT_DONE, &control_message);
}

static bool busy(const struct simulated_ps *ps) {
    for (int i = 0; i < SIMULATED_SNAPSHOTS; i++)
        if (ps->snapshots[i].used && ps->snapshots[i].writing)
            return true;
    return false;
}

static struct simulated_snapshot *begin_planned(struct simulated *s, uint32_t p,
                                                uint64_t round) {
    struct simulated_ps *ps = &s->ps[p];
    if (ps->skipped == round)
        return NULL;
    if (busy(ps) && round != s->scenario.total) {
        ps->skipped = round;
        if (run_schedule_copies(&s->run_schedule, round))
            simulated_copies_skipped(s, p, round);
        else
            tell_done(s, p, &(struct simulated_snapshot){.id = round}, false,
                      true);
        return NULL;
    }
    struct simulated_snapshot *snapshot = begin(s, p, round);
    if (!snapshot)
        return NULL;
    snapshot->writing = true;
    if (run_schedule_saves_delta(&s->run_schedule, round))
        snapshot->base = ps->base;
    return snapshot;
}

static void add(struct simulated *s, uint32_t p,
                struct simulated_snapshot *snapshot, uint32_t b,
                uint64_t version) {
    struct simulated_ps *ps = &s->ps[p];
    struct ledger_entry row[SIMULATED_RANKS];
    update_core_ledger_row(ps->update_core, b, version, row);
    snapshot->has[b] = true;
    snapshot->values[b] = ps->values[b];
    snapshot->versions[b] = version;
    snapshot->added++;
    if (simulated_has_fault(s, SIMULATION_ROW_SAVED_LATE))
        ps->late_rows |= UINT64_C(1) << b;
    else
        simulated_oracle_saved(s, p, b, version, row);
}

void simulated_snapshot_agent_snapshot(struct simulated *s, uint32_t p,
                                       uint32_t b, uint64_t version) {
    struct simulated_ps *ps = &s->ps[p];
    bool asked = version == ps->asked_round;
    uint64_t id = asked ? ps->asked_id : version;
    struct simulated_snapshot *snapshot = find(ps, id);
    if (asked && ps->asked_void)
        return;
    if (!snapshot && asked) {
        snapshot = begin(s, p, id);
        if (snapshot)
            snapshot->writing = ps->asked_write;
    } else if (!snapshot) {
        snapshot = begin_planned(s, p, version);
    }
    if (!snapshot || snapshot->has[b])
        return;
    add(s, p, snapshot, b, version);
    if (asked && snapshot->added == ps->count)
        tell_done(s, p, snapshot, false, false);
}

static void cut_now(struct simulated *s, uint32_t p, uint64_t id) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_snapshot *snapshot = begin(s, p, id);
    for (uint32_t b = 0; snapshot && b < ps->count; b++)
        add(s, p, snapshot, b, update_core_version(ps->update_core, b));
    if (snapshot)
        tell_done(s, p, snapshot, false, false);
}

static void lift(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    if (!ps->frozen || simulated_has_fault(s, SIMULATION_FREEZE_STAYS))
        return;
    ps->frozen = false;
    ps->void_id = ps->frozen_for;
    update_core_set_snapshot_round(ps->update_core, 0);
}

/* As snapshot_agent_forget: the chief has none of the cuts that were asked for.
 */
static void forget(struct simulated *s, uint32_t p,
                   const struct simulated_control *adopted) {
    struct simulated_ps *ps = &s->ps[p];
    if (!simulated_has_fault(s, SIMULATION_FREEZE_STAYS)) {
        ps->frozen = false;
        update_core_set_snapshot_round(ps->update_core, 0);
    }
    ps->void_id = 0;
    ps->asked_void = ps->asked_id && find(ps, ps->asked_id);
    if (!ps->asked_void)
        ps->asked_id = ps->asked_round = 0;
    for (int i = 0; i < SIMULATED_SNAPSHOTS; i++)
        ps->snapshots[i].used &= ps->snapshots[i].id < SIMULATED_REQUESTED;
    for (uint32_t i = 0; i < ps->num_reports; i++)
        if (ps->reports[i].id > adopted->step &&
            !simulated_has_fault(s, SIMULATION_REPORTS_LOST))
            simulated_member_send_reliable(s, &ps->member,
                                           simulated_ps_process(p),
                                           SIMULATED_CUT_DONE, &ps->reports[i]);
}

static void cut(struct simulated *s, uint32_t p,
                const struct simulated_control *order) {
    struct simulated_ps *ps = &s->ps[p];
    if (!ps->count)
        return;
    if (order->id == ps->void_id) {
        tell_done(s, p, &(struct simulated_snapshot){.id = order->id}, false,
                  true);
        return;
    }
    struct simulated_snapshot *held = find(ps, order->id);
    if (held && order->write) {
        held->writing = true;
        held->copied = order->memory ? order->step : 0;
        return;
    }
    if (held && order->id >= SIMULATED_REQUESTED)
        return;
    if (order->id >= SIMULATED_REQUESTED && !order->round) {
        cut_now(s, p, order->id);
        return;
    }
    ps->asked_id = order->id;
    ps->asked_round = order->round;
    ps->asked_write = order->write;
    ps->asked_void = ps->frozen = false;
    update_core_set_snapshot_round(ps->update_core, order->round);
}

static void ask(struct simulated *s, uint32_t p, uint64_t id) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_control mark = {.id = id};
    if (simulated_has_fault(s, SIMULATION_FREEZE_IGNORED)) {
        mark.clock = update_core_highest(ps->update_core);
    } else {
        mark.clock = update_core_freeze(ps->update_core);
        ps->frozen = true;
        ps->frozen_for = id;
    }
    simulated_member_send_reliable(s, &ps->member, simulated_ps_process(p),
                                   SIMULATED_CUT_POSITION, &mark);
}

void simulated_snapshot_agent_order(struct simulated *s, uint32_t p,
                                    const struct simulated_message *order) {
    struct simulated_snapshot *snapshot;
    if (order->kind == SIMULATED_CUT_QUERY)
        ask(s, p, order->control_message.id);
    else if (order->kind == SIMULATED_CUT)
        cut(s, p, &order->control_message);
    else if (order->kind == SIMULATED_RETAIN)
        s->ps[p].base = order->control_message.base;
    else if (order->kind == SIMULATED_ADOPTED)
        forget(s, p, &order->control_message);
    else if (order->kind == SIMULATED_CUT_END &&
             (snapshot = find(&s->ps[p], order->control_message.id)))
        snapshot->used = false;
}

static void save_late_rows(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    for (uint32_t b = 0; ps->update_core && b < ps->count; b++)
        if (ps->late_rows >> b & 1)
            simulated_oracle_saved(
                s, p, b, 0, ledger_row(update_core_ledger(ps->update_core), b));
    ps->late_rows = 0;
}

static struct simulated_snapshot *first_ordered(struct simulated_ps *ps) {
    struct simulated_snapshot *first = NULL;
    for (int i = 0; i < SIMULATED_SNAPSHOTS; i++) {
        struct simulated_snapshot *snapshot = &ps->snapshots[i];
        if (snapshot->used && snapshot->writing &&
            (!first || snapshot->order < first->order))
            first = snapshot;
    }
    return first;
}

/* The disk takes one after the other. */
void simulated_snapshot_agent_step(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_snapshot *snapshot;
    if (ps->member.orphaned_at)
        lift(s, p);
    save_late_rows(s, p);
    while ((snapshot = first_ordered(ps)) && snapshot->added == ps->count &&
           simulated_chance(s, WRITTEN_PER_HEARTBEAT)) {
        snapshot->writing = false;
        snapshot->used =
            snapshot->id >= SIMULATED_REQUESTED && !snapshot->copied;
        if (run_schedule_copies(&s->run_schedule, snapshot->id))
            snapshot->copied = snapshot->id;
        if (snapshot->copied)
            simulated_copies_written(s, p, snapshot->copied, snapshot);
        else
            tell_done(s, p, snapshot, true, false);
    }
}
