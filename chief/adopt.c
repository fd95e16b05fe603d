/* SPDX-License-Identifier: Apache-2.0 */
/* The members tell what they are and have (Rejoin); the pure core decides. What
 * the chief before has known alone is gone: snapshots that were requested,
 * points that were not written, and parts of evaluations, which are ordered
 * again. */
#include "chief/adopt.h"

#include "chief/control/adoption.h"
#include "chief/control/membership.h"
#include "chief/plan/device_replicas.h"
#include "chief/plan/model_spec.h"
#include "chief/plan/planning.h"
#include "chief/report/metrics.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/kept_states.h"
#include "core/base/time.h"
#include "core/store/dir_lock.h"
#include "proto/plan/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A member that lives has a new connection by then. */
static const int64_t RECONNECT_LIMIT = 2 * TIME_S;

struct adopt {
    struct adoption core;
    struct control_message
        *answers; /* [roster.count]; the controls are owned */
    bool is_decided, is_adopted;
};

void adopt_close(struct run *run) {
    struct adopt *adopt = run->adopt;
    run->adopt = NULL;
    run->is_adopting = false;
    if (!adopt)
        return;
    for (uint32_t p = 0; adopt->answers && p < run->roster.count; p++)
        message_free_control((Capstan__Control **)&adopt->answers[p].control);
    free(adopt->answers);
    adoption_close(&adopt->core);
    free(adopt);
}

/* Those who join count only once that is decided, and then have as long as in a
 * run that goes back. */
static void extend_join_limit(struct run *run, int64_t until_decided) {
    int64_t limit = time_now() - run->opened + until_decided +
                    time_from_seconds(run->job->timeouts.recover);
    if (run->join_limit < limit)
        run->join_limit = limit;
}

static struct adopt *adopt_open(struct run *run) {
    const struct roster *roster = &run->roster;
    const int64_t limit = roster->peer_limit + RECONNECT_LIMIT;
    struct adopt *adopt = calloc(1, sizeof *adopt);
    run->adopt = adopt;
    if (!adopt)
        return NULL;
    adopt->answers = calloc(roster->count + 1, sizeof *adopt->answers);
    if (!adoption_open(&adopt->core, roster->num_ranks, roster->num_ps,
                       limit) ||
        !adopt->answers) {
        adopt_close(run);
        return NULL;
    }
    adopt->core.num_shares = run_num_shares(run);
    run->is_adopting = true;
    extend_join_limit(run, limit);
    if (roster_count(roster, CLUSTER_ROLES, ROSTER_HELD))
        adoption_refuse(&adopt->core, "a process of it has joined anew");
    return adopt;
}

static uint32_t adopt_place(const struct run *run,
                            const struct roster_slot *slot) {
    return (uint32_t)(slot - run->roster.slots);
}

/* Of a ps, as its gate has it. */
static void take_ranks(struct run *run, const Capstan__View *view) {
    struct adoption_rank ranks[PLAN_MAX_TRAINERS];
    for (size_t r = 0; r < view->n_slots; r++)
        ranks[r] = (struct adoption_rank){view->slots[r]->incarnation,
                                          view->slots[r]->from_clock,
                                          view->slots[r]->live};
    adoption_receive_view(&run->adopt->core, view->number, ranks);
}

static void check_answer(struct run *run, const Capstan__Rejoin *rejoin,
                         bool ps) {
    struct adoption *core = &run->adopt->core;
    struct failure why;
    if (ps ? !rejoin->plan : !rejoin->model_spec)
        adoption_refuse(core, ps ? "a ps of it has no plan, or too long a one"
                                 : "a trainer of it has no model, or too long "
                                   "a one");
    else if (ps &&
             (!rejoin->view ||
              message_check_view(rejoin->view, run->roster.num_ranks, &why)))
        adoption_refuse(core, "a ps of it has no view of this cluster");
    else if (ps)
        take_ranks(run, rejoin->view);
}

static void keep_answer(struct run *run, const struct control_message *incoming,
                        const struct roster_slot *slot, int64_t now) {
    uint32_t place = adopt_place(run, slot);
    const Capstan__Control *control = incoming->control;
    struct control_message *kept = &run->adopt->answers[place];
    const Capstan__Rejoin *rejoin = control->join->rejoin;
    struct adoption_answer answer = {
        .run = control->run,
        .incarnation = control->incarnation,
        .term = rejoin->term,
        .share = rejoin->model_spec ? rejoin->model_spec->share_samples : 0,
        .has_begun = rejoin->plan &&
                     rejoin->heartbeat->clock > rejoin->plan->start_step};
    Capstan__Control *copy = message_copy_control(control);
    if (!copy)
        return; /* it asks again */
    message_free_control((Capstan__Control **)&kept->control);
    *kept = *incoming;
    kept->control = copy;
    adoption_receive(&run->adopt->core, place, &answer, now);
    check_answer(run, copy->join->rejoin, slot->role == CLUSTER_PS);
}

/* It was no member when the run was adopted. */
static void answer_late(struct run *run,
                        const struct control_message *incoming) {
    if (incoming->control->run == run->id)
        membership_reject_unknown(run, incoming->peer, incoming->control);
    else
        membership_send_back(run, incoming->peer);
}

/* Would RUN's first Rejoin open an adoption? */
static bool may_adopt(const struct run *run) {
    return run->phase == RUN_JOINING && !rewind_is_second(run) &&
           rewind_may_be_adopted(run);
}

/* Do new processes wait? Those that have joined are in this chief's own run,
 * which cannot be the one that it adopts: while members of a run whose chief is
 * dead may still ask, nobody joins before them. */
static bool holds_joins_back(const struct run *run, int64_t now) {
    if (run->adopt)
        return !run->adopt->is_decided;
    return may_adopt(run) && dir_lock_dead_run(run->checkpoints.dir_lock) &&
           now - run->opened < RECONNECT_LIMIT;
}

static void receive_rejoin(struct run *run,
                           const struct control_message *incoming,
                           struct roster_slot *slot, int64_t now) {
    struct adopt *adopt = run->adopt;
    if (adopt && adopt->is_adopted) {
        answer_late(run, incoming);
        return;
    }
    if ((adopt && adopt->is_decided) || !may_adopt(run) ||
        (!adopt && !adopt_open(run)))
        membership_send_back(run, incoming->peer);
    else
        keep_answer(run, incoming, slot, now);
}

/* A member of this run follows another chief by now, whether this one has begun
 * the run or adopted it. */
static bool has_other_chief(const struct run *run,
                            const Capstan__Control *control) {
    const Capstan__Rejoin *rejoin = control->join->rejoin;
    return rejoin && control->run == run->id && rejoin->term > run->term;
}

bool adopt_receive(struct run *run, const struct control_message *incoming,
                   int64_t now) {
    const Capstan__Control *control = incoming->control;
    bool rejoins = control->join->rejoin && control->run;
    if (has_other_chief(run, control)) {
        run_stop(run, FAILURE_PEER_LOST,
                 "another chief has adopted run %016" PRIx64, run->id);
        return true;
    }
    bool is_held_back = !control->run && holds_joins_back(run, now);
    if (incoming->slot || !control->incarnation || !(rejoins || is_held_back))
        return false;
    struct roster_slot *slot = membership_find_expected(run, incoming);
    if (slot && rejoins)
        receive_rejoin(run, incoming, slot, now);
    else if (slot && run->adopt)
        adoption_claim(&run->adopt->core, adopt_place(run, slot), now);
    return true;
}

static void refuse_adoption(struct run *run) {
    struct adopt *adopt = run->adopt;
    log_warning(run->log, "adoption_refused",
                "run %016" PRIx64 " cannot go on where it is, as %s: its "
                "members go back to its newest checkpoint",
                adopt->core.run, adopt->core.why);
    for (uint32_t p = 0; p < run->roster.count; p++)
        if (adopt->answers[p].control)
            membership_send_back(run, adopt->answers[p].peer);
}

static const Capstan__Rejoin *rejoin_of(const struct run *run, uint32_t place) {
    return run->adopt->answers[place].control->join->rejoin;
}

static void take_ps(struct run *run, struct roster_slot *slot) {
    struct run_ps *ps = run_ps_of(run, slot);
    const Capstan__Rejoin *rejoin = rejoin_of(run, adopt_place(run, slot));
    ps->ready = true;
    ps->view = rejoin->view->number;
    ps->highest = rejoin->heartbeat->clock;
}

static void take_trainer(struct run *run, struct roster_slot *slot) {
    const Capstan__Rejoin *rejoin = rejoin_of(run, adopt_place(run, slot));
    device_replicas_take_over(run, slot->rank, rejoin->visible_devices);
    model_spec_receive(run, slot, rejoin->model_spec);
    run->trainers[slot->rank].keeps = rejoin->keeps;
    run->checkpoints.kept.is_used |= rejoin->keeps;
    run->checkpoints.kept.needs_lead |= rejoin->leads;
    if (rejoin->generation > run->membership.generation)
        run->membership.generation = rejoin->generation;
}

/* Nobody has its place, or its member has not answered and is dead, which
 * membership_check_deaths finds. */
static void take_missing(struct run *run, struct roster_slot *slot,
                         int64_t now) {
    assert(slot->rank != ROSTER_NO_RANK);
    const struct adoption_rank *rank = &run->adopt->core.ranks[slot->rank];
    slot->state = rank->incarnation ? ROSTER_HELD : ROSTER_VACATED;
    slot->incarnation = rank->incarnation;
    slot->last_seen = now - run->roster.peer_limit - 1;
    device_replicas_take_over(run, slot->rank, NULL);
    snprintf(slot->host, sizeof slot->host, "(unknown)");
}

static void take_members(struct run *run, int64_t now) {
    struct adopt *adopt = run->adopt;
    for (uint32_t p = 0; p < run->roster.count; p++) {
        struct roster_slot *slot = &run->roster.slots[p];
        bool is_here = adoption_has(&adopt->core, p) &&
                       membership_claim(run, &adopt->answers[p], slot, now) ==
                           ROSTER_GRANTED;
        if (!is_here)
            take_missing(run, slot, now);
        else if (slot->role == CLUSTER_PS)
            take_ps(run, slot);
        else
            take_trainer(run, slot);
    }
}

/* The furthest that a trainer is. */
static uint64_t step_reached(const struct run *run) {
    uint64_t reached = run_step(run);
    for (uint32_t r = 0; run_synchronous(run) && r < run->roster.num_ranks; r++)
        if (run->trainers[r].heartbeat.clock > reached)
            reached = run->trainers[r].heartbeat.clock;
    return reached;
}

/* A trainer that has not answered has taken part in all steps but the last. */
static void take_missing_progress(struct run *run) {
    uint64_t reached = step_reached(run);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        Capstan__Heartbeat *heartbeat = &run->trainers[r].heartbeat;
        if (run->roster.slots[r].state != ROSTER_HELD ||
            adoption_has(&run->adopt->core, r))
            continue;
        if (!run_synchronous(run))
            heartbeat->global_step = reached;
        else if (reached > run->plan.schedule.start)
            heartbeat->clock = reached - 1;
    }
}

static void take_past(struct run_trainer *trainer, const Capstan__Slot *slot) {
    trainer->past = (struct run_counts){.loss = slot->past_loss,
                                        .samples = slot->past_samples,
                                        .bad_lines = slot->past_bad_lines,
                                        .late = slot->past_late,
                                        .missed = slot->past_missed};
    trainer->at_evaluation.samples = slot->past_samples;
    trainer->at_evaluation.loss = slot->past_loss;
}

/* By the newest VIEW, and what they have told. */
static void take_progress(struct run *run, const Capstan__View *view,
                          int64_t now) {
    const struct adoption *core = &run->adopt->core;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        take_past(trainer, view->slots[r]);
        if (run->roster.slots[r].state != ROSTER_HELD)
            continue;
        trainer->in_view = true;
        trainer->from = core->ranks[r].from;
        trainer->finished = !core->ranks[r].live;
        trainer->last_progress = now;
        if (adoption_has(core, r))
            metrics_receive_heartbeat(run, &run->roster.slots[r],
                                      rejoin_of(run, r)->heartbeat, now);
    }
    take_missing_progress(run);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_VACATED &&
            !run_is_beyond(run, r))
            run->trainers[r].absence =
                (struct run_absence){.is_gone = true,
                                     .since = run_step(run),
                                     .first = run_step(run)};
}

/* The steps at which trainers have last heard the chief before. What one had
 * told it of later steps, that chief has not acknowledged: it comes again. */
struct heard {
    uint64_t least, most;
};

static struct heard find_heard(const struct run *run) {
    struct heard heard = {UINT64_MAX, run->plan.schedule.start};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        if (!adoption_has(&run->adopt->core, r))
            continue;
        uint64_t step = rejoin_of(run, r)->heard;
        heard.least = step < heard.least ? step : heard.least;
        heard.most = step > heard.most ? step : heard.most;
    }
    if (heard.least < run->plan.schedule.start || heard.least > heard.most)
        heard.least = run->plan.schedule.start;
    return heard;
}

/* The chief before may have had parts of an evaluation: such a one is made
 * again, on a snapshot. */
static void take_evaluations(struct run *run, struct heard heard) {
    const struct run_schedule *schedule = &run->plan.schedule;
    uint64_t epochs = run_schedule_epochs(schedule, heard.least);
    bool may_lack = run_schedule_epochs(schedule, heard.most) > epochs ||
                    (heard.least > schedule->start &&
                     run_schedule_ends_epoch(schedule, heard.least));
    run->metrics.epoch_start = run_total(run);
    run->metrics.epochs_ended = run_schedule_epochs(schedule, heard.most);
    run->evaluations.epochs_seen = epochs;
    run->evaluations.incomplete = run_synchronous(run) ? heard.most : 0;
    if (!may_lack || !run->plan.test_samples)
        run->evaluations.evaluated = run->evaluations.incomplete;
}

/* Members know of a checkpoint that is not in this chief's directory, which may
 * be another, or not mounted. */
static enum status check_checkpoints(struct run *run, struct failure *why) {
    const struct run_checkpoints *own = &run->checkpoints;
    uint64_t saved = own->has_saved ? own->saved : 0;
    for (uint32_t p = 0; p < run->roster.count; p++) {
        const Capstan__Control *control = run->adopt->answers[p].control;
        if (control && control->join->past &&
            control->join->past->saved > run->lineage->saved)
            run->lineage->saved = control->join->past->saved;
    }
    return run->lineage->saved <= saved
               ? STATUS_OK
               : status_fail(why, FAILURE_PEER_LOST,
                             "its members have a checkpoint of step %" PRIu64
                             " and the newest in %s is of step %" PRIu64,
                             run->lineage->saved, run->job->checkpoint.dir,
                             saved);
}

static bool has_all_trainers(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!adoption_has(&run->adopt->core, r))
            return false;
    return true;
}

/* RANK's trainer may wait for the checkpoint of the step before its first,
 * which was a request of the chief before: nobody completes it. */
static bool awaits_checkpoint(const struct run *run, uint32_t rank) {
    const struct run_trainer *trainer = &run->trainers[rank];
    return adoption_has(&run->adopt->core, rank) &&
           trainer->from > run->plan.schedule.start + 1 &&
           trainer->heartbeat.clock < trainer->from;
}

/* Of an external model: what a trainer that is gone has kept with checkpoints
 * that are not complete went along with the chief before. */
static enum status take_kept(struct run *run, struct failure *why) {
    uint64_t known = step_reached(run) + 1;
    bool all = has_all_trainers(run), ends = known >= run->plan.schedule.total;
    if (run->job->model.type != JOB_EXTERNAL || !run_synchronous(run))
        return STATUS_OK;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        ends |= run->trainers[r].finished;
        if ((kept_states_any(run) || !all) && awaits_checkpoint(run, r))
            return status_fail(why, FAILURE_PEER_LOST,
                               "trainer %" PRIu32 " was joining it with what "
                               "the others keep",
                               r);
    }
    if (!all && ends)
        return status_fail(why, FAILURE_PEER_LOST,
                           "nobody tells what a trainer that is gone has kept "
                           "with its last checkpoint");
    run->checkpoints.kept.adopted = known;
    return STATUS_OK;
}

static void take_name(struct run *run) {
    run->id = run->adopt->core.run;
    run->term = run->adopt->core.term + 1;
    control_server_set_run(run->control_server, run->id);
}

/* A run that goes back needs it too. */
static void take_lineage(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    const Capstan__Plan *plan = rejoin_of(run, run->roster.num_ranks)->plan;
    lineage->id = plan->lineage;
    lineage->count = plan->rewinds;
    lineage->again = plan->steps_again;
    lineage->furthest = plan->furthest;
    lineage->in_vain = plan->in_vain;
    lineage->adoptions = run->term;
}

/* No step is copied again that a ps has a part of, complete or not. */
static void take_copies_of(struct run *run, const Capstan__Join *join) {
    rewind_take_copy(run, join);
    for (size_t i = 0; i < join->n_copies; i++)
        (void)buddies_may_copy(&run->buddies, join->copies[i]->step);
}

static enum status adopt_run(struct run *run, int64_t now,
                             struct failure *why) {
    const struct adoption *core = &run->adopt->core;
    uint32_t newest = run->roster.num_ranks;
    take_name(run);
    take_lineage(run);
    take_members(run, now);
    for (uint32_t p = newest; p < run->roster.count; p++)
        if (rejoin_of(run, p)->view->number == core->view)
            newest = p;
    if (!run->plan.layout || run->phase != RUN_JOINING)
        return status_fail(why, FAILURE_BAD_MESSAGE, "%s",
                           run->text[0] ? run->text : "it has no model");
    const Capstan__View *view = rejoin_of(run, newest)->view;
    run->bandwidth.gbits = view->link_gbits;
    enum status status =
        planning_take_over(run, rejoin_of(run, newest)->plan, why);
    if (status)
        return status;
    take_progress(run, view, now);
    for (uint32_t p = run->roster.num_ranks; p < run->roster.count; p++)
        take_copies_of(run, run->adopt->answers[p].control->join);
    status = checkpoint_policy_take_over(run, find_heard(run).least, why);
    if (!status)
        planning_take_epochs(run, rejoin_of(run, 0)->epochs,
                             rejoin_of(run, 0)->n_epochs);
    if (!status)
        status = take_kept(run, why);
    return status ? status : check_checkpoints(run, why);
}

static void send_adopted(struct run *run) {
    Capstan__Adopted adopted = CAPSTAN__ADOPTED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    adopted.term = run->term;
    adopted.saved = run->checkpoints.has_saved ? run->checkpoints.saved : 0;
    control.body_case = CAPSTAN__CONTROL__BODY_ADOPTED;
    control.adopted = &adopted;
    control_server_broadcast(run->control_server, CLUSTER_ROLES, &control);
}

static void lead_on(struct run *run) {
    uint64_t reached = step_reached(run);
    take_evaluations(run, find_heard(run));
    run->snapshots.requested = run->term << MESSAGE_TERM_SHIFT;
    run->membership.view = run->adopt->core.view;
    run->metrics.reached = reached;
    run->metrics.shown_at = time_now();
    run_enter_phase(run, RUN_TRAINING);
    metrics_begin(run, reached);
    send_adopted(run);
    membership_tell_generations(run);
    membership_broadcast_view(run);
    checkpoint_policy_send_retained(run);
    log_info(run->log, "run_adopted",
             "run %016" PRIx64 " has gone on without its chief and has this "
             "one now, at step %" PRIu64 ": nothing is computed again",
             run->id, reached);
}

/* It has begun to be the run's chief: its members go back together. */
static void go_back(struct run *run, const struct failure *why) {
    run->lineage->lost = REWIND_CHIEF;
    run->lineage->lost_at = run->adopt->core.since;
    run->is_rewinding = true;
    send_adopted(run);
    run_stop(run, FAILURE_PEER_LOST, "the run cannot go on where it is: %s",
             why->text);
}

/* Some members have heard the run's end and are gone, and the others wait. */
static void end_if_over(struct run *run, int64_t now) {
    struct adopt *adopt = run->adopt;
    struct failure why;
    uint64_t step;
    if (!adopt->core.since || now - adopt->core.since < RECONNECT_LIMIT ||
        !rewind_was_over(run, adopt->core.run, &step))
        return;
    adopt->is_decided = adopt->is_adopted = true;
    take_name(run);
    for (uint32_t p = 0; p < run->roster.count; p++)
        if (adopt->answers[p].control)
            (void)membership_claim(run, &adopt->answers[p],
                                   &run->roster.slots[p], now);
    send_adopted(run);
    if (dir_lock_settle(run->checkpoints.dir_lock, run->id, &why))
        log_warning(run->log, "lock_unavailable", "%s", why.text);
    rewind_stop_over(run, run->id, step, "some of its members");
}

void adopt_step(struct run *run, int64_t now) {
    struct adopt *adopt = run->adopt;
    struct failure why;
    if (!adopt || adopt->is_decided || run->phase != RUN_JOINING)
        return;
    enum adoption_verdict verdict = rewind_is_over(run)
                                        ? ADOPTION_WAIT
                                        : adoption_decide(&adopt->core, now);
    adopt->is_decided = verdict != ADOPTION_WAIT;
    run->is_adopting = !adopt->is_decided;
    if (verdict == ADOPTION_REWIND)
        refuse_adoption(run);
    else if (verdict == ADOPTION_WAIT)
        end_if_over(run, now);
    if (verdict != ADOPTION_ADOPT)
        return;
    adopt->is_adopted = true;
    if (adopt_run(run, now, &why))
        go_back(run, &why);
    else
        lead_on(run);
}
