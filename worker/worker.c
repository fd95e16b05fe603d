#include "worker/worker.h"

#include "proto/base/time.h"
#include "proto/math/plan.h"
#include "proto/wire/link.h"
#include "proto/wire/member.h"
#include "worker/allreduce.h"
#include "worker/caller.h"
#include "worker/client.h"
#include "worker/link_probe.h"
#include "worker/trainer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum { MAX_PS = 1024 }; /* polled at once */

struct worker {
    const struct worker_settings *settings;
    struct member *member;
    struct caller *caller;
    struct job *job;
    struct plan *plan;
    struct trainer *trainer;
    struct client *client;       /* with ps */
    struct allreduce *allreduce; /* else */
    struct link_probe *probe;    /* of the network, or NULL */
    uint64_t chief;              /* its incarnation */
    uint32_t rank, num_ranks;
    bool stopped, leaving;
    enum status interrupted; /* by a signal, or OK */
};

static enum status open_links(struct worker *worker, struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    struct caller_settings caller = {
        .zmq = settings->zmq,
        .log = settings->log,
        .self = settings->self,
        .ps = settings->chief || settings->chief_inside ? NULL : settings->ps,
    };
    enum status status = caller_open(&worker->caller, &caller, why);
    if (status)
        return status;
    struct member_settings member = {
        .zmq = settings->zmq,
        .log = settings->log,
        .role = settings->role,
        .index = settings->index,
        .port = caller_port(worker->caller),
        .host = settings->self ? settings->self->host : NULL,
        .device = "cpu",
        .chief_inside = settings->chief_inside,
        .chief = settings->chief,
        .chief_ports = settings->chief_ports,
        .key = settings->key,
        .size = settings->size,
        .join_timeout = settings->join_timeout,
    };
    return member_open(&worker->member, &member, why);
}

static void close_all(struct worker *worker) {
    if (worker->allreduce)
        allreduce_cancel(worker->allreduce);
    trainer_close(&worker->trainer);
    client_close(&worker->client);
    allreduce_close(&worker->allreduce);
    link_probe_close(&worker->probe);
    plan_close(&worker->plan);
    job_free(&worker->job);
    member_close(&worker->member);
    caller_close(&worker->caller);
}

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
    enum status status = job_parse(&worker->job, welcome->job, why);
    if (!status)
        status = job_solve_batch(worker->job, welcome->trainers, why);
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
    member_timeouts(worker->member, worker->job->timeouts.peer,
                    worker->job->timeouts.stop);
    log_info(log, "joined %s, run %016llx, rank %u of %u",
             member_chief_name(worker->member),
             (unsigned long long)member_run(worker->member), worker->rank,
             worker->num_ranks);
    struct trainer_settings trainer = {.log = log,
                                       .job = worker->job,
                                       .rank = worker->rank,
                                       .num_ranks = worker->num_ranks,
                                       .loops = worker->settings->loops};
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
    enum status status = trainer_allocate(worker->trainer, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &client.weights, &client.gradients,
                   &client.offsets);
    return client_open(&worker->client, &client, why);
}

static bool trains(const struct worker *worker) {
    return worker->client ||
           (worker->allreduce && allreduce_reducer(worker->allreduce));
}

/* Training begins when a view lists me. */
static enum status take_view(struct worker *worker, const Capstan__View *view,
                             struct failure *why) {
    member_beat(worker->member)->view = view->number;
    if (trains(worker) || !worker->plan)
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

static enum status open_allreduce(struct worker *worker, struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    uint32_t trainers;
    struct allreduce_settings allreduce = {
        .zmq = settings->zmq,
        .log = settings->log,
        .member = worker->member,
        .job = worker->job,
        .plan = worker->plan,
        .chief = worker->chief,
        .rank = worker->rank,
        .num_ranks = worker->num_ranks,
        .local_rank = local_rank(worker, &trainers),
        .host = settings->self ? settings->self->host : NULL,
        .inside = settings->chief_inside ? settings->keeper_inside : NULL,
        .loops = settings->loops,
    };
    enum status status = trainer_allocate(worker->trainer, why);
    if (status)
        return status;
    trainer_arenas(worker->trainer, &allreduce.weights, &allreduce.gradients,
                   &allreduce.offsets);
    return allreduce_open(&worker->allreduce, &allreduce, why);
}

static enum status take_plan(struct worker *worker, const Capstan__Plan *plan,
                             struct failure *why) {
    if (worker->plan || !worker->job)
        return STATUS_OK;
    enum status status = plan_read(&worker->plan, plan, worker->job, why);
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
    if (worker->probe || trains(worker) || !worker->plan)
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

static void measure(struct worker *worker) {
    if (!worker->probe || !link_probe_step(worker->probe, time_now()))
        return;
    tell_measured(worker, link_probe_rate(worker->probe));
    link_probe_close(&worker->probe);
}

static enum status take_stop(struct worker *worker, const Capstan__Stop *stop,
                             struct failure *why) {
    double *again = worker->settings->again;
    worker->stopped = true;
    member_bye(worker->member);
    if (stop->again > 0) {
        log_info(worker->settings->log, "the run is over: %s; another follows",
                 stop->text);
        if (again)
            *again = stop->again;
        return STATUS_OK;
    }
    if (stop->status) {
        status_fail(why, (enum status)stop->status,
                    "the chief ended the run: %s", stop->text);
        return status_heard(why);
    }
    log_info(worker->settings->log, "the run is over: %s", stop->text);
    return STATUS_OK;
}

static void take_evaluate(struct worker *worker,
                          const Capstan__Evaluate *evaluate) {
    struct trainer_order order = {evaluate->id, evaluate->step, evaluate->part,
                                  evaluate->parts};
    if (trains(worker) && order.part < order.parts)
        trainer_evaluate(worker->trainer, &order);
}

static enum status obey(struct worker *worker, const Capstan__Control *order,
                        struct failure *why) {
    switch (order->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return worker->job ? STATUS_OK : take_job(worker, order->welcome, why);
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

static enum status obey_all(struct worker *worker, struct failure *why) {
    const Capstan__Control *order;
    enum status status;
    do {
        status = member_receive(worker->member, time_now(), &order, why);
        if (!status && order)
            status = obey(worker, order, why);
    } while (!status && order && !worker->stopped);
    return status;
}

/* Trainers that share a device are added up, if it says which it is. */
static void name_device(const struct worker *worker,
                        const struct trainer_report *report, char key[64],
                        char name[256]) {
    snprintf(key, 64, "device %s", report->device_id);
    if (!report->device_id[0])
        snprintf(key, 64, "device of %016llx",
                 (unsigned long long)member_incarnation(worker->member));
    snprintf(name, 256, "free on device %s", report->device);
}

static void tell_declaration(struct worker *worker,
                             const struct trainer_report *report) {
    Capstan__MemoryLimit device = CAPSTAN__MEMORY_LIMIT__INIT;
    char key[64], name[256];
    const struct layout *layout = trainer_layout(worker->trainer);
    Capstan__Declaration declaration = CAPSTAN__DECLARATION__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Parameter **parameters = NULL;
    declaration.digest = layout_digest(layout);
    declaration.train_samples = report->train_samples;
    declaration.test_samples = report->test_samples;
    declaration.batches_per_epoch = report->batches_per_epoch;
    if (report->has_device) {
        name_device(worker, report, key, name);
        device.key = key;
        device.name = name;
        device.free = report->device_free;
        declaration.device = &device;
    }
    if (worker->rank == 0) {
        parameters = plan_parameters(layout);
        declaration.n_parameters = parameters ? layout->num_parameters : 0;
        declaration.parameters = parameters;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_DECLARATION;
    control.declaration = &declaration;
    member_tell(worker->member, &control);
    plan_free_parameters(&parameters);
}

static void tell_evaluated(struct worker *worker,
                           const struct trainer_report *report) {
    Capstan__Evaluated evaluated = CAPSTAN__EVALUATED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    evaluated.id = report->id;
    evaluated.step = report->step;
    evaluated.part = report->part;
    evaluated.loss_sum = report->loss_sum;
    evaluated.correct = report->correct;
    evaluated.count = report->count;
    evaluated.train_loss_sum = report->progress.loss_sum;
    evaluated.train_samples = report->progress.samples;
    evaluated.training_s = report->progress.training_s;
    control.body_case = CAPSTAN__CONTROL__BODY_EVALUATED;
    control.evaluated = &evaluated;
    member_tell(worker->member, &control);
}

static void tell_left(struct worker *worker, bool goodbye, uint64_t clock,
                      const struct failure *why) {
    Capstan__Left left = CAPSTAN__LEFT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    left.goodbye = goodbye;
    left.clock = clock;
    if (why) {
        left.status = why->status;
        left.text = (char *)why->text;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_LEFT;
    control.left = &left;
    member_tell(worker->member, &control);
}

static void tell_signal(struct worker *worker, enum status status) {
    struct failure why = {.status = status};
    tell_left(worker, true, 0, &why);
}

static void fill_beat(struct worker *worker) {
    struct trainer_progress progress;
    struct reducer_times times = {0};
    Capstan__Beat *beat = member_beat(worker->member);
    if (!worker->trainer)
        return;
    if (worker->allreduce && allreduce_reducer(worker->allreduce))
        reducer_times(allreduce_reducer(worker->allreduce), &times);
    trainer_progress(worker->trainer, &progress);
    beat->clock = progress.clock;
    beat->global_step = progress.global_step;
    beat->loss_sum = progress.loss_sum;
    beat->last_loss = progress.last_loss;
    beat->samples = progress.samples;
    beat->correct = progress.correct;
    beat->input_s = progress.input_s;
    beat->compute_s = progress.compute_s;
    beat->wire_s = progress.wire_s;
    beat->training_s = progress.training_s;
    beat->loss_scale = progress.loss_scale;
    beat->skipped = progress.skipped;
    beat->update_s = times.update_s;
}

static void pass_on(struct worker *worker,
                    const struct trainer_report *report) {
    fill_beat(worker);
    member_beat_now(worker->member);
    switch (report->event) {
    case TRAINER_DECLARES:
        tell_declaration(worker, report);
        break;
    case TRAINER_EVALUATED:
        tell_evaluated(worker, report);
        break;
    case TRAINER_LEFT:
        tell_left(worker, worker->leaving, report->clock, NULL);
        break;
    case TRAINER_FAILED:
        tell_left(worker, false, report->clock, &report->why);
        break;
    }
}

/* With ps the run goes on without me: after this step, or at once the second
 * time. In all-reduce it cannot: the chief sees to a checkpoint, and all end.
 */
static void interrupt(struct worker *worker) {
    eventfd_t number = 0;
    if (eventfd_read(worker->settings->interrupts, &number))
        return;
    enum status status =
        number == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
    if (member_joined(worker->member))
        log_info(worker->settings->log, "signal %d: %s", (int)number,
                 worker->allreduce
                     ? "asking the chief for a checkpoint; the run ends"
                     : "goodbye, the run goes on without this worker");
    if (worker->interrupted || !trains(worker))
        worker->stopped = true;
    else if (worker->client)
        trainer_leave(worker->trainer);
    else
        tell_signal(worker, status);
    worker->leaving = !worker->allreduce || !trains(worker);
    worker->interrupted = status;
}

static enum status collect(struct worker *worker, struct failure *why) {
    struct trainer_report report;
    while (worker->trainer && trainer_reports(worker->trainer, &report)) {
        pass_on(worker, &report);
        if (report.event == TRAINER_LEFT && worker->leaving)
            worker->stopped = true;
        if (report.event != TRAINER_FAILED)
            continue;
        if (report.why.status == STATUS_CONFIG && !trains(worker))
            return status_fail(why, report.why.status, "%s", report.why.text);
        log_error(worker->settings->log, "%s", report.why.text);
    }
    return STATUS_OK;
}

static int64_t next_deadline(const struct worker *worker) {
    int64_t deadline = member_deadline(worker->member);
    int64_t calls = caller_deadline(worker->caller);
    int64_t client =
        worker->client ? client_deadline(worker->client) : TIME_NEVER;
    if (calls < deadline)
        deadline = calls;
    if (worker->probe && link_probe_deadline(worker->probe) < deadline)
        deadline = link_probe_deadline(worker->probe);
    return client < deadline ? client : deadline;
}

static void wait_for_something(struct worker *worker) {
    enum { OWN = 5, MORE = ALLREDUCE_POLL_ITEMS + MAX_PS * LINK_POLL_ITEMS };
    int more = 0;
    zmq_pollitem_t items[OWN + MORE];
    items[0] =
        (zmq_pollitem_t){member_socket(worker->member), 0, ZMQ_POLLIN, 0};
    items[1] =
        (zmq_pollitem_t){NULL, worker->settings->interrupts, ZMQ_POLLIN, 0};
    items[2] = (zmq_pollitem_t){
        NULL, worker->trainer ? trainer_descriptor(worker->trainer) : -1,
        ZMQ_POLLIN, 0};
    items[3] = caller_poll_item(worker->caller);
    items[4] = worker->probe ? link_probe_poll_item(worker->probe)
                             : (zmq_pollitem_t){NULL, -1, ZMQ_POLLIN, 0};
    if (worker->client)
        more = client_poll_items(worker->client, items + OWN, MORE);
    else if (worker->allreduce)
        more = allreduce_poll_items(worker->allreduce, items + OWN);
    zmq_poll(items, OWN + more,
             time_poll_ms(time_now(), next_deadline(worker)));
}

/* Who has lost the others stays until the chief has found out whom. */
static void step_allreduce(struct worker *worker) {
    struct failure why;
    if (!allreduce_step(worker->allreduce, &why))
        return;
    log_error(worker->settings->log, "%s", why.text);
    tell_left(worker, false, 0, &why);
}

static enum status turn(struct worker *worker, struct failure *why) {
    char address[300];
    wait_for_something(worker);
    enum status status = STATUS_OK;
    if (worker->client)
        status = client_step(worker->client, time_now(), why);
    if (worker->allreduce)
        step_allreduce(worker);
    measure(worker);
    fill_beat(worker);
    if (!status)
        status = member_step(worker->member, time_now(), why);
    if (!status)
        status = obey_all(worker, why);
    if (worker->settings->interrupts >= 0)
        interrupt(worker);
    if (caller_step(worker->caller, time_now(), address, sizeof address))
        member_called(worker->member, address);
    return status ? status : collect(worker, why);
}

enum status worker_run(const struct worker_settings *settings,
                       struct failure *why) {
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return status_fail(why, STATUS_RETRY, "no memory for a worker");
    worker->settings = settings;
    enum status status = open_links(worker, why);
    while (!status && !worker->stopped)
        status = turn(worker, why);
    if (worker->leaving && worker->member) {
        tell_left(worker, true, 0, NULL);
        member_bye(worker->member);
    } else if (status && !worker->stopped && worker->member &&
               member_joined(worker->member)) {
        tell_left(worker, false, 0, why);
        member_bye(worker->member);
    }
    if (worker->interrupted && (!status || worker->stopped)) {
        status_fail(why, worker->interrupted, "ended by a signal");
        status = status_heard(why);
    }
    close_all(worker);
    free(worker);
    return status;
}
