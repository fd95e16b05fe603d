/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_chief.h"

#include "tests/simulation/simulated_adopt.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_copies.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_net.h"
#include "tests/simulation/simulated_oracle.h"

#include <math.h>
#include <string.h>

static const int64_t TURN = TIME_S / 5;
static const int64_t STOP_LIMIT = 5 * TIME_S;

void simulated_chief_open(struct simulated *s, bool keeps) {
    static struct simulated_cut cuts[SIMULATED_CUTS];
    struct simulated_chief *chief = &s->chief;
    struct simulated_lineage lineage = chief->lineage;
    bool cuts_kept = keeps && simulated_has_fault(s, SIMULATION_CUTS_KEPT);
    if (cuts_kept)
        memcpy(cuts, chief->cuts, sizeof cuts);
    memset(chief, 0, sizeof *chief);
    if (cuts_kept)
        memcpy(chief->cuts, cuts, sizeof cuts);
    if (keeps)
        chief->lineage = lineage;
    chief->is_fresh = !keeps && s->runs;
    chief->run = s->processes[0].incarnation + 1000;
    s->placed_as[chief->run] = (uint32_t)chief->run;
    chief->open = roster_open(&chief->roster, false, s->scenario.num_ranks,
                              s->scenario.num_ps, SIMULATED_PEER_LIMIT);
    chief->since = chief->saved_at = s->now;
    simulated_net_wake(s, 0, s->now);
}

void simulated_chief_close(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    for (uint32_t i = 0; chief->open && i < chief->roster.count; i++)
        channel_close(&chief->sessions[i].channel);
    if (chief->open)
        roster_close(&chief->roster);
    simulated_copies_close(s);
    simulated_adopt_close(s);
    chief->open = false;
}

/* The process that slot I is for. */
static uint32_t process_of(const struct simulated *s, uint32_t i) {
    uint32_t ranks = s->scenario.num_ranks;
    return i < ranks ? simulated_worker_process(s, i)
                     : simulated_ps_process(i - ranks);
}

static uint32_t slot_of(const struct simulated *s, uint32_t process) {
    uint32_t num_ps = s->scenario.num_ps;
    return process > num_ps ? process - 1 - num_ps
                            : s->scenario.num_ranks + process - 1;
}

static void sign(const struct simulated *s, struct simulated_message *message) {
    message->run = s->chief.run;
    message->incarnation = s->processes[0].incarnation;
}

static void send_kept(struct simulated *s, uint32_t i) {
    struct simulated_session *box = &s->chief.sessions[i];
    struct simulated_message message;
    const struct channel_entry *entry;
    while (simulated_member_due(s, &box->channel, &message, &entry)) {
        sign(s, &message);
        simulated_net_down(s, &box->peer, process_of(s, i), &message);
    }
}

void simulated_chief_send(struct simulated *s, uint32_t i,
                          enum simulated_kind kind,
                          const struct simulated_control *control_message) {
    if (s->chief.roster.slots[i].state != ROSTER_HELD)
        return;
    simulated_member_enqueue(s, &s->chief.sessions[i].channel, kind,
                             control_message);
    send_kept(s, i);
}

void simulated_chief_send_ps(struct simulated *s, enum simulated_kind kind,
                             const struct simulated_control *control_message) {
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        simulated_chief_send(s, s->scenario.num_ranks + p, kind,
                             control_message);
}

static void enter(struct simulated *s, enum simulated_phase phase) {
    s->chief.phase = phase;
    s->chief.since = s->now;
}

void simulated_chief_stop(struct simulated *s, bool ok, const char *text) {
    struct simulated_control control_message = {.ok = ok,
                                                .back = s->chief.goes_back};
    if (s->chief.phase >= SIMULATED_STOPPING)
        return;
    simulated_trace(s, "chief: stop: %s", text);
    s->chief.ok = ok;
    for (uint32_t i = 0; i < s->chief.roster.count; i++)
        simulated_chief_send(s, i, SIMULATED_STOP, &control_message);
    enter(s, SIMULATED_STOPPING);
}

uint64_t simulated_chief_step_reached(const struct simulated *s) {
    uint64_t step = s->chief.start;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (s->chief.trainers[r].clock > step)
            step = s->chief.trainers[r].clock;
    return step;
}

static void fill_view(const struct simulated *s,
                      struct simulated_control *view) {
    view->number = s->chief.view;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_trainer *trainer = &s->chief.trainers[r];
        bool done = trainer->finished &&
                    !simulated_has_fault(s, SIMULATION_WAITS_FOR_FINISHED);
        struct membership_view_entry entry = membership_view_make_entry(
            s->chief.roster.slots[r].incarnation, trainer->from, done);
        view->slots[r] =
            (struct gate_slot){entry.incarnation, entry.from, entry.live};
    }
}

static void tell_trainers(struct simulated *s) {
    struct simulated_control view = {0};
    uint64_t oldest = s->chief.view;
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        if (s->chief.sessions[s->scenario.num_ranks + p].view < oldest)
            oldest = s->chief.sessions[s->scenario.num_ranks + p].view;
    if (simulated_has_fault(s, SIMULATION_VIEW_SENT_EARLY))
        oldest = s->chief.view;
    s->chief.view_seen = oldest == s->chief.view;
    fill_view(s, &view);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        struct simulated_trainer *trainer = &s->chief.trainers[r];
        if (!membership_view_may_start(trainer->from, trainer->viewed, oldest,
                                       s->chief.view))
            continue;
        trainer->viewed = true;
        simulated_chief_send(s, r, SIMULATED_VIEW, &view);
    }
}

void simulated_chief_view(struct simulated *s) {
    struct simulated_control view = {0};
    s->chief.view++;
    s->chief.view_seen = false;
    fill_view(s, &view);
    simulated_chief_send_ps(s, SIMULATED_VIEW, &view);
    if (simulated_has_fault(s, SIMULATION_VIEW_SENT_EARLY))
        tell_trainers(s);
}

static void gone(struct simulated *s, struct roster_slot *slot) {
    struct simulated_chief *chief = &s->chief;
    bool ps = slot->role == CLUSTER_PS;
    simulated_trace(s, "chief: %s %u is gone", ps ? "ps" : "rank", slot->index);
    if (!ps) {
        chief->trainers[slot->rank].from = 0;
        chief->trainers[slot->rank].finished = false;
        s->truth.whole = false;
        s->deaths++;
    }
    roster_remove(slot);
    if (chief->phase >= SIMULATED_STOPPING || chief->phase == SIMULATED_JOINING)
        return;
    chief->goes_back = s->scenario.rewinds && !chief->interrupted &&
                       (ps || chief->phase == SIMULATED_READYING);
    if (ps || chief->phase == SIMULATED_READYING)
        simulated_chief_stop(s, false, "somebody is gone");
    else if (chief->phase == SIMULATED_TRAINING)
        simulated_chief_view(s);
}

static void refuse(struct simulated *s, const struct simulated_peer *from,
                   uint32_t process) {
    struct simulated_message refusal = {
        .kind = SIMULATED_REFUSAL, .control_message = {.term = s->chief.term}};
    sign(s, &refusal);
    simulated_net_down(s, from, process, &refusal);
}

void simulated_chief_send_back(struct simulated *s,
                               const struct simulated_peer *from, uint32_t i) {
    struct simulated_message refusal = {
        .kind = SIMULATED_REFUSAL,
        .control_message = {.back = true, .term = s->chief.term}};
    sign(s, &refusal);
    simulated_net_down(s, from, process_of(s, i), &refusal);
}

void simulated_chief_lead_on(struct simulated *s,
                             const struct simulated_control *adopted) {
    enter(s, SIMULATED_TRAINING);
    s->chief.saved_at = s->now;
    for (uint32_t i = 0; i < s->chief.roster.count; i++)
        simulated_chief_send(s, i, SIMULATED_ADOPTED, adopted);
    simulated_chief_view(s);
}

static void join(struct simulated *s, const struct simulated_peer *from,
                 uint32_t process, const struct simulated_message *message) {
    const struct simulated_control nothing = {0};
    uint32_t i = slot_of(s, process);
    struct simulated_chief *chief = &s->chief;
    struct roster_slot *slot = &chief->roster.slots[i];
    struct roster_claim claim = {message->incarnation, 0, 0, "", "", 0};
    if (chief->goes_back)
        return; /* it asks again */
    if (chief->phase >= SIMULATED_FINISHING ||
        (slot->role == CLUSTER_PS && chief->phase > SIMULATED_JOINING &&
         slot->state != ROSTER_HELD)) {
        refuse(s, from, process);
        return;
    }
    enum roster_claim_result verdict = roster_claim(slot, &claim, s->now);
    if (verdict == ROSTER_REFUSED || verdict == ROSTER_REMOVED)
        refuse(s, from, process);
    if (verdict == ROSTER_ALREADY_HELD)
        chief->sessions[i].peer = *from;
    if (verdict != ROSTER_GRANTED)
        return;
    if (slot->role != CLUSTER_PS)
        chief->trainers[i] = (struct simulated_trainer){0};
    else
        simulated_copies_joined(s, slot->index, &message->control_message);
    channel_close(&chief->sessions[i].channel);
    chief->sessions[i] = (struct simulated_session){.peer = *from};
    simulated_chief_send(s, i, SIMULATED_WELCOME, &nothing);
}

static bool all_ready(const struct simulated *s, uint32_t first,
                      uint32_t count) {
    for (uint32_t i = first; i < first + count; i++)
        if (s->chief.roster.slots[i].state != ROSTER_HELD ||
            !s->chief.sessions[i].ready)
            return false;
    return true;
}

/* With staleness, clocks are shares of the step. */
static uint64_t first_clock(const struct simulated *s) {
    uint64_t start = s->start.step;
    return (simulated_synchronous(s) ? start : start / s->scenario.num_ranks) +
           1;
}

/* All are here, the workers have declared: the plan. */
static void plan(struct simulated *s) {
    struct simulated_control control_message = {0};
    simulated_copies_choose(s, &control_message);
    control_message.step = s->run_schedule.start = s->chief.start =
        s->start.step;
    s->returns += control_message.memory;
    s->truth.whole = !s->scenario.backup_workers;
    s->runs++;
    simulated_oracle_begin(s);
    enter(s, SIMULATED_READYING);
    if (!control_message.memory)
        memcpy(control_message.values, s->start.values,
               sizeof control_message.values);
    simulated_chief_send_ps(s, SIMULATED_PLAN, &control_message);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        s->chief.trainers[r].planned = true;
}

static void first_view(struct simulated *s) {
    simulated_oracle_placed(s);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        s->chief.trainers[r].from = first_clock(s);
        s->chief.trainers[r].clock = first_clock(s) - 1;
    }
    enter(s, SIMULATED_TRAINING);
    simulated_chief_view(s);
    simulated_copies_begin(s);
}

/* With staleness a joiner starts at once, at the lowest live clock. */
static void let_in(struct simulated *s, uint32_t rank) {
    struct simulated_chief *chief = &s->chief;
    struct simulated_trainer *trainer = &chief->trainers[rank];
    uint64_t lowest = UINT64_MAX;
    trainer->planned = true;
    trainer->planned_at = s->now;
    s->joiners++;
    if (simulated_synchronous(s))
        return;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (chief->trainers[r].viewed && !chief->trainers[r].finished &&
            chief->roster.slots[r].state == ROSTER_HELD &&
            chief->trainers[r].clock < lowest)
            lowest = chief->trainers[r].clock;
    if (lowest == UINT64_MAX)
        lowest = first_clock(s) - 1;
    trainer->from = lowest + 1;
    trainer->clock = lowest;
    simulated_chief_view(s);
}

static void take_sums(struct simulated *s, uint32_t p,
                      const struct simulated_control *sums) {
    struct simulated_control norm = {.round = sums->round};
    uint32_t next = 0;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        if (simulated_place(s, s->chief.run, b) == p)
            s->chief.sums[b] = sums->sums[next++];
    if (++s->chief.sums_received < simulated_coordinator_num_parts(s))
        return;
    s->chief.sums_received = 0;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        norm.norm += s->chief.sums[b];
    norm.norm = sqrt(norm.norm);
    simulated_chief_send_ps(s, SIMULATED_NORM, &norm);
}

static void finished(struct simulated *s, uint32_t rank,
                     const struct simulated_control *control_message) {
    struct simulated_trainer *trainer = &s->chief.trainers[rank];
    trainer->finished = true;
    if (control_message->clock > trainer->clock)
        trainer->clock = control_message->clock;
    if (s->chief.phase == SIMULATED_TRAINING)
        simulated_chief_view(s);
}

static void take_worker(struct simulated *s, uint32_t rank,
                        const struct simulated_message *message) {
    struct simulated_trainer *trainer = &s->chief.trainers[rank];
    const struct simulated_control *control_message = &message->control_message;
    if (message->kind == SIMULATED_READY) {
        s->chief.sessions[rank].ready = true;
        if (s->chief.phase == SIMULATED_TRAINING)
            let_in(s, rank);
    } else if (message->kind == SIMULATED_FINISHED) {
        finished(s, rank, control_message);
    } else if (message->kind == SIMULATED_HEARTBEAT && trainer->viewed &&
               control_message->clock) {
        s->chief.began |= control_message->clock > trainer->clock;
        trainer->clock = control_message->clock;
    }
}

static void take_ps(struct simulated *s, uint32_t p,
                    const struct simulated_message *message) {
    uint32_t i = s->scenario.num_ranks + p;
    struct simulated_session *box = &s->chief.sessions[i];
    const struct simulated_control *control_message = &message->control_message;
    if (message->kind == SIMULATED_READY) {
        box->ready = true;
        if (s->chief.phase == SIMULATED_READYING &&
            all_ready(s, s->scenario.num_ranks, s->scenario.num_ps))
            first_view(s);
    } else if (message->kind == SIMULATED_CUT_POSITION) {
        simulated_coordinator_ps_answered(s, p, control_message);
    } else if (message->kind == SIMULATED_CUT_DONE) {
        simulated_coordinator_ps_done(s, p, control_message);
    } else if (message->kind == SIMULATED_COPY_REPORT) {
        simulated_copies_receive(s, p, control_message);
    } else if (message->kind == SIMULATED_SUMS) {
        take_sums(s, p, control_message);
    } else if (message->kind == SIMULATED_HEARTBEAT &&
               box->view != control_message->number) {
        box->view = control_message->number;
        if (s->chief.phase == SIMULATED_TRAINING && !s->chief.view_seen)
            tell_trainers(s);
    }
}

static void goodbye(struct simulated *s, struct roster_slot *slot) {
    if (s->chief.phase == SIMULATED_STOPPING)
        roster_remove(slot);
    else
        gone(s, slot);
}

/* As chief/control/control_server.c sorts what comes. */
void simulated_chief_receive(struct simulated *s,
                             const struct simulated_peer *from,
                             uint32_t process,
                             const struct simulated_message *message) {
    uint32_t i = slot_of(s, process);
    struct roster_slot *slot = &s->chief.roster.slots[i];
    struct simulated_session *box = &s->chief.sessions[i];
    if (simulated_adopt_receive(s, from, i, message))
        return;
    if (message->kind == SIMULATED_JOIN) {
        join(s, from, process, message);
        return;
    }
    if (slot->state != ROSTER_HELD ||
        slot->incarnation != message->incarnation) {
        refuse(s, from, process);
        return;
    }
    if (message->run != s->chief.run ||
        message->control_message.term != s->chief.term)
        return; /* on a connection to the chief before */
    box->peer = *from;
    roster_mark_alive(slot, s->now);
    channel_acknowledge(&box->channel, message->control_message.ack);
    if (message->control_message.seq &&
        !channel_accept(&box->channel, message->control_message.seq) &&
        !simulated_has_fault(s, SIMULATION_COMMANDS_TWICE))
        return;
    if (message->kind == SIMULATED_GOODBYE)
        goodbye(s, slot);
    else if (i < s->scenario.num_ranks)
        take_worker(s, i, message);
    else
        take_ps(s, i - s->scenario.num_ranks, message);
}

static uint32_t count_trainers(const struct simulated *s, bool in_loop) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_trainer *trainer = &s->chief.trainers[r];
        bool held = s->chief.roster.slots[r].state == ROSTER_HELD;
        count += held && (in_loop ? trainer->from && !trainer->finished
                                  : trainer->finished);
    }
    return count;
}

static void look_for_end(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    if (count_trainers(s, true) || !chief->view)
        chief->no_trainer_since = 0;
    else if (count_trainers(s, false))
        enter(s, SIMULATED_FINISHING);
    else if (!chief->no_trainer_since)
        chief->no_trainer_since = s->now;
    else if (s->now - chief->no_trainer_since > 2 * SIMULATED_PEER_LIMIT)
        simulated_chief_stop(s, false, "no trainer is left");
}

static void watch(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    bool joins = false, save;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_trainer *trainer = &chief->trainers[r];
        bool waits = trainer->planned && !trainer->from &&
                     chief->roster.slots[r].state == ROSTER_HELD;
        joins |= waits && simulated_synchronous(s);
        if (waits && s->now - trainer->planned_at > SIMULATED_STEP_LIMIT)
            simulated_fail(s, "rank %u waits to be let in since %.3f s", r,
                           time_to_seconds(trainer->planned_at));
    }
    if (simulated_coordinator_is_agreeing(s) || !chief->view_seen)
        return;
    save = chief->began && s->scenario.save_every &&
           s->now - chief->saved_at > s->scenario.save_every;
    if (save)
        chief->saved_at = s->now;
    if (save || joins)
        simulated_coordinator_begin(s, save, joins, false);
    else if (simulated_copies_are_due(s))
        simulated_coordinator_begin_copy(s);
}

static void finish(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    if (simulated_coordinator_is_pending(s))
        return;
    if (chief->last_cut || s->disk.step >= s->scenario.total)
        simulated_chief_stop(s, true, "done");
    else
        chief->last_cut = simulated_coordinator_begin(s, true, false, true);
}

void simulated_chief_interrupt(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    if (chief->phase != SIMULATED_TRAINING || chief->interrupted)
        return;
    simulated_trace(s, "chief: a signal");
    chief->interrupted = s->now;
}

static void end_interrupted(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    bool live = count_trainers(s, true);
    if (simulated_synchronous(s) && !live && !count_trainers(s, false))
        simulated_chief_stop(s, false, "a signal, and nobody trains");
    else if (!chief->last_cut && !simulated_coordinator_is_agreeing(s))
        chief->last_cut = simulated_coordinator_begin(s, true, false, !live);
    else if (chief->last_cut && !simulated_coordinator_is_pending(s))
        simulated_chief_stop(s, false, "a signal");
}

/* As rewind_end. */
static void go_back(struct simulated *s) {
    struct simulated_lineage *lineage = &s->chief.lineage;
    uint64_t reached = simulated_chief_step_reached(s);
    bool further = reached > lineage->furthest;
    lineage->in_vain = further ? 0 : lineage->in_vain + 1;
    if (further)
        lineage->furthest = reached;
    simulated_go_back(s, 0);
}

static void stop(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    if (roster_count(&chief->roster, CLUSTER_ROLES, ROSTER_HELD) == 0 ||
        s->now - chief->since > STOP_LIMIT) {
        if (chief->goes_back)
            go_back(s);
        else
            simulated_end(s, 0, chief->ok);
    }
}

static void end_step(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    if (chief->phase == SIMULATED_STOPPING)
        stop(s);
    else if (chief->interrupted)
        end_interrupted(s);
    else if (chief->phase == SIMULATED_TRAINING)
        look_for_end(s);
    else if (chief->phase == SIMULATED_FINISHING)
        finish(s);
}

static void send_all(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    for (uint32_t i = 0; chief->open && i < chief->roster.count; i++) {
        struct simulated_session *box = &chief->sessions[i];
        struct simulated_message heartbeat = {.kind = SIMULATED_HEARTBEAT};
        if (chief->roster.slots[i].state != ROSTER_HELD)
            continue;
        send_kept(s, i);
        if (s->now - box->heartbeat_sent < SIMULATED_HEARTBEAT_INTERVAL)
            continue;
        box->heartbeat_sent = s->now;
        heartbeat.control_message.ack = box->channel.received;
        sign(s, &heartbeat);
        simulated_net_down(s, &box->peer, process_of(s, i), &heartbeat);
    }
}

void simulated_chief_step(struct simulated *s) {
    struct simulated_chief *chief = &s->chief;
    struct roster_slot *slot;
    simulated_adopt_step(s);
    while ((slot = roster_find_expired(&chief->roster, s->now)))
        gone(s, slot);
    if (chief->phase == SIMULATED_JOINING &&
        all_ready(s, 0, s->scenario.num_ranks) &&
        roster_count(&chief->roster, CLUSTER_ROLES, ROSTER_HELD) ==
            chief->roster.count)
        plan(s);
    if (chief->phase == SIMULATED_TRAINING && !chief->interrupted)
        watch(s);
    simulated_coordinator_check(s);
    simulated_copies_check(s);
    end_step(s);
    send_all(s);
    if (s->processes[0].running)
        simulated_net_wake(s, 0, s->now + TURN);
}
