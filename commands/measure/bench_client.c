/* SPDX-License-Identifier: Apache-2.0 */
/* A worker without training: it joins, sends a model spec whose parameters are
 * the vectors to move, and once a view lists it measures on a separate thread,
 * while this one communicates with the chief. */
#include "commands/measure/bench_client.h"

#include "commands/measure/bench_stream_client.h"
#include "commands/measure/measure.h"
#include "core/base/background_task.h"
#include "core/base/time.h"
#include "proto/messages/control_client.h"
#include "proto/plan/plan.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <zmq.h>

struct bench_client {
    const struct bench_client_settings *settings;
    struct process process;
    struct control_client *control_client;
    struct job *job;
    struct plan *plan;
    struct layout *layout; /* as sent to the chief */
    uint32_t rank;
    uint64_t from;
    bool measuring, stopped;
    enum failure_code interrupted;

    struct background_task *task; /* measures; NULL: not yet, or another does */
    atomic_bool
        stop; /* its cancellation: it looks too often for a descriptor */
    /* The task's, until it has ended. */
    json_t *result;
    uint64_t clock;
};

static enum status bench_client_measure(
    struct bench_client *client,
    struct bench_stream_client *bench_stream_client, struct failure *why) {
    const struct bench_client_settings *s = client->settings;
    struct measure_settings measure = {.log = client->process.log,
                                       .sizes = s->sizes,
                                       .num_sizes = s->num_sizes,
                                       .repeats = s->repeats,
                                       .seconds = s->seconds,
                                       .requests = s->requests,
                                       .batched = s->batched,
                                       .ps_pids = s->ps_pids,
                                       .baselines = s->baselines,
                                       .missing = s->missing,
                                       .stop = &client->stop};
    return measure_run(&client->result, bench_stream_client,
                       client->plan->layout, &measure, why);
}

static enum status bench_client_run_task(void *context, int cancel,
                                         struct failure *why) {
    struct bench_client *client = context;
    struct bench_stream_client_settings settings = {
        .process = &client->process,
        .plan = client->plan,
        .rank = client->rank,
        .from = client->from,
        .timeout = client->settings->timeout,
        .stop = &client->stop};
    struct bench_stream_client *bench_stream_client;
    (void)cancel;
    enum status status =
        bench_stream_client_open(&bench_stream_client, &settings, why);
    if (!status)
        status = bench_client_measure(client, bench_stream_client, why);
    if (bench_stream_client)
        client->clock = bench_stream_client_clock(bench_stream_client);
    if (client->result) {
        json_object_set_new(client->result, "ps",
                            json_integer(client->plan->num_ps));
        json_object_set_new(
            client->result, "lane",
            json_string(bench_stream_client_transport(bench_stream_client)));
    }
    bench_stream_client_close(&bench_stream_client);
    return status;
}

static void bench_client_send_model_spec(struct bench_client *client) {
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Parameter **parameters = NULL;
    model_spec.digest = layout_digest(client->layout);
    model_spec.train_samples = model_spec.batches_per_epoch = UINT32_MAX;
    model_spec.synthetic = true;
    if (client->rank == 0) {
        parameters = plan_parameters(client->layout);
        model_spec.n_parameters =
            parameters ? client->layout->num_parameters : 0;
        model_spec.parameters = parameters;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_MODEL_SPEC;
    control.model_spec = &model_spec;
    control_client_send_reliable(client->control_client, &control);
    plan_free_parameters(&parameters);
}

static enum status bench_client_handle_welcome(struct bench_client *client,
                                               const Capstan__Welcome *welcome,
                                               struct failure *why) {
    const struct bench_client_settings *s = client->settings;
    enum status status = job_parse(&client->job, welcome->job, NULL, why);
    if (!status)
        status = job_solve_batch(client->job, welcome->trainers, why);
    if (!status)
        status = measure_layout(&client->layout, s->sizes, s->num_sizes, why);
    if (status)
        return status;
    client->rank = welcome->rank;
    control_client_set_timeout(client->control_client,
                               client->job->timeouts.peer);
    bench_client_send_model_spec(client);
    return STATUS_OK;
}

/* Measuring begins when a view lists this client; only the first client
 * measures. */
static enum status bench_client_handle_view(struct bench_client *client,
                                            const Capstan__View *view,
                                            struct failure *why) {
    control_client_heartbeat(client->control_client)->view = view->number;
    if (client->measuring || !client->plan || client->rank >= view->n_slots)
        return STATUS_OK;
    const Capstan__Slot *me = view->slots[client->rank];
    if (me->incarnation != client->process.incarnation)
        return STATUS_OK;
    client->from = me->from_clock;
    client->measuring = true;
    if (!client->rank)
        return background_task_open(&client->task, bench_client_run_task,
                                    client, why);
    control_client_send_finished(client->control_client, client->clock, false,
                                 false);
    return STATUS_OK;
}

static enum status bench_client_handle_stop(struct bench_client *client,
                                            const Capstan__Stop *stop,
                                            struct failure *why) {
    client->stopped = true;
    control_client_leave(client->control_client);
    return stop->code ? status_fail(why, (enum failure_code)stop->code,
                                    "the chief ended the run: %s", stop->text)
                      : STATUS_OK;
}

static enum status bench_client_handle_control(struct bench_client *client,
                                               const Capstan__Control *command,
                                               struct failure *why) {
    switch (command->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return client->job
                   ? STATUS_OK
                   : bench_client_handle_welcome(client, command->welcome, why);
    case CAPSTAN__CONTROL__BODY_PLAN:
        return client->plan || !client->job
                   ? STATUS_OK
                   : plan_read(&client->plan, command->plan, client->job, why);
    case CAPSTAN__CONTROL__BODY_VIEW:
        return bench_client_handle_view(client, command->view, why);
    case CAPSTAN__CONTROL__BODY_STOP:
        return bench_client_handle_stop(client, command->stop, why);
    default:
        return STATUS_OK;
    }
}

static enum status bench_client_handle_controls(struct bench_client *client,
                                                struct failure *why) {
    const Capstan__Control *command;
    enum status status;
    do {
        status = control_client_receive(client->control_client, time_now(),
                                        &command, why);
        if (!status && command)
            status = bench_client_handle_control(client, command, why);
    } while (!status && command && !client->stopped);
    return status;
}

/* The measurement is complete or has failed: leaves the loop. */
static enum status bench_client_finish(struct bench_client *client,
                                       struct failure *why) {
    enum status status = STATUS_OK;
    if (!client->task || !background_task_poll(client->task, &status, why) ||
        status)
        return status;
    control_client_heartbeat(client->control_client)->clock = client->clock;
    control_client_send_finished(client->control_client, client->clock, false,
                                 false);
    return STATUS_OK;
}

/* On a signal the measurement is discarded. */
static void bench_client_handle_signal(struct bench_client *client) {
    eventfd_t number = 0;
    if (eventfd_read(client->process.interrupts, &number))
        return;
    client->interrupted = failure_code_of_signal((int)number);
    client->stopped = true;
}

static enum status bench_client_run_once(struct bench_client *client,
                                         struct failure *why) {
    zmq_pollitem_t items[] = {
        {control_client_socket(client->control_client), 0, ZMQ_POLLIN, 0},
        {NULL, client->process.interrupts, ZMQ_POLLIN, 0},
        {NULL, client->task ? background_task_descriptor(client->task) : -1,
         ZMQ_POLLIN, 0},
    };
    zmq_poll(items, 3,
             time_poll_ms(time_now(),
                          control_client_deadline(client->control_client)));
    enum status status =
        control_client_step(client->control_client, time_now(), why);
    if (!status)
        status = bench_client_handle_controls(client, why);
    if (items[1].revents)
        bench_client_handle_signal(client);
    return status || client->stopped ? status
                                     : bench_client_finish(client, why);
}

static enum status bench_client_open_client(struct bench_client *client,
                                            struct failure *why) {
    struct control_client_settings settings = {
        .process = &client->process, .member = &client->settings->member};
    return control_client_open(&client->control_client, &settings, why);
}

static void close_client(struct bench_client *client) {
    json_decref(client->result);
    plan_close(&client->plan);
    layout_free(&client->layout);
    job_free(&client->job);
    control_client_close(&client->control_client);
    free(client);
}

enum status bench_client_run(const struct bench_client_settings *settings,
                             char **result, struct failure *why) {
    struct bench_client *client = calloc(1, sizeof *client);
    *result = NULL;
    if (!client)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a client");
    client->settings = settings;
    client->process = settings->process;
    enum status status = bench_client_open_client(client, why);
    while (!status && !client->stopped)
        status = bench_client_run_once(client, why);
    atomic_store(&client->stop, true);
    background_task_close(&client->task);
    if (client->interrupted) {
        status = status_fail(why, client->interrupted, "ended by a signal");
        control_client_leave(client->control_client);
    } else if (status && !client->stopped && client->control_client) {
        control_client_send_failed(client->control_client, why);
        control_client_leave(client->control_client);
    }
    if (!status && client->result)
        *result = json_dumps(client->result, JSON_COMPACT);
    close_client(client);
    return status;
}
