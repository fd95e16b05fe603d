/* SPDX-License-Identifier: Apache-2.0 */
/* What the chief orders, in the order in which a run goes: the job, the plan,
 * a measurement, a view with which training begins, evaluations, the end. A
 * second job or plan changes nothing. */
#include "proto/base/limits.h"
#include "proto/base/time.h"
#include "worker/worker_parts.h"

#include <stdio.h>
#include <string.h>

/* Ranks tell whether a chief trains: then those of workers begin at 1. */
static uint32_t local_rank(const struct worker *worker, uint32_t *trainers) {
    const struct worker_settings *settings = worker->settings;
    return cluster_rank_place(&settings->neighbours,
                              worker->rank > settings->index, trainers);
}

static enum status take_job(struct worker *worker,
                            const Capstan__Welcome *welcome,
                            struct failure *why) {
    const struct log *log = worker->settings->log;
    if (welcome->rank >= welcome->trainers)
        return status_fail(why, STATUS_FAILED,
                           "the chief counts %u trainers and calls this one "
                           "rank %u",
                           welcome->trainers, welcome->rank);
    enum status status = job_parse(&worker->job, welcome->job, why);
    if (status)
        return status;
    worker->chief = welcome->chief_incarnation;
    worker->rank = welcome->rank;
    worker->num_ranks = welcome->trainers;
    caller_found(worker->caller);
    if (worker->settings->own_job &&
        strcmp(worker->settings->own_job, welcome->job))
        log_warning(worker->settings->log,
                    "the job given here is not read and differs from the "
                    "chief's");
    member_timeout(worker->member, worker->job->timeouts.peer);
    log_info(log, "joined %s, run %016llx, rank %u of %u",
             member_chief_name(worker->member),
             (unsigned long long)member_run(worker->member), worker->rank,
             worker->num_ranks);
    struct trainer_settings trainer = {.log = log,
                                       .job = worker->job,
                                       .rank = worker->rank,
                                       .num_ranks = worker->num_ranks,
                                       .asks = true,
                                       .loops = worker->settings->loops};
    trainer.told = worker->settings->neighbours.told >= 0;
    trainer.local_rank = local_rank(worker, &trainer.local_trainers);
    return trainer_open(&worker->trainer, &trainer, why);
}

static enum status open_client(struct worker *worker, const Capstan__View *view,
                               struct failure *why) {
    const struct job *job = worker->job;
    bool whole = job->staleness == 0 && job->gradient_clipping > 0;
    struct client_settings client = {
        .zmq = worker->settings->zmq,
        .log = worker->settings->log,
        .plan = worker->plan,
        .run = member_run(worker->member),
        .incarnation = member_incarnation(worker->member),
        .rank = worker->rank,
        .inside = worker->settings->ps_inside,
        .wire = job->wire,
        .loops = worker->settings->loops,
        .lanes = worker->settings->lanes,
        .credit = whole ? UINT64_MAX : 0, /* a norm needs all blocks */
        .link_gbits = view->link_gbits,
        .step_timeout = job->timeouts.step,
        .scaler = loss_scaler_resumed(&job->fp16, &worker->plan->scaler),
    };
    enum status status = trainer_allocate(worker->trainer, false, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &client.weights, &client.gradients,
                   &client.offsets);
    return client_open(&worker->client, &client, why);
}

bool worker_trains(const struct worker *worker) {
    return worker->client ||
           (worker->allreduce && allreduce_reducer(worker->allreduce));
}

/* Training begins when a view lists me. */
static enum status take_view(struct worker *worker, const Capstan__View *view,
                             struct failure *why) {
    member_beat(worker->member)->view = view->number;
    if (worker_trains(worker) || !worker->plan)
        return STATUS_OK;
    enum status status = message_check_view(view, worker->num_ranks, why);
    if (status)
        return status;
    const Capstan__Slot *me = view->slots[worker->rank];
    if (me->incarnation != member_incarnation(worker->member) ||
        !trainer_layout(worker->trainer))
        return STATUS_OK;
    struct partner partner = {0};
    if (worker->allreduce) {
        status = allreduce_begin(worker->allreduce, why);
        if (!status)
            partner = partner_reducer(allreduce_reducer(worker->allreduce));
    } else {
        status = open_client(worker, view, why);
        if (!status)
            partner = partner_client(worker->client);
    }
    if (!status)
        trainer_begin(worker->trainer, partner, worker->plan, me->from_clock);
    return status;
}

static void wake_trainer(void *trainer) {
    trainer_serve(trainer);
}

static enum status open_allreduce(struct worker *worker, struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    uint32_t trainers, device = local_rank(worker, &trainers);
    if (trainer_is_remote(worker->trainer))
        device = trainer_device_index(worker->trainer);
    struct allreduce_settings allreduce = {
        .zmq = settings->zmq,
        .log = settings->log,
        .member = worker->member,
        .job = worker->job,
        .plan = worker->plan,
        .chief = worker->chief,
        .rank = worker->rank,
        .num_ranks = worker->num_ranks,
        .device = device,
        .host = settings->self ? settings->self->host : NULL,
        .inside = settings->chief_inside ? settings->keeper_inside : NULL,
        .loops = settings->loops,
        .lanes = settings->lanes,
        .remote = trainer_is_remote(worker->trainer),
        .wake = wake_trainer,
        .context = worker->trainer,
    };
    enum status status = trainer_allocate(worker->trainer, true, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &allreduce.weights, &allreduce.gradients,
                   &allreduce.offsets);
    return allreduce_open(&worker->allreduce, &allreduce, why);
}

/* A link to each ps, with shared memory; in all-reduce connections with the
 * other ranks, both ways. */
static enum status check_descriptors(const struct plan *plan,
                                     struct failure *why) {
    enum { OF_PS = 10, OF_RANK = 4 };
    uint64_t more = plan->allreduce ? (uint64_t)plan->num_ranks * OF_RANK
                                    : (uint64_t)plan->num_ps * OF_PS;
    char what[32];
    snprintf(what, sizeof what, "%u %s",
             plan->allreduce ? plan->num_ranks : plan->num_ps,
             plan->allreduce ? "ranks" : "ps");
    return limits_descriptors(more, what, why);
}

static enum status take_plan(struct worker *worker, const Capstan__Plan *plan,
                             struct failure *why) {
    if (worker->plan || !worker->job)
        return STATUS_OK;
    enum status status = plan_solve_batch(worker->job, plan, why);
    if (!status)
        status = plan_read(&worker->plan, plan, worker->job, why);
    if (!status)
        status = plan_check_trainers(worker->plan, worker->num_ranks, why);
    if (!status)
        status = check_descriptors(worker->plan, why);
    if (!status && worker->plan->allreduce && trainer_layout(worker->trainer))
        status = open_allreduce(worker, why);
    return status;
}

static void tell_measured(struct worker *worker, double rate) {
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    measured.bytes_per_second = rate;
    control.body_case = CAPSTAN__CONTROL__BODY_MEASURED;
    control.measured = &measured;
    member_tell(worker->member, &control);
}

/* What cannot be measured is not: training does not need it. */
static void take_measure(struct worker *worker,
                         const Capstan__Measure *measure) {
    struct failure why;
    if (worker->probe || worker_trains(worker) || !worker->plan)
        return;
    struct link_probe_settings settings = {
        .zmq = worker->settings->zmq,
        .run = member_run(worker->member),
        .incarnation = member_incarnation(worker->member),
        .address = measure->address,
    };
    if (link_probe_open(&worker->probe, &settings, time_now(), &why))
        tell_measured(worker, 0);
}

void worker_measure(struct worker *worker) {
    if (!worker->probe || !link_probe_step(worker->probe, time_now()))
        return;
    tell_measured(worker, link_probe_rate(worker->probe));
    link_probe_close(&worker->probe);
}

static void take_share(struct worker *worker, const Capstan__Share *share) {
    if (worker->trainer && share->trainers)
        trainer_share(worker->trainer, share->place, share->trainers);
}

static enum status take_stop(struct worker *worker, const Capstan__Stop *stop,
                             struct failure *why) {
    worker->stopped = true;
    worker_tell_points(worker);
    return member_stop(worker->member, stop, worker->settings->again, why);
}

static void take_evaluate(struct worker *worker,
                          const Capstan__Evaluate *evaluate) {
    struct trainer_order order = {evaluate->id, evaluate->step, evaluate->part,
                                  evaluate->parts};
    if (worker_trains(worker) && order.part < order.parts)
        trainer_evaluate(worker->trainer, &order);
}

enum status worker_obey(struct worker *worker, const Capstan__Control *order,
                        struct failure *why) {
    switch (order->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return worker->job ? STATUS_OK : take_job(worker, order->welcome, why);
    case CAPSTAN__CONTROL__BODY_SHARE:
        take_share(worker, order->share);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_PLAN:
        return take_plan(worker, order->plan, why);
    case CAPSTAN__CONTROL__BODY_VIEW:
        return take_view(worker, order->view, why);
    case CAPSTAN__CONTROL__BODY_EVALUATE:
        take_evaluate(worker, order->evaluate);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_MEASURE:
        take_measure(worker, order->measure);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_STOP:
        return take_stop(worker, order->stop, why);
    default:
        return worker->allreduce ? allreduce_obey(worker->allreduce, order, why)
                                 : STATUS_OK;
    }
}
