/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the chief's control messages in the order of a run: job, plan,
 * bandwidth probe, the view that starts training, evaluations, end. A second
 * job or plan is ignored. */
#include "core/base/limits.h"
#include "core/base/time.h"
#include "worker/models/model.h"
#include "worker/train/external.h"
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

/* If a chief trains, the ranks of workers begin at 1; the difference of rank
 * and task index shows it. */
static uint32_t local_rank(const struct worker *worker, uint32_t *trainers) {
    const struct worker_settings *settings = worker->settings;
    return cluster_rank_on_host(&settings->local_peers,
                                worker->rank > settings->member.index,
                                trainers);
}

/* The job says who computes gradients, and so does what was started here. */
static enum status check_model(const struct worker *worker,
                               struct failure *why) {
    bool external = worker->job->model.type == JOB_EXTERNAL;
    if (external == (worker->settings->external != NULL))
        return STATUS_OK;
    return status_fail(
        why, FAILURE_JOB_UNFIT,
        external
            ? "model.type is external: a trainer is a script or program that "
              "declares the model (docs/python.md, docs/c-api.md), not "
              "`capstan run`"
            : "the chief's job has a built-in model (model.type mlp), and this "
              "process declares its own: the job's model.type must be "
              "external");
}

static enum status worker_control_handle_welcome(
    struct worker *worker, const Capstan__Welcome *welcome,
    struct failure *why) {
    const struct log *log = worker->process.log;
    if (welcome->rank >= welcome->trainers)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "the chief counts %u trainers but gives this one "
                           "rank %u",
                           welcome->trainers, welcome->rank);
    enum status status =
        job_parse(&worker->job, welcome->job, &model_schemas, why);
    if (status)
        return status;
    status = check_model(worker, why);
    if (status)
        return status;
    worker->chief = welcome->chief_incarnation;
    worker->rank = welcome->rank;
    worker->num_ranks = welcome->trainers;
    discovery_listener_stop_queries(worker->discovery_listener);
    if (worker->settings->member.own_job &&
        strcmp(worker->settings->member.own_job, welcome->job))
        log_warning(worker->process.log, "job_ignored",
                    "the job given here is not read and differs from the "
                    "chief's");
    control_client_set_timeout(worker->control_client,
                               worker->job->timeouts.peer);
    log_detail(log, "run_joined", "joined %s, run %016llx, rank %u of %u",
               control_client_chief_name(worker->control_client),
               (unsigned long long)worker->process.run, worker->rank,
               worker->num_ranks);
    struct trainer_settings trainer = {.log = log,
                                       .job = worker->job,
                                       .run = worker->process.run,
                                       .rank = worker->rank,
                                       .num_ranks = worker->num_ranks,
                                       .requests_assignment = true,
                                       .loops = worker->process.loops,
                                       .external = worker->settings->external};
    trainer.reported = worker->settings->local_peers.reported >= 0;
    trainer.local_rank = local_rank(worker, &trainer.local_trainers);
    return trainer_open(&worker->trainer, &trainer, why);
}

static enum status worker_control_open_client(struct worker *worker,
                                              const Capstan__View *view,
                                              uint64_t from,
                                              struct failure *why) {
    const struct job *job = worker->job;
    struct external *external = worker->settings->external;
    bool full_credit =
        external || (job->staleness == 0 && job->gradient_clipping > 0);
    struct client_settings client = {
        .process = &worker->process,
        .plan = worker->plan,
        .rank = worker->rank,
        .inproc = worker->settings->ps_inproc,
        .wire = job->wire,
        .credit =
            full_credit
                ? UINT64_MAX
                : 0, /* clipping waits for all blocks before any is answered;
                        ranks push an external model in different orders */
        .link_gbits = view->link_gbits,
        .step_timeout = job->timeouts.step,
        .peer_timeout = job->timeouts.peer,
        .scaler = loss_scaler_restore(&job->fp16, &worker->plan->scaler),
    };
    if (external) {
        client.weight_of = external_values(external);
        client.mean_of = job->optimizer.type == OPTIMIZER_NONE
                             ? external_means(external)
                             : NULL;
        client.from = from;
        return client_open(&worker->client, &client, why);
    }
    enum status status = trainer_allocate(worker->trainer, false, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &client.weights, &client.gradients,
                   &client.offsets);
    client.weight_of = trainer_weights(worker->trainer);
    return client_open(&worker->client, &client, why);
}

bool worker_is_training(const struct worker *worker) {
    return worker->client ||
           (worker->allreduce && allreduce_reducer(worker->allreduce));
}

/* Training begins when a view lists this worker. */
static enum status worker_control_handle_view(struct worker *worker,
                                              const Capstan__View *view,
                                              struct failure *why) {
    control_client_heartbeat(worker->control_client)->view = view->number;
    if (worker_is_training(worker) || !worker->plan)
        return STATUS_OK;
    enum status status = message_check_view(view, worker->num_ranks, why);
    if (status)
        return status;
    const Capstan__Slot *own_slot = view->slots[worker->rank];
    if (own_slot->incarnation != worker->process.incarnation ||
        !trainer_layout(worker->trainer))
        return STATUS_OK;
    struct exchange exchange = {0};
    if (worker->allreduce) {
        status = allreduce_begin(worker->allreduce, why);
        if (!status)
            exchange = exchange_reducer(allreduce_reducer(worker->allreduce));
    } else {
        status =
            worker_control_open_client(worker, view, own_slot->from_clock, why);
        if (!status)
            exchange = exchange_client(worker->client);
    }
    if (!status)
        trainer_begin(worker->trainer, exchange, worker->plan,
                      own_slot->from_clock);
    return status;
}

static void wake_trainer(void *trainer) {
    trainer_request_serve(trainer);
}

static void collect_weights(void *external) {
    external_collect_weights(external);
}

static enum status open_allreduce(struct worker *worker, struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    uint32_t trainers, device = local_rank(worker, &trainers);
    if (trainer_has_device_memory(worker->trainer))
        device = trainer_device_index(worker->trainer);
    struct allreduce_settings allreduce = {
        .process = &worker->process,
        .control_client = worker->control_client,
        .job = worker->job,
        .plan = worker->plan,
        .chief = worker->chief,
        .rank = worker->rank,
        .num_ranks = worker->num_ranks,
        .device = device,
        .host = settings->member.self ? settings->member.self->host : NULL,
        .inproc = settings->member.chief_inproc
                      ? settings->weights_server_inproc
                      : NULL,
        .has_device_memory = trainer_has_device_memory(worker->trainer),
        .wake = wake_trainer,
        .context = worker->trainer,
    };
    if (settings->external) {
        allreduce.collect = collect_weights;
        allreduce.collect_context = settings->external;
    }
    enum status status = trainer_allocate(worker->trainer, true, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &allreduce.weights, &allreduce.gradients,
                   &allreduce.offsets);
    if (worker->rank == 0 && worker->plan->layout->num_tables)
        worker->table_counts =
            calloc(ROW_SHARD_COUNTS * worker->plan->layout->num_tables,
                   sizeof *worker->table_counts);
    if (settings->external && worker->rank == 0 && !worker->plan->pull_first)
        external_give_weights(settings->external);
    return allreduce_open(&worker->allreduce, &allreduce, why);
}

/* Per ps: a link and its shared memory. Per all-reduce rank: connections in
 * both directions. */
static enum status worker_control_check_descriptors(const struct plan *plan,
                                                    struct failure *why) {
    enum { PER_PS = 10, PER_RANK = 4 };
    uint64_t more = plan->allreduce ? (uint64_t)plan->num_ranks * PER_RANK
                                    : (uint64_t)plan->num_ps * PER_PS;
    char what[32];
    snprintf(what, sizeof what, "%u %s",
             plan->allreduce ? plan->num_ranks : plan->num_ps,
             plan->allreduce ? "ranks" : "ps");
    return limits_descriptors(more, what, why);
}

static enum status handle_plan(struct worker *worker, const Capstan__Plan *plan,
                               struct failure *why) {
    if (worker->plan || !worker->job)
        return STATUS_OK;
    enum status status = plan_settle_job(worker->job, plan, why);
    if (!status)
        status = plan_read(&worker->plan, plan, worker->job, why);
    if (!status)
        status = plan_check_trainers(worker->plan, worker->num_ranks, why);
    if (!status)
        status = worker_control_check_descriptors(worker->plan, why);
    if (!status && worker->plan->allreduce && trainer_layout(worker->trainer))
        status = open_allreduce(worker, why);
    return status;
}

static void send_bandwidth_result(struct worker *worker, double rate) {
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    measured.bytes_per_second = rate;
    control.body_case = CAPSTAN__CONTROL__BODY_MEASURED;
    control.measured = &measured;
    control_client_send_reliable(worker->control_client, &control);
}

/* A failed bandwidth probe is not an error: training does not need it. */
static void handle_bandwidth_probe(struct worker *worker,
                                   const Capstan__Measure *measure) {
    struct failure why;
    if (worker->probe || worker_is_training(worker) || !worker->plan)
        return;
    struct bandwidth_meter_settings settings = {
        .process = &worker->process,
        .address = measure->address,
    };
    if (bandwidth_meter_open(&worker->probe, &settings, time_now(), &why))
        send_bandwidth_result(worker, 0);
}

void worker_probe_bandwidth(struct worker *worker) {
    if (!worker->probe || !bandwidth_meter_step(worker->probe, time_now()))
        return;
    send_bandwidth_result(worker, bandwidth_meter_rate(worker->probe));
    bandwidth_meter_close(&worker->probe);
}

static void handle_device_assignment(
    struct worker *worker, const Capstan__DeviceAssignment *device_assignment) {
    if (worker->trainer && device_assignment->trainers)
        trainer_assign_device(worker->trainer, device_assignment->sharer_index,
                              device_assignment->trainers);
}

static enum status worker_control_handle_stop(struct worker *worker,
                                              const Capstan__Stop *stop,
                                              struct failure *why) {
    worker->stopped = true;
    worker_report_points(worker);
    return control_client_handle_stop(worker->control_client, stop, why);
}

static void handle_evaluate(struct worker *worker,
                            const Capstan__Evaluate *evaluate) {
    struct trainer_evaluation_request command = {
        evaluate->id, evaluate->step, evaluate->part, evaluate->parts};
    if (worker_is_training(worker) && command.part < command.parts)
        trainer_request_evaluation(worker->trainer, &command);
}

enum status worker_control_handle(struct worker *worker,
                                  const Capstan__Control *command,
                                  struct failure *why) {
    switch (command->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return worker->job ? STATUS_OK
                           : worker_control_handle_welcome(
                                 worker, command->welcome, why);
    case CAPSTAN__CONTROL__BODY_DEVICE_ASSIGNMENT:
        handle_device_assignment(worker, command->device_assignment);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_PLAN:
        return handle_plan(worker, command->plan, why);
    case CAPSTAN__CONTROL__BODY_VIEW:
        return worker_control_handle_view(worker, command->view, why);
    case CAPSTAN__CONTROL__BODY_EVALUATE:
        handle_evaluate(worker, command->evaluate);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_MEASURE:
        handle_bandwidth_probe(worker, command->measure);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_STOP:
        return worker_control_handle_stop(worker, command->stop, why);
    case CAPSTAN__CONTROL__BODY_RETAIN:
        if (worker->settings->external)
            external_retain(worker->settings->external, command->retain->steps,
                            command->retain->n_steps);
        return worker->allreduce
                   ? allreduce_handle(worker->allreduce, command, why)
                   : STATUS_OK;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT:
        if (worker->client && worker->settings->external)
            external_save_with(worker->settings->external,
                               command->snapshot->step);
        return worker->allreduce
                   ? allreduce_handle(worker->allreduce, command, why)
                   : STATUS_OK;
    default:
        return worker->allreduce
                   ? allreduce_handle(worker->allreduce, command, why)
                   : STATUS_OK;
    }
}
