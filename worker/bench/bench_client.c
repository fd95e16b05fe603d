/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's life without training: it joins, declares parameters that are the
 * vectors to be moved, and once a view lists it measures on a thread of its
 * own, while this one keeps in touch with the chief. */
#include "worker/bench/bench_client.h"

#include "proto/base/time.h"
#include "proto/net/messages/member.h"
#include "proto/tensor/plan.h"
#include "worker/bench/endure.h"
#include "worker/bench/measure.h"
#include "worker/bench/stream.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

struct bench_client {
    const struct bench_client_settings *settings;
    struct member *member;
    struct job *job;
    struct plan *plan;
    struct layout *layout; /* as declared */
    uint32_t rank;
    uint64_t from;
    bool measuring, stopped;
    enum status interrupted;

    /* The measuring thread's, until it raises `done`. */
    pthread_t thread;
    int done; /* eventfd */
    atomic_bool stop;
    enum status status;
    struct failure why;
    json_t *result;
    uint64_t clock;
};

static enum status measure(struct bench_client *client, struct stream *stream) {
    const struct bench_client_settings *s = client->settings;
    struct measure_settings measure = {.log = s->log,
                                       .zmq = s->zmq,
                                       .sizes = s->sizes,
                                       .num_sizes = s->num_sizes,
                                       .repeats = s->repeats,
                                       .seconds = s->seconds,
                                       .reference = s->reference,
                                       .stop = &client->stop};
    struct endure_settings endure = {.layout = client->plan->layout,
                                     .requests = s->requests,
                                     .batched = s->batched,
                                     .ps_pids = s->ps_pids,
                                     .stop = &client->stop};
    if (s->requests)
        return endure_run(&client->result, stream, &endure, &client->why);
    return measure_run(&client->result, stream, client->plan->layout, &measure,
                       &client->why);
}

static void *run_thread(void *argument) {
    struct bench_client *client = argument;
    struct stream_settings settings = {.zmq = client->settings->zmq,
                                       .log = client->settings->log,
                                       .lanes = client->settings->lanes,
                                       .plan = client->plan,
                                       .run = member_run(client->member),
                                       .incarnation =
                                           member_incarnation(client->member),
                                       .rank = client->rank,
                                       .from = client->from,
                                       .timeout = client->settings->timeout};
    struct stream *stream;
    client->status = stream_open(&stream, &settings, &client->why);
    if (!client->status)
        client->status = measure(client, stream);
    if (stream)
        client->clock = stream_clock(stream);
    if (client->result) {
        json_object_set_new(client->result, "ps",
                            json_integer(client->plan->num_ps));
        json_object_set_new(client->result, "lane",
                            json_string(stream_lane(stream)));
    }
    stream_close(&stream);
    eventfd_write(client->done, 1);
    return NULL;
}

static void tell_declaration(struct bench_client *client) {
    Capstan__Declaration declaration = CAPSTAN__DECLARATION__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Parameter **parameters = NULL;
    declaration.digest = layout_digest(client->layout);
    declaration.train_samples = declaration.batches_per_epoch = UINT32_MAX;
    declaration.passes = true;
    if (client->rank == 0) {
        parameters = plan_parameters(client->layout);
        declaration.n_parameters =
            parameters ? client->layout->num_parameters : 0;
        declaration.parameters = parameters;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_DECLARATION;
    control.declaration = &declaration;
    member_tell(client->member, &control);
    plan_free_parameters(&parameters);
}

static void tell_left(struct bench_client *client, bool goodbye,
                      const struct failure *why) {
    Capstan__Left left = CAPSTAN__LEFT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    left.goodbye = goodbye;
    left.clock = client->clock;
    if (why) {
        left.status = why->status;
        left.text = (char *)why->text;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_LEFT;
    control.left = &left;
    member_tell(client->member, &control);
}

static enum status take_welcome(struct bench_client *client,
                                const Capstan__Welcome *welcome,
                                struct failure *why) {
    const struct bench_client_settings *s = client->settings;
    enum status status = job_parse(&client->job, welcome->job, why);
    if (!status)
        status = job_solve_batch(client->job, welcome->trainers, why);
    if (!status)
        status = measure_layout(&client->layout, s->sizes, s->num_sizes, why);
    if (status)
        return status;
    client->rank = welcome->rank;
    member_timeout(client->member, client->job->timeouts.peer);
    tell_declaration(client);
    return STATUS_OK;
}

/* Measuring begins when a view lists me; all but the first client look on. */
static enum status take_view(struct bench_client *client,
                             const Capstan__View *view, struct failure *why) {
    member_beat(client->member)->view = view->number;
    if (client->measuring || !client->plan || client->rank >= view->n_slots)
        return STATUS_OK;
    const Capstan__Slot *me = view->slots[client->rank];
    if (me->incarnation != member_incarnation(client->member))
        return STATUS_OK;
    client->from = me->from_clock;
    client->measuring = true;
    int error = 0;
    if (client->rank)
        eventfd_write(client->done, 1);
    else
        error = pthread_create(&client->thread, NULL, run_thread, client);
    if (!error)
        return STATUS_OK;
    client->measuring = false;
    return status_errno(why, STATUS_FAILED, error, "cannot start a thread");
}

static enum status take_stop(struct bench_client *client,
                             const Capstan__Stop *stop, struct failure *why) {
    client->stopped = true;
    member_bye(client->member);
    return stop->status ? status_fail(why, (enum status)stop->status,
                                      "the chief ended the run: %s", stop->text)
                        : STATUS_OK;
}

static enum status obey(struct bench_client *client,
                        const Capstan__Control *order, struct failure *why) {
    switch (order->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return client->job ? STATUS_OK
                           : take_welcome(client, order->welcome, why);
    case CAPSTAN__CONTROL__BODY_PLAN:
        return client->plan || !client->job
                   ? STATUS_OK
                   : plan_read(&client->plan, order->plan, client->job, why);
    case CAPSTAN__CONTROL__BODY_VIEW:
        return take_view(client, order->view, why);
    case CAPSTAN__CONTROL__BODY_STOP:
        return take_stop(client, order->stop, why);
    default:
        return STATUS_OK;
    }
}

static enum status obey_all(struct bench_client *client, struct failure *why) {
    const Capstan__Control *order;
    enum status status;
    do {
        status = member_receive(client->member, time_now(), &order, why);
        if (!status && order)
            status = obey(client, order, why);
    } while (!status && order && !client->stopped);
    return status;
}

/* All is measured, or something failed: out of the loop. */
static enum status finish(struct bench_client *client, struct failure *why) {
    eventfd_t count;
    if (eventfd_read(client->done, &count))
        return STATUS_OK;
    if (client->status) {
        *why = client->why;
        return client->status;
    }
    member_beat(client->member)->clock = client->clock;
    tell_left(client, false, NULL);
    return STATUS_OK;
}

/* A signal: what is measured is dropped. */
static void interrupt(struct bench_client *client) {
    eventfd_t number = 0;
    if (eventfd_read(client->settings->interrupts, &number))
        return;
    client->interrupted = status_of_signal((int)number);
    client->stopped = true;
}

static enum status turn(struct bench_client *client, struct failure *why) {
    zmq_pollitem_t items[] = {
        {member_socket(client->member), 0, ZMQ_POLLIN, 0},
        {NULL, client->settings->interrupts, ZMQ_POLLIN, 0},
        {NULL, client->done, ZMQ_POLLIN, 0},
    };
    zmq_poll(items, 3,
             time_poll_ms(time_now(), member_deadline(client->member)));
    enum status status = member_step(client->member, time_now(), why);
    if (!status)
        status = obey_all(client, why);
    if (items[1].revents)
        interrupt(client);
    return status || client->stopped ? status : finish(client, why);
}

static enum status open_client(struct bench_client *client,
                               struct failure *why) {
    const struct bench_client_settings *settings = client->settings;
    struct member_settings member = {
        .zmq = settings->zmq,
        .log = settings->log,
        .role = CLUSTER_WORKER,
        .index = settings->index,
        .device = "cpu",
        .chief = settings->chief,
        .chief_ports = settings->chief_ports,
        .key = settings->key,
        .join_timeout = settings->join_timeout,
        .record = settings->record,
    };
    client->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (client->done < 0)
        return status_errno(why, STATUS_FAILED, errno,
                            "cannot open an eventfd");
    return member_open(&client->member, &member, why);
}

static void close_client(struct bench_client *client) {
    json_decref(client->result);
    plan_close(&client->plan);
    layout_free(&client->layout);
    job_free(&client->job);
    member_close(&client->member);
    if (client->done >= 0)
        close(client->done);
    free(client);
}

enum status bench_client_run(const struct bench_client_settings *settings,
                             char **result, struct failure *why) {
    struct bench_client *client = calloc(1, sizeof *client);
    *result = NULL;
    if (!client)
        return status_fail(why, STATUS_RETRY, "no memory for a client");
    client->settings = settings;
    enum status status = open_client(client, why);
    while (!status && !client->stopped)
        status = turn(client, why);
    atomic_store(&client->stop, true);
    if (client->measuring && client->rank == 0)
        pthread_join(client->thread, NULL);
    if (client->interrupted) {
        status = status_fail(why, client->interrupted, "ended by a signal");
        tell_left(client, true, NULL);
        member_bye(client->member);
    } else if (status && !client->stopped && client->member) {
        tell_left(client, false, why);
        member_bye(client->member);
    }
    if (!status && client->result)
        *result = json_dumps(client->result, JSON_COMPACT);
    close_client(client);
    return status;
}
