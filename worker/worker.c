/* SPDX-License-Identifier: Apache-2.0 */
/* The communication thread: each turn it waits for the chief, the exchange, a
 * signal, a caller or the trainer, whichever comes first, and lets each do what
 * is due. The trainer computes on its own thread and is heard by its reports.
 */
#include "worker/worker.h"

#include "proto/base/plugin.h"
#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "worker/worker_parts.h"

#include <stdlib.h>
#include <sys/eventfd.h>

enum { MAX_PS = 1024 /* polled at once */, POINTS = 1024 /* a message */ };
static const int64_t TELL_POINTS_EVERY = TIME_S / 4;

static enum status open_links(struct worker *worker, struct failure *why) {
    const struct worker_settings *settings = worker->settings;
    struct caller_settings caller = {
        .zmq = settings->zmq,
        .log = settings->log,
        .self = settings->self,
        .cluster = settings->callers,
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
        .record = settings->record,
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

static enum status obey_all(struct worker *worker, struct failure *why) {
    const Capstan__Control *order;
    enum status status;
    do {
        status = member_receive(worker->member, time_now(), &order, why);
        if (!status && order)
            status = worker_obey(worker, order, why);
    } while (!status && order && !worker->stopped);
    return status;
}

struct told_device {
    Capstan__MemoryLimit limit;
    char key[64], name[256];
};

/* Trainers that share a device are added up, if it says which it is. */
static void tell_device(const struct worker *worker,
                        const struct trainer_device *device,
                        struct told_device *told) {
    snprintf(told->key, sizeof told->key, "device %s", device->id);
    if (!device->id[0])
        snprintf(told->key, sizeof told->key, "device %.24s of %016llx",
                 device->name,
                 (unsigned long long)member_incarnation(worker->member));
    snprintf(told->name, sizeof told->name, "free on device %s", device->name);
    capstan__memory_limit__init(&told->limit);
    told->limit.key = told->key;
    told->limit.name = told->name;
    told->limit.free = device->free;
}

/* Who computes on the processor, or never sums, does not load it. */
static bool asks_for_nccl(const struct job *job) {
    return job->strategy != JOB_PS && job->backend == JOB_BACKEND_AUTO;
}

static void tell_declaration(struct worker *worker,
                             const struct trainer_report *report) {
    struct told_device devices[JOB_MOST_DEVICES];
    Capstan__MemoryLimit *limits[JOB_MOST_DEVICES];
    struct failure missing;
    const void *table;
    const struct layout *layout = trainer_layout(worker->trainer);
    Capstan__Declaration declaration = CAPSTAN__DECLARATION__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Parameter **parameters = NULL;
    declaration.digest = layout_digest(layout);
    declaration.train_samples = report->train_samples;
    declaration.test_samples = report->test_samples;
    declaration.replicas = report->replicas;
    declaration.adds_on_host = report->adds_on_host;
    declaration.n_devices = report->num_devices;
    declaration.devices = limits;
    if (report->num_devices && asks_for_nccl(worker->job) &&
        plugin_find(&table, "nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI,
                    &missing))
        declaration.without_nccl = missing.text;
    for (uint32_t i = 0; i < report->num_devices; i++) {
        tell_device(worker, &report->devices[i], &devices[i]);
        limits[i] = &devices[i].limit;
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

static void tell_sight(struct worker *worker,
                       const struct trainer_report *report) {
    Capstan__Sight sight = CAPSTAN__SIGHT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    char *ids[JOB_MOST_DEVICES];
    for (uint32_t i = 0; i < report->num_devices; i++)
        ids[i] = (char *)report->devices[i].id;
    sight.n_devices = report->num_devices;
    sight.devices = ids;
    sight.alone = report->replicas;
    control.body_case = CAPSTAN__CONTROL__BODY_SIGHT;
    control.sight = &sight;
    member_tell(worker->member, &control);
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
    left.diverged = worker->diverged;
    if (why) {
        left.status = why->status;
        left.text = (char *)why->text;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_LEFT;
    control.left = &left;
    member_tell(worker->member, &control);
}

void worker_tell_points(struct worker *worker) {
    uint64_t steps[POINTS], samples[POINTS];
    double losses[POINTS], seconds[POINTS];
    struct trainer_point point;
    size_t count;
    do {
        Capstan__Points points = CAPSTAN__POINTS__INIT;
        Capstan__Control control = CAPSTAN__CONTROL__INIT;
        for (count = 0; count < POINTS && worker->trainer &&
                        trainer_take_point(worker->trainer, &point);
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
        if (count)
            member_tell(worker->member, &control);
    } while (count == POINTS);
}

/* What a step costs does not depend on how many are points. */
static void pass_points(struct worker *worker) {
    int64_t now = time_now();
    if (now - worker->points_told < TELL_POINTS_EVERY)
        return;
    worker->points_told = now;
    worker_tell_points(worker);
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
    beat->first_loss = progress.first_loss;
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
    worker_tell_points(worker); /* it has reached them before it reported */
    switch (report->event) {
    case TRAINER_SEES:
        tell_sight(worker, report);
        break;
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
        worker->diverged = report->diverged;
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
    enum status status = status_of_signal((int)number);
    if (member_joined(worker->member))
        log_info(worker->settings->log, "signal %d: %s", (int)number,
                 worker->allreduce
                     ? "asking the chief for a checkpoint; the run ends"
                     : "goodbye, the run goes on without this worker");
    if (worker->interrupted || !worker_trains(worker))
        worker->stopped = true;
    else if (worker->client)
        trainer_leave(worker->trainer);
    else
        tell_signal(worker, status);
    worker->leaving = !worker->allreduce || !worker_trains(worker);
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
        if (report.why.status == STATUS_CONFIG && !worker_trains(worker))
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
    worker_measure(worker);
    pass_points(worker);
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
