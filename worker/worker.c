/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: each turn it polls the chief, the exchange,
 * signals, the discovery listener and the trainer, and lets each do its due
 * work. The trainer computes on its own thread and reports through event
 * queues. */
#include "worker/worker.h"

#include "core/base/limits.h"
#include "core/base/plugin.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/store/copies.h"
#include "proto/messages/control_client.h"
#include "proto/messages/histograms.h"
#include "proto/messages/process_report.h"
#include "proto/messages/ps_links.h"
#include "proto/plan/plan.h"
#include "worker/bandwidth_meter.h"
#include "worker/collective/group.h"
#include "worker/collective/rendezvous.h"
#include "worker/collective/trainer_group.h"
#include "worker/discovery_listener.h"
#include "worker/exchange/allreduce/allreduce.h"
#include "worker/exchange/client/client.h"
#include "worker/models/model.h"
#include "worker/ops/gpu_watch.h"
#include "worker/train/external.h"
#include "worker/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum { MAX_PS = 1024 /* polled together */, POINTS = 1024 /* per message */ };
static const int64_t POINTS_INTERVAL = TIME_S / 4;
static const int64_t SHOWN_WAIT = TIME_S; /* for a ps, in the report */
static const int64_t COMMUNICATION_SLICE = TIME_MS / 5;

struct worker {
    const struct worker_settings *settings;
    struct process process;
    struct control_client *control_client;
    struct discovery_listener *discovery_listener;
    struct job *job;
    struct plan *plan;
    struct trainer *trainer;
    struct client *client;          /* with ps */
    struct allreduce *allreduce;    /* with all-reduce */
    struct rendezvous *rendezvous;  /* once it has joined */
    struct trainer_group *trainers; /* for the caller's collectives, or NULL */
    struct gpu_watch *gpu_watch;    /* NULL: it has no GPU of its own */
    uint64_t *table_counts;         /* rank 0's, for heartbeats; NULL: none */
    struct bandwidth_meter *probe;  /* bandwidth probe, or NULL */
    uint64_t chief;                 /* the chief's incarnation */
    uint32_t rank, num_ranks;
    int64_t points_sent_at;
    uint64_t step_seen; /* the last step that it has finished, */
    int64_t step_since; /* and since when; 0: it has not begun */
    int64_t ps_since;   /* a ps owes it an answer; 0: none does */
    bool stopped, leaving;
    bool declared;                 /* the model was sent to the chief */
    bool finished;                 /* the trainer has left the loop */
    int64_t leaves_at;             /* then it stops; 0: not set */
    bool is_left;                  /* its trainer has finished by a signal */
    enum failure_code interrupted; /* by a signal, or FAILURE_NONE */
};

/* True once a view has started this worker's training. */
static bool worker_is_training(const struct worker *worker) {
    return worker->client ||
           (worker->allreduce && allreduce_reducer(worker->allreduce));
}

/* False: it sums nothing, as there are ps, or training has not begun. */
static bool worker_times(const struct worker *worker,
                         struct reducer_times *times) {
    struct reducer *reducer =
        worker->allreduce ? allreduce_reducer(worker->allreduce) : NULL;
    *times = (struct reducer_times){.bytes = 0};
    if (reducer)
        reducer_times(reducer, times);
    return reducer != NULL;
}

static void worker_fill_heartbeat(struct worker *worker) {
    struct trainer_progress progress;
    struct reducer_times times;
    struct gpu_watch_use use = {0};
    Capstan__Heartbeat *heartbeat =
        control_client_heartbeat(worker->control_client);
    if (!worker->trainer)
        return;
    (void)worker_times(worker, &times);
    trainer_progress(worker->trainer, &progress);
    heartbeat->clock = progress.clock;
    heartbeat->pushing = progress.pushing;
    heartbeat->global_step = progress.global_step;
    heartbeat->loss_sum = progress.loss_sum;
    heartbeat->last_loss = progress.last_loss;
    heartbeat->first_loss = progress.first_loss;
    heartbeat->samples = progress.samples;
    heartbeat->correct = progress.correct;
    heartbeat->input_s = progress.input_s;
    heartbeat->compute_s = progress.compute_s;
    heartbeat->wire_s = progress.wire_s;
    heartbeat->training_s = progress.training_s;
    heartbeat->loss_scale = progress.loss_scale;
    heartbeat->skipped = progress.skipped;
    heartbeat->bad_lines = progress.bad_lines;
    heartbeat->late = progress.late;
    heartbeat->missed = progress.missed;
    heartbeat->update_s = times.update_s;
    heartbeat->rows = progress.rows;
    heartbeat->rewinds = worker->settings->external &&
                         external_rewinds(worker->settings->external);
    heartbeat->row_bytes = progress.row_bytes;
    heartbeat->gpus = gpu_watch_read(worker->gpu_watch, &use);
    heartbeat->gpu_utilization = use.utilization;
    if (worker->client)
        client_report_lost(worker->client, time_now(), heartbeat);
    if (worker->table_counts)
        allreduce_report_rows(worker->allreduce, worker->table_counts,
                              heartbeat);
}

/* Sends the points that the trainer has reached to the chief. */
static void worker_report_points(struct worker *worker) {
    uint64_t steps[POINTS], samples[POINTS];
    double losses[POINTS], seconds[POINTS];
    struct trainer_point point;
    size_t count;
    do {
        Capstan__Points points = CAPSTAN__POINTS__INIT;
        Capstan__Control control = CAPSTAN__CONTROL__INIT;
        for (count = 0; count < POINTS && worker->trainer &&
                        trainer_next_point(worker->trainer, &point);
             count++) {
            steps[count] = point.step;
            samples[count] = point.samples;
            losses[count] = point.loss_sum;
            seconds[count] = point.training_s;
        }
        points.n_step = points.n_loss_sum = count;
        points.n_samples = points.n_training_s = count;
        points.step = steps;
        points.loss_sum = losses;
        points.samples = samples;
        points.training_s = seconds;
        control.body_case = CAPSTAN__CONTROL__BODY_POINTS;
        control.points = &points;
        if (!count)
            return;
        /* The chief writes the points beside what the heartbeat has. */
        worker_fill_heartbeat(worker);
        control_client_send_heartbeat(worker->control_client);
        control_client_send_reliable(worker->control_client, &control);
    } while (count == POINTS);
}

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

static void send_to_chief_client(void *control_client,
                                 Capstan__Control *control) {
    control_client_send_reliable(control_client, control);
}

/* The rendezvous is that of all-reduce, and of the caller's
 * collectives, which may come before any plan. */
static enum status open_trainer_group(struct worker *worker,
                                      struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    enum status status = rendezvous_open(
        &worker->rendezvous, send_to_chief_client, worker->control_client, why);
    if (status || !settings->external)
        return status;
    struct collective_settings group = {
        .rank = worker->rank,
        .size = worker->num_ranks,
        .host = settings->member.self ? settings->member.self->host : NULL,
        .address = worker->process.address,
        .store = rendezvous_store(worker->rendezvous),
        .algorithm = COLLECTIVE_RING,
        .timeout = worker->job->timeouts.step,
        .silence = time_to_seconds(
            ps_links_lost_limit(time_from_seconds(worker->job->timeouts.peer))),
        .shm = worker->process.shm,
        .proof = link_keys_proof(worker->process.keys),
        .reject = group_log_rejected,
        .reject_context = worker->process.log,
    };
    worker->trainers = trainer_group_open(&group);
    if (!worker->trainers)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a group");
    external_give_trainers(settings->external, worker->trainers);
    return STATUS_OK;
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
    health_note(worker->process.health, EVENT_JOINED, 0, NULL, 0);
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
    bool has_secret = worker->process.keys && !worker->process.stays_here;
    struct trainer_settings trainer = {.log = log,
                                       .job = worker->job,
                                       .run = worker->process.run,
                                       .rank = worker->rank,
                                       .num_ranks = worker->num_ranks,
                                       .num_beyond = welcome->num_beyond,
                                       .joins_late = welcome->under_way,
                                       .requests_assignment = true,
                                       .has_secret = has_secret,
                                       .loops = worker->process.loops,
                                       .external = worker->settings->external,
                                       .copies =
                                           worker->settings->member.copies,
                                       .kept = worker->settings->kept};
    trainer.reported = worker->settings->local_peers.reported >= 0;
    trainer.local_rank = local_rank(worker, &trainer.local_trainers);
    status = open_trainer_group(worker, why);
    return status ? status : trainer_open(&worker->trainer, &trainer, why);
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
    struct exchange *exchange = NULL;
    if (worker->allreduce) {
        status = allreduce_begin(worker->allreduce, why);
        if (!status)
            exchange = reducer_exchange(allreduce_reducer(worker->allreduce));
    } else {
        status =
            worker_control_open_client(worker, view, own_slot->from_clock, why);
        if (!status)
            exchange = client_exchange(worker->client);
    }
    if (!status) {
        uint32_t live = 0;
        for (size_t r = 0; r < view->n_slots; r++)
            live += view->slots[r]->live;
        health_note(worker->process.health, EVENT_VIEW, view->number, NULL,
                    live);
        trainer_begin(worker->trainer, exchange, worker->plan,
                      own_slot->from_clock);
    }
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
        .store = rendezvous_store(worker->rendezvous),
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
    if (worker->job->histogram_every_steps)
        worker->process.histograms =
            histograms_open(worker->job->histogram_every_steps);
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
    if (!status && worker->settings->member.copies)
        copies_begin(worker->settings->member.copies,
                     worker->plan->num_buddies ? plan->start_step : 0, 0);
    health_note(worker->process.health, EVENT_PLANNED, 0, NULL, 0);
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
        .index = measure->ps,
    };
    if (bandwidth_meter_open(&worker->probe, &settings, time_now(), &why))
        send_bandwidth_result(worker, 0);
}

/* Continues the bandwidth probe that the chief has asked for, and sends the
 * rate when it ends. */
static void worker_probe_bandwidth(struct worker *worker) {
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
    health_note(worker->process.health, EVENT_STOPPED, 0, NULL, 0);
    worker_report_points(worker);
    return control_client_handle_stop(worker->control_client, stop, why);
}

static void handle_evaluate(struct worker *worker,
                            const Capstan__Evaluate *evaluate) {
    struct trainer_evaluation_request command = {
        evaluate->id, evaluate->step, evaluate->part, evaluate->parts};
    health_note(worker->process.health, EVENT_EVALUATED, evaluate->step, NULL,
                0);
    if (worker_is_training(worker) && command.part < command.parts)
        trainer_request_evaluation(worker->trainer, &command);
}

/* Handles COMMAND, in the order of a run: job, plan, bandwidth probe, the view
 * that starts training, evaluations, end; or passes it on to the all-reduce
 * modules. A second job or plan is ignored. */
static enum status worker_control_handle(struct worker *worker,
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
    case CAPSTAN__CONTROL__BODY_RENDEZVOUS:
        return worker->rendezvous ? rendezvous_receive(worker->rendezvous,
                                                       command->rendezvous, why)
                                  : STATUS_OK;
    case CAPSTAN__CONTROL__BODY_MEASURE:
        handle_bandwidth_probe(worker, command->measure);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_STOP:
        return worker_control_handle_stop(worker, command->stop, why);
    case CAPSTAN__CONTROL__BODY_BUDDY_ORDER:
        if (worker->settings->member.copies)
            copies_order(worker->settings->member.copies, 0,
                         command->buddy_order->complete, 0);
        return STATUS_OK;
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

static enum status worker_open_links(struct worker *worker,
                                     struct failure *why) {
    const struct member *member = &worker->settings->member;
    enum status status = discovery_listener_open(&worker->discovery_listener,
                                                 &worker->process, member, why);
    if (status)
        return status;
    struct control_client_settings settings = {
        .process = &worker->process,
        .member = member,
        .port = discovery_listener_port(worker->discovery_listener),
    };
    return control_client_open(&worker->control_client, &settings, why);
}

static void worker_close_all(struct worker *worker) {
    const struct worker_settings *settings = worker->settings;
    if (worker->trainers) /* first: what it awaits in the other ends then */
        trainer_group_cancel(worker->trainers);
    if (worker->rendezvous)
        rendezvous_cancel(worker->rendezvous);
    if (worker->allreduce)
        allreduce_cancel(worker->allreduce);
    if (worker->client && settings->kept &&
        *settings->member.restart_within > 0)
        trainer_close_and_keep(&worker->trainer, settings->kept);
    trainer_close(&worker->trainer);
    gpu_watch_close(&worker->gpu_watch);
    client_close(&worker->client);
    allreduce_close(&worker->allreduce);
    trainer_group_close(&worker->trainers);
    rendezvous_close(&worker->rendezvous);
    bandwidth_meter_close(&worker->probe);
    plan_close(&worker->plan);
    job_free(&worker->job);
    control_client_close(&worker->control_client);
    discovery_listener_close(&worker->discovery_listener);
    free(worker->table_counts);
}

static enum status worker_handle_controls(struct worker *worker,
                                          struct failure *why) {
    const Capstan__Control *command;
    enum status status;
    do {
        status = control_client_receive(worker->control_client, time_now(),
                                        &command, why);
        if (!status && command)
            status = worker_control_handle(worker, command, why);
    } while (!status && command && !worker->stopped);
    return status;
}

struct device_limit {
    Capstan__MemoryLimit limit;
    char key[64], name[256];
};

/* The memory of trainers that share a device is summed under the device's id. A
 * device without an id gets a key of its own. */
static void fill_device_limit(const struct worker *worker,
                              const struct trainer_device *device,
                              struct device_limit *limit_text) {
    snprintf(limit_text->key, sizeof limit_text->key, "device %s", device->id);
    if (!device->id[0])
        snprintf(limit_text->key, sizeof limit_text->key,
                 "device %.24s of %016llx", device->name,
                 (unsigned long long)worker->process.incarnation);
    snprintf(limit_text->name, sizeof limit_text->name, "free on device %s",
             device->name);
    capstan__memory_limit__init(&limit_text->limit);
    limit_text->limit.key = limit_text->key;
    limit_text->limit.name = limit_text->name;
    limit_text->limit.free = device->free;
}

/* Why NCCL cannot be used where the job leaves the choice; NULL: it can. A
 * trainer that computes on the CPU or never reduces does not load it. */
static char *find_nccl_problem(const struct worker *worker,
                               const struct trainer_report *report,
                               struct failure *missing) {
    const struct job *job = worker->job;
    const void *table;
    if (!report->num_devices || job->strategy == JOB_PS ||
        job->backend != JOB_BACKEND_AUTO)
        return NULL;
    enum status status =
        worker->process.keys
            ? status_fail(missing, FAILURE_COLLECTIVE_UNUSABLE,
                          "nobody authenticates its connections, and this run "
                          "has a secret")
            : plugin_find(&table, "nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI,
                          missing);
    return status ? missing->text : NULL;
}

/* The groups of an external model are the caller's, else the job's; of its
 * tables those behind the first. False: no memory. */
static bool declare_groups(const struct worker *worker,
                           Capstan__ModelSpec *model_spec) {
    const struct external *external = worker->settings->external;
    struct optimizer_group own[JOB_GROUPS];
    const struct optimizer_group *groups = own, *of_tables = own + 1;
    uint32_t count, num_tables;
    bool has_tables = worker->rank == 0 || external;
    if (external) {
        groups = external_groups(external, &count);
        of_tables = external_table_groups(external, &num_tables);
    } else {
        count = optimizer_group_of_job(worker->job, own);
        num_tables = count ? count - 1 : 0;
    }
    if (count)
        model_spec->groups = optimizer_group_messages(groups, count);
    model_spec->n_groups = model_spec->groups ? count : 0;
    if (num_tables && has_tables)
        model_spec->table_groups =
            optimizer_group_messages(of_tables, num_tables);
    model_spec->n_table_groups = model_spec->table_groups ? num_tables : 0;
    return model_spec->n_groups == count &&
           (!has_tables || model_spec->n_table_groups == num_tables);
}

static void worker_send_model_spec(struct worker *worker,
                                   const struct trainer_report *report) {
    struct device_limit devices[JOB_MAX_DEVICES];
    Capstan__MemoryLimit *limits[JOB_MAX_DEVICES];
    struct failure missing;
    const struct layout *layout = trainer_layout(worker->trainer);
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Parameter **parameters = NULL;
    model_spec.digest = layout_digest(layout);
    model_spec.train_samples = report->train_samples;
    model_spec.test_samples = report->test_samples;
    model_spec.replicas = report->replicas;
    model_spec.adds_on_host = report->adds_on_host;
    model_spec.share_samples = report->share_samples;
    model_spec.features = report->features;
    model_spec.features_unplaced = report->features_unplaced;
    if (worker->settings->external || report->uncounted)
        model_spec.batches_per_epoch = RUN_SCHEDULE_NO_EPOCHS;
    model_spec.n_devices = report->num_devices;
    model_spec.devices = limits;
    char *nccl_problem = find_nccl_problem(worker, report, &missing);
    if (nccl_problem)
        model_spec.without_nccl = nccl_problem;
    for (uint32_t i = 0; i < report->num_devices; i++) {
        fill_device_limit(worker, &report->devices[i], &devices[i]);
        limits[i] = &devices[i].limit;
    }
    bool whole = declare_groups(worker, &model_spec);
    if (worker->rank == 0 || worker->settings->external) {
        parameters = plan_parameters(layout);
        model_spec.n_parameters = parameters ? layout->num_parameters : 0;
        model_spec.parameters = parameters;
        model_spec.tables = plan_tables(layout);
        model_spec.n_tables = model_spec.tables ? layout->num_tables : 0;
        whole &= model_spec.n_parameters == layout->num_parameters &&
                 model_spec.n_tables == layout->num_tables;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_MODEL_SPEC;
    control.model_spec = &model_spec;
    if (whole)
        control_client_send_reliable(worker->control_client, &control);
    else
        control_client_drop(worker->control_client);
    plan_free_parameters(&parameters);
    free(model_spec.tables);
    optimizer_group_free(&model_spec.groups);
    optimizer_group_free(&model_spec.table_groups);
}

static void send_visible_devices(struct worker *worker,
                                 const struct trainer_report *report) {
    Capstan__VisibleDevices visible_devices = CAPSTAN__VISIBLE_DEVICES__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    char *ids[JOB_MAX_DEVICES];
    for (uint32_t i = 0; i < report->num_devices; i++)
        ids[i] = (char *)report->devices[i].id;
    visible_devices.n_devices = report->num_devices;
    visible_devices.devices = ids;
    visible_devices.wanted_devices = report->replicas;
    control.body_case = CAPSTAN__CONTROL__BODY_VISIBLE_DEVICES;
    control.visible_devices = &visible_devices;
    control_client_send_reliable(worker->control_client, &control);
}

static void send_evaluated(struct worker *worker,
                           const struct trainer_report *report) {
    Capstan__Evaluated evaluated = CAPSTAN__EVALUATED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    evaluated.id = report->id;
    evaluated.step = report->step;
    evaluated.part = report->part;
    evaluated.loss_sum = report->loss_sum;
    evaluated.correct = report->correct;
    evaluated.count = report->count;
    evaluated.bad_lines = report->bad_lines;
    evaluated.regression = report->regression;
    evaluated.predicted_sum = report->predicted_sum;
    evaluated.target_sum = report->target_sum;
    evaluated.scores.data = report->scores;
    evaluated.scores.len = report->scores_bytes;
    evaluated.train_loss_sum = report->progress.loss_sum;
    evaluated.train_samples = report->progress.samples;
    evaluated.training_s = report->progress.training_s;
    control.body_case = CAPSTAN__CONTROL__BODY_EVALUATED;
    control.evaluated = &evaluated;
    control_client_send_reliable(worker->control_client, &control);
    free(report->scores);
}

static void send_epoch(struct worker *worker,
                       const struct trainer_report *report) {
    Capstan__Epoch epoch = CAPSTAN__EPOCH__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    epoch.number = report->id;
    epoch.step = report->step;
    epoch.under_way = report->under_way;
    control.body_case = CAPSTAN__CONTROL__BODY_EPOCH;
    control.epoch = &epoch;
    control_client_send_reliable(worker->control_client, &control);
}

static void send_kept(struct worker *worker,
                      const struct trainer_report *report) {
    Capstan__Kept kept = CAPSTAN__KEPT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Kept__File files[KEPT_FILE_KEYS], *list[KEPT_FILE_KEYS];
    for (uint32_t f = 0; f < report->kept.count; f++) {
        const struct shard_info *info = &report->kept.files[f];
        capstan__kept__file__init(&files[f]);
        files[f].name = (char *)info->name;
        files[f].host = (char *)info->host;
        files[f].size = info->size;
        files[f].hash_low = info->hash[0];
        files[f].hash_high = info->hash[1];
        list[f] = &files[f];
    }
    kept.step = report->step;
    kept.lead = report->kept.lead;
    kept.copy = report->kept.copy;
    kept.n_files = report->kept.failed ? 0 : report->kept.count;
    kept.files = list;
    if (report->kept.failed)
        kept.error = (char *)report->why.text;
    control.body_case = CAPSTAN__CONTROL__BODY_KEPT;
    control.kept = &kept;
    control_client_send_reliable(worker->control_client, &control);
}

static uint64_t step_of_run(const struct worker *worker) {
    const Capstan__Heartbeat *heartbeat =
        control_client_heartbeat(worker->control_client);
    return worker->job->staleness ? heartbeat->global_step : heartbeat->clock;
}

static void send_save_request(struct worker *worker,
                              const struct trainer_report *report) {
    Capstan__SaveRequest request = CAPSTAN__SAVE_REQUEST__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    request.step = report->step;
    control.body_case = CAPSTAN__CONTROL__BODY_SAVE_REQUEST;
    control.save_request = &request;
    control_client_send_reliable(worker->control_client, &control);
}

/* Points are sent at intervals, so that the cost of a step does not depend on
 * steps_per_print. */
static void report_points(struct worker *worker) {
    int64_t now = time_now();
    if (now - worker->points_sent_at < POINTS_INTERVAL)
        return;
    worker->points_sent_at = now;
    worker_report_points(worker);
}

static void send_interrupted(struct worker *worker) {
    Capstan__Interrupted interrupted = CAPSTAN__INTERRUPTED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_INTERRUPTED;
    control.interrupted = &interrupted;
    control_client_send_reliable(worker->control_client, &control);
}

/* If all processes got a signal, the chief saves a checkpoint, for which the ps
 * may need this worker's weights (optimizer None), or the chief what it keeps.
 */
static bool is_still_needed(const struct worker *worker) {
    struct external *external = worker->settings->external;
    if (!worker->client)
        return false;
    return worker->job->optimizer.type == OPTIMIZER_NONE ||
           (external && external_keeps(external));
}

static void watch_gpus(struct worker *worker,
                       const struct trainer_report *report) {
    const char *ids[JOB_MAX_DEVICES];
    for (uint32_t i = 0; i < report->num_devices; i++)
        ids[i] = report->devices[i].id;
    gpu_watch_close(&worker->gpu_watch);
    worker->gpu_watch = gpu_watch_open(ids, report->num_devices);
}

/* The caller may have ended its part because of a signal that is yet to come
 * here. */
static void send_finished(struct worker *worker,
                          const struct trainer_report *report) {
    bool leaves = worker->leaving || (report->leaves && worker->client);
    control_client_send_finished(worker->control_client, report->clock,
                                 report->early || leaves, leaves);
}

static void forward_report(struct worker *worker,
                           const struct trainer_report *report) {
    worker_fill_heartbeat(worker);
    control_client_send_heartbeat(worker->control_client);
    worker_report_points(
        worker); /* the trainer reached them before it reported */
    switch (report->event) {
    case TRAINER_DEVICES_LISTED:
        send_visible_devices(worker, report);
        break;
    case TRAINER_DECLARED:
        health_note(worker->process.health, EVENT_DECLARED, 0, NULL, 0);
        worker->declared = true;
        watch_gpus(worker, report);
        worker_send_model_spec(worker, report);
        break;
    case TRAINER_EPOCH:
        send_epoch(worker, report);
        break;
    case TRAINER_KEPT:
        send_kept(worker, report);
        break;
    case TRAINER_SAVE_REQUESTED:
        send_save_request(worker, report);
        break;
    case TRAINER_EVALUATED:
        send_evaluated(worker, report);
        break;
    case TRAINER_FINISHED:
        if (!worker->leaving ||
            is_still_needed(worker)) /* else a goodbye follows */
            send_finished(worker, report);
        break;
    case TRAINER_FAILED:
        control_client_send_failed(worker->control_client, &report->why);
        break;
    }
}

/* With ps the run continues without this worker: it leaves after the current
 * step, or at once on the second signal. All-reduce cannot continue: the chief
 * saves a checkpoint and all ranks end. */
static void worker_handle_signal(struct worker *worker) {
    eventfd_t number = 0;
    if (eventfd_read(worker->process.interrupts, &number))
        return;
    enum failure_code code = failure_code_of_signal((int)number);
    if (control_client_is_joined(worker->control_client))
        log_info(worker->process.log, "signal_received", "signal %d: %s",
                 (int)number,
                 worker->allreduce
                     ? "asking the chief for a checkpoint; the run ends"
                     : "leaving; the run goes on without this worker");
    if (worker->interrupted || !worker_is_training(worker))
        worker->stopped = true;
    else if (worker->client)
        trainer_leave(worker->trainer);
    else
        send_interrupted(worker);
    worker->leaving = !worker->allreduce || !worker_is_training(worker);
    worker->interrupted = code;
}

static const int64_t LEAVING_TIME = 5 * TIME_S;

static enum status handle_reports(struct worker *worker, struct failure *why) {
    struct trainer_report report;
    while (worker->trainer && trainer_next_report(worker->trainer, &report)) {
        forward_report(worker, &report);
        worker->finished |= report.event == TRAINER_FINISHED;
        worker->is_left |= report.event == TRAINER_FINISHED &&
                           (worker->leaving || report.leaves);
        if (report.event != TRAINER_FAILED)
            continue;
        if (failure_code_status(report.why.code) == STATUS_CONFIG &&
            !worker_is_training(worker)) {
            *why = report.why;
            return STATUS_CONFIG;
        }
        log_error(worker->process.log, "trainer_failed", "%s", report.why.text);
    }
    if (worker->is_left && worker->leaving && !worker->leaves_at)
        worker->leaves_at =
            time_now() + (is_still_needed(worker) ? LEAVING_TIME : 0);
    return STATUS_OK;
}

static int64_t next_deadline(const struct worker *worker) {
    int64_t deadline = control_client_deadline(worker->control_client);
    int64_t listener_deadline =
        discovery_listener_deadline(worker->discovery_listener);
    int64_t client =
        worker->client ? client_deadline(worker->client) : TIME_NEVER;
    if (listener_deadline < deadline)
        deadline = listener_deadline;
    if (worker->probe && bandwidth_meter_deadline(worker->probe) < deadline)
        deadline = bandwidth_meter_deadline(worker->probe);
    if (worker->leaves_at && worker->leaves_at < deadline)
        deadline = worker->leaves_at;
    return client < deadline ? client : deadline;
}

static void wait_for_events(struct worker *worker) {
    enum {
        OWN_ITEMS = 6,
        MAX_EXCHANGE_ITEMS = ALLREDUCE_POLL_ITEMS + MAX_PS * LINK_POLL_ITEMS
    };
    int more = 0;
    zmq_pollitem_t items[OWN_ITEMS + MAX_EXCHANGE_ITEMS];
    items[0] = (zmq_pollitem_t){control_client_socket(worker->control_client),
                                0, ZMQ_POLLIN, 0};
    items[1] =
        (zmq_pollitem_t){NULL, worker->process.interrupts, ZMQ_POLLIN, 0};
    items[2] = (zmq_pollitem_t){
        NULL, worker->trainer ? trainer_descriptor(worker->trainer) : -1,
        ZMQ_POLLIN, 0};
    items[3] = discovery_listener_poll_item(worker->discovery_listener);
    items[4] = worker->probe ? bandwidth_meter_poll_item(worker->probe)
                             : (zmq_pollitem_t){NULL, -1, ZMQ_POLLIN, 0};
    items[5] = (zmq_pollitem_t){
        NULL,
        worker->rendezvous ? rendezvous_descriptor(worker->rendezvous) : -1,
        ZMQ_POLLIN, 0};
    if (worker->client)
        more = client_poll_items(worker->client, items + OWN_ITEMS,
                                 MAX_EXCHANGE_ITEMS);
    else if (worker->allreduce)
        more = allreduce_poll_items(worker->allreduce, items + OWN_ITEMS);
    zmq_poll(items, OWN_ITEMS + more,
             time_poll_ms(time_now(), next_deadline(worker)));
}

/* A rank that has lost its peers stays until the chief has determined which
 * peer failed. */
static void step_allreduce(struct worker *worker) {
    struct failure why;
    if (!allreduce_step(worker->allreduce, &why))
        return;
    log_error(worker->process.log, "allreduce_failed", "%s", why.text);
    control_client_send_failed(worker->control_client, &why);
}

/* The ps whose answer is awaited for longest, if any. */
static void report_ps(const struct worker *worker, struct health_report *report,
                      int64_t now) {
    struct deadline deadline = client_silent(worker->client);
    for (uint32_t i = 0; i < worker->plan->num_ps; i++) {
        struct health_peer peer = {.role = "ps",
                                   .index = worker->plan->ps[i].index};
        snprintf(peer.address, sizeof peer.address, "%s",
                 worker->plan->ps[i].address);
        health_add_peer(report, peer);
    }
    if (deadline.until == TIME_NEVER || !worker->ps_since ||
        now - worker->ps_since < SHOWN_WAIT)
        return;
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s",
             deadline.peer);
    report->waiting_since = worker->ps_since;
    health_add_deadline(report, &deadline, now);
}

/* The step that it has finished last: when that changed. */
static void follow_step(struct worker *worker, int64_t now) {
    uint64_t step = control_client_heartbeat(worker->control_client)->clock;
    if (!worker_is_training(worker) ||
        (worker->step_since && step == worker->step_seen))
        return;
    if (worker->step_since)
        health_note(worker->process.health, EVENT_STEPPED, step, NULL, 0);
    worker->step_seen = step;
    worker->step_since = now;
}

/* A ps that waits for other trainers answers questions meanwhile, and each
 * answer begins its deadline anew; this wait goes on until it owes nothing, or
 * a step is finished. */
static void follow_ps(struct worker *worker) {
    struct deadline deadline = client_silent(worker->client);
    int64_t since = deadline.since;
    if (since < worker->step_since)
        since = worker->step_since;
    if (deadline.until == TIME_NEVER)
        worker->ps_since = 0;
    else if (!worker->ps_since || worker->ps_since < worker->step_since)
        worker->ps_since = since;
}

/* What it waits for where no ps and no chief is late. */
static const char *own_wait(const struct worker *worker) {
    bool external = worker->settings->external != NULL;
    if (!worker->job || worker->finished)
        return worker->finished ? "the end of the run, or an evaluation" : NULL;
    if (!worker->declared)
        return external ? "its caller to declare the model"
                        : "its data to be read";
    if (!worker->plan)
        return "the plan of the chief, which needs all members";
    if (!worker_is_training(worker))
        return "the first view of the chief";
    if (worker->allreduce &&
        reducer_is_reducing(allreduce_reducer(worker->allreduce)))
        return "the gradients of the other ranks";
    return external ? "its caller's next step" : "its own computation";
}

static void report_own_wait(const struct worker *worker,
                            struct health_report *report, int64_t now) {
    const char *text = report->waiting_for[0] ? NULL : own_wait(worker);
    bool trains = worker_is_training(worker) && !worker->finished;
    if (!text || (trains && now - worker->step_since < SHOWN_WAIT))
        return;
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s", text);
    if (trains)
        report->waiting_since = worker->step_since;
}

static void add_samples(const struct worker *worker,
                        const Capstan__Heartbeat *heartbeat,
                        struct health_report *report) {
    struct reducer_times times;
    bool sums = worker_times(worker, &times);
    struct gpu_watch_use use = {.utilization = NAN, .memory = NAN};
    (void)gpu_watch_read(worker->gpu_watch, &use);
    const struct health_sample samples[] = {
        {METRIC_STEPS, HEALTH_NONE, (double)heartbeat->clock},
        {METRIC_EXAMPLES, HEALTH_NONE, (double)heartbeat->samples},
        {METRIC_INPUT_TIME, HEALTH_NONE, heartbeat->input_s},
        {METRIC_COMPUTE_TIME, HEALTH_NONE, heartbeat->compute_s},
        {METRIC_WAITING_TIME, HEALTH_NONE, heartbeat->wire_s},
        {METRIC_GPU_UTILIZATION, HEALTH_NONE, use.utilization},
        {METRIC_GPU_MEMORY, HEALTH_NONE, use.memory},
        {METRIC_COLLECTIVE_SENT, HEALTH_NONE, sums ? (double)times.bytes : NAN},
    };
    for (size_t s = 0; s < sizeof samples / sizeof *samples; s++)
        health_add_sample(report, samples[s].metric, samples[s].rank,
                          samples[s].value);
}

static void report_health(struct worker *worker, int64_t now) {
    follow_step(worker, now);
    if (worker->client)
        follow_ps(worker);
    struct health_report *report = health_begin(worker->process.health, now);
    if (!report)
        return;
    const Capstan__Heartbeat *heartbeat =
        control_client_heartbeat(worker->control_client);
    control_client_report(worker->control_client, report, now);
    if (worker->job) {
        report->rank = worker->rank;
        report->step = step_of_run(worker);
    }
    if (worker->plan)
        report->total_steps = worker->plan->run_schedule.total;
    if (worker_is_training(worker))
        report->state = HEALTH_TRAINING;
    if (worker->finished || worker->leaving || worker->interrupted)
        report->state = HEALTH_ENDING;
    if (worker->client)
        report_ps(worker, report, now);
    report_own_wait(worker, report, now);
    if (worker->trainer)
        add_samples(worker, heartbeat, report);
    health_end(worker->process.health);
}

static enum status worker_run_once(struct worker *worker, struct failure *why) {
    char address[300];
    wait_for_events(worker);
    enum status status = STATUS_OK;
    if (worker->client)
        status = client_step(worker->client, time_now(), why);
    if (worker->rendezvous)
        rendezvous_step(worker->rendezvous);
    if (worker->allreduce)
        step_allreduce(worker);
    worker_probe_bandwidth(worker);
    report_points(worker);
    worker_fill_heartbeat(worker);
    if (!status)
        status = control_client_step(worker->control_client, time_now(), why);
    if (!status)
        status = worker_handle_controls(worker, why);
    if (worker->process.interrupts >= 0)
        worker_handle_signal(worker);
    if (discovery_listener_step(worker->discovery_listener, time_now(), address,
                                sizeof address))
        control_client_set_chief_address(worker->control_client, address);
    if (!status)
        status = handle_reports(worker, why);
    worker->stopped |= worker->leaves_at && time_now() >= worker->leaves_at;
    worker->stopped |= worker->interrupted && !worker->stopped && worker->job &&
                       control_client_is_abandoned(worker->control_client,
                                                   worker->job->timeouts.stop);
    report_health(worker, time_now());
    return status;
}

enum status worker_run(const struct worker_settings *settings,
                       struct failure *why) {
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a worker");
    worker->settings = settings;
    worker->process = settings->process;
    time_slice_set(COMMUNICATION_SLICE);
    enum status status = worker_open_links(worker, why);
    while (!status && !worker->stopped)
        status = worker_run_once(worker, why);
    if (status && why->code == FAILURE_PEER_SILENT)
        process_report_log(worker->process.log, worker->process.health,
                           time_now());
    health_leave_loop(worker->process.health, HEALTH_ENDING);
    if (worker->leaving && worker->control_client) {
        control_client_leave(worker->control_client);
    } else if (status && !worker->stopped && worker->control_client &&
               control_client_is_joined(worker->control_client)) {
        control_client_send_failed(worker->control_client, why);
        control_client_leave_failed(worker->control_client, why);
    }
    if (worker->interrupted && (!status || worker->stopped)) {
        status_fail(why, worker->interrupted, "ended by a signal");
        status = status_mark_reported(why);
    }
    if (settings->external && !status && *settings->member.restart_within > 0)
        external_go_back(settings->external);
    worker_close_all(worker);
    free(worker);
    time_slice_set(0);
    return status;
}
