/* SPDX-License-Identifier: Apache-2.0 */
/* A worker without training: it joins, sends a model spec whose parameters are
 * the vectors to move, and once a view lists it measures on a separate thread,
 * while this one communicates with the chief. */
#include "commands/measure/bench_client.h"

#include "commands/measure/baselines.h"
#include "commands/measure/bench_stream_client.h"
#include "core/base/background_task.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/tensor/layout.h"
#include "proto/messages/control_client.h"
#include "proto/plan/plan.h"

#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

/* Measured are vectors of several sizes through the ps client, and in turns
 * with it through memcpy and the baselines; or very many pushes, after which
 * the memory of the ps must not have grown.
 *
 * For each size and kind of request the transports take turns, and the turns
 * are repeated, so that slow changes of the machine affect all of them. A
 * figure is the median over the repeats. Each turn has two iterations: one with
 * many vectors in flight for the rate, one with a single vector for the
 * latency. */

/* Small vectors that share a message: MEASURE_SMALL of MEASURE_SMALL_FLOATS
 * floats. */
enum { MEASURE_SMALL = 1024, MEASURE_SMALL_FLOATS = 16 };

enum { MAX_REPEATS = 101, MAX_SAMPLES = 1 << 16, MAX_DEPTH = 1000 };
static const double BYTES_IN_FLIGHT = 16 << 20, GIGA = 1e9;

/* The transports that are compared. */
enum transport { CLIENT, SOCKET, ZMQ, TRANSPORTS };
static const char *const transport_names[TRANSPORTS] = {"lane", "socket",
                                                        "zmq"};

/* One figure: a value per repeat. */
struct figure {
    double vectors_s[MAX_REPEATS], messages_s[MAX_REPEATS];
    double p50[MAX_REPEATS], p99[MAX_REPEATS];
};

struct size {
    uint64_t bytes;
    uint32_t first, count; /* blocks */
    struct figure figures[BENCH_ITERATION_KINDS][TRANSPORTS];
    double copied_s[MAX_REPEATS]; /* vectors per second by memcpy */
};

struct measure {
    const struct bench_client_settings *settings;
    const atomic_bool *stop;     /* ends it early */
    const struct layout *layout; /* of measure_layout */
    struct bench_stream_client *bench_stream_client;
    struct size *sizes; /* [num_sizes + 1]: the small ones last */
    int64_t *latencies;
    char *from, *to;  /* memcpy's buffers */
    int64_t duration; /* of an iteration */
};

static void name_parameter(struct parameter *parameter, const char *kind,
                           uint64_t number, uint64_t floats) {
    snprintf(parameter->name, sizeof parameter->name, "%s.%llu", kind,
             (unsigned long long)number);
    parameter->num_dims = 1;
    parameter->dims[0] = (uint32_t)floats;
    parameter->init_bound = 0.01f;
}

/* The parameters of the model spec: a vector of each size, then the small ones.
 * The caller owns *OUT; STATUS_CONFIG if they exceed a limit of layouts. */
static enum status measure_layout(struct layout **out, const uint64_t *sizes,
                                  uint32_t num_sizes, struct failure *why) {
    uint32_t count = num_sizes + MEASURE_SMALL;
    struct parameter *parameters = calloc(count, sizeof *parameters);
    *out = NULL;
    if (!parameters)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a layout");
    for (uint32_t i = 0; i < num_sizes; i++)
        name_parameter(&parameters[i], "vector", sizes[i],
                       sizes[i] / sizeof(float));
    for (uint32_t i = 0; i < MEASURE_SMALL; i++)
        name_parameter(&parameters[num_sizes + i], "small", i,
                       MEASURE_SMALL_FLOATS);
    enum status status = layout_build(out, parameters, count, why);
    free(parameters);
    return status;
}

static uint32_t depth_of(uint64_t bytes) {
    double depth = BYTES_IN_FLIGHT / (double)bytes;
    return depth > MAX_DEPTH ? MAX_DEPTH : depth < 2 ? 2 : (uint32_t)depth;
}

static void copy_iteration(struct measure *measure,
                           struct bench_iteration *iteration) {
    int64_t start = time_now();
    size_t ring = BENCH_ITERATION_RING_BYTES;
    iteration->vectors = 0;
    do {
        for (size_t done = 0; done < iteration->bytes; done += ring)
            memcpy(measure->to, measure->from,
                   iteration->bytes - done < ring ? iteration->bytes - done
                                                  : ring);
        __asm__ volatile("" : : "r"(measure->to) : "memory");
        iteration->vectors++;
        iteration->elapsed = time_now() - start;
    } while (bench_iteration_continues(iteration, iteration->vectors,
                                       iteration->elapsed));
}

static enum status measure_run_iteration(struct measure *measure,
                                         const struct size *size,
                                         enum transport transport,
                                         struct bench_iteration *iteration,
                                         struct failure *why) {
    iteration->bytes = size->bytes;
    iteration->stop = measure->stop;
    if (transport == CLIENT)
        return bench_stream_iteration(measure->bench_stream_client, size->first,
                                      size->count, iteration, why);
    struct baselines *baselines = measure->settings->baselines;
    return baselines->ops->run(
        baselines, transport == SOCKET ? BASELINE_SOCKET : BASELINE_ZMQ,
        iteration, why);
}

/* Two iterations: many vectors in flight for the rate, a single one for the
 * latency. */
static enum status fill_figure(struct measure *measure, struct size *size,
                               enum bench_iteration_kind kind,
                               enum transport transport, uint32_t repeat,
                               struct failure *why) {
    struct figure *figure = &size->figures[kind][transport];
    if (transport != CLIENT && !measure->settings->baselines) {
        figure->vectors_s[repeat] = figure->messages_s[repeat] =
            figure->p50[repeat] = figure->p99[repeat] = NAN;
        return STATUS_OK;
    }
    struct bench_iteration iteration = {.kind = kind,
                                        .depth = depth_of(size->bytes),
                                        .duration = measure->duration};
    enum status status =
        measure_run_iteration(measure, size, transport, &iteration, why);
    if (status)
        return status;
    figure->vectors_s[repeat] = bench_iteration_vectors_s(&iteration);
    figure->messages_s[repeat] = bench_iteration_messages_s(&iteration);
    iteration = (struct bench_iteration){.kind = kind,
                                         .depth = 1,
                                         .duration = measure->duration,
                                         .latencies = measure->latencies,
                                         .capacity = MAX_SAMPLES};
    status = measure_run_iteration(measure, size, transport, &iteration, why);
    figure->p50[repeat] = bench_iteration_latency_us(&iteration, 0.5);
    figure->p99[repeat] = bench_iteration_latency_us(&iteration, 0.99);
    return status;
}

static enum status fill_size(struct measure *measure, struct size *size,
                             uint32_t repeat, struct failure *why) {
    enum status status = STATUS_OK;
    struct bench_iteration copy = {.bytes = size->bytes,
                                   .duration = measure->duration};
    copy_iteration(measure, &copy);
    size->copied_s[repeat] = bench_iteration_vectors_s(&copy);
    for (int kind = 0; !status && kind < BENCH_ITERATION_KINDS; kind++)
        for (int transport = 0; !status && transport < TRANSPORTS; transport++)
            status = fill_figure(measure, size, (enum bench_iteration_kind)kind,
                                 (enum transport)transport, repeat, why);
    return status;
}

/* Small vectors are measured with the client only: sharing messages is a
 * feature of Capstan's protocol. */
static enum status fill_small(struct measure *measure, uint32_t repeat,
                              struct failure *why) {
    struct size *small = &measure->sizes[measure->settings->num_sizes];
    enum status status = STATUS_OK;
    for (int kind = 0; !status && kind < BENCH_ITERATION_KINDS; kind++)
        status = fill_figure(measure, small, (enum bench_iteration_kind)kind,
                             CLIENT, repeat, why);
    return status;
}

static bool stopped(const struct measure *measure) {
    return measure->stop && atomic_load(measure->stop);
}

static enum status fill_all(struct measure *measure, struct failure *why) {
    const struct bench_client_settings *settings = measure->settings;
    enum status status = STATUS_OK;
    for (uint32_t r = 0; r < settings->repeats && !status; r++) {
        log_info(settings->process.log, "measurement_started",
                 "measuring, %u of %u", r + 1, settings->repeats);
        for (uint32_t i = 0; i < settings->num_sizes && !status; i++)
            status = fill_size(measure, &measure->sizes[i], r, why);
        if (!status)
            status = fill_small(measure, r, why);
        if (!status && stopped(measure))
            status = status_fail(why, FAILURE_INTERRUPTED, "ended by a signal");
    }
    return status;
}

static void measure_set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *figure_json(struct figure *figure, uint64_t bytes,
                           uint32_t vectors_per_message, uint32_t repeats,
                           double *gigabytes) {
    json_t *object = json_object();
    double vectors_s = bench_iteration_median(figure->vectors_s, repeats);
    *gigabytes = vectors_s * (double)bytes / GIGA;
    measure_set_real(object, "gb_s", *gigabytes);
    measure_set_real(object, "requests_s", vectors_s * vectors_per_message);
    measure_set_real(object, "messages_s",
                     bench_iteration_median(figure->messages_s, repeats));
    measure_set_real(object, "p50_us",
                     bench_iteration_median(figure->p50, repeats));
    measure_set_real(object, "p99_us",
                     bench_iteration_median(figure->p99, repeats));
    return object;
}

static json_t *kind_json(struct size *size, int kind, uint32_t repeats) {
    json_t *object = json_object();
    double gigabytes[TRANSPORTS];
    for (int transport = 0; transport < TRANSPORTS; transport++)
        json_object_set_new(object, transport_names[transport],
                            figure_json(&size->figures[kind][transport],
                                        size->bytes, 1, repeats,
                                        &gigabytes[transport]));
    measure_set_real(object, "of_socket",
                     gigabytes[CLIENT] / gigabytes[SOCKET]);
    measure_set_real(object, "of_zmq", gigabytes[CLIENT] / gigabytes[ZMQ]);
    return object;
}

static json_t *size_json(struct size *size, uint32_t repeats) {
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)size->bytes));
    measure_set_real(object, "memcpy_gb_s",
                     bench_iteration_median(size->copied_s, repeats) *
                         (double)size->bytes / GIGA);
    for (int kind = 0; kind < BENCH_ITERATION_KINDS; kind++)
        json_object_set_new(
            object, bench_iteration_kind_name((enum bench_iteration_kind)kind),
            kind_json(size, kind, repeats));
    return object;
}

static json_t *small_json(struct size *small, uint32_t repeats) {
    json_t *object = json_object();
    double ignored;
    json_object_set_new(object, "bytes",
                        json_integer(MEASURE_SMALL_FLOATS * sizeof(float)));
    json_object_set_new(object, "together", json_integer(MEASURE_SMALL));
    for (int kind = 0; kind < BENCH_ITERATION_KINDS; kind++)
        json_object_set_new(
            object, bench_iteration_kind_name((enum bench_iteration_kind)kind),
            figure_json(&small->figures[kind][CLIENT], small->bytes,
                        MEASURE_SMALL, repeats, &ignored));
    return object;
}

static json_t *measure_result_json(struct measure *measure) {
    const struct bench_client_settings *settings = measure->settings;
    json_t *object = json_object(), *sizes = json_array();
    json_object_set_new(object, "repeats", json_integer(settings->repeats));
    json_object_set_new(object, "cores",
                        json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    for (uint32_t i = 0; i < settings->num_sizes; i++)
        json_array_append_new(sizes,
                              size_json(&measure->sizes[i], settings->repeats));
    json_object_set_new(object, "sizes", sizes);
    if (!settings->baselines)
        json_object_set_new(object, "baselines_missing",
                            json_string(settings->missing));
    json_object_set_new(
        object, "batched",
        small_json(&measure->sizes[settings->num_sizes], settings->repeats));
    return object;
}

/* Finds the vectors' blocks in the plan. */
static void measure_find_blocks(struct measure *measure) {
    const struct layout *layout = measure->layout;
    uint32_t count = measure->settings->num_sizes;
    struct size *small = &measure->sizes[count];
    for (uint32_t i = 0; i < count; i++)
        measure->sizes[i] = (struct size){.bytes = measure->settings->sizes[i],
                                          .first = layout->first_block[i],
                                          .count = layout->num_blocks_of[i]};
    small->first = layout->first_block[layout->num_parameters - 1];
    small->count = MEASURE_SMALL;
    small->bytes = MEASURE_SMALL * MEASURE_SMALL_FLOATS * sizeof(float);
}

static enum status open_all(struct measure *measure, struct failure *why) {
    const struct bench_client_settings *settings = measure->settings;
    measure->sizes = calloc(settings->num_sizes + 1, sizeof *measure->sizes);
    measure->latencies = malloc(MAX_SAMPLES * sizeof(int64_t));
    measure->from = malloc(BENCH_ITERATION_RING_BYTES);
    measure->to = malloc(BENCH_ITERATION_RING_BYTES);
    if (!measure->sizes || !measure->latencies || !measure->from ||
        !measure->to)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for the measurement");
    memset(measure->from, 1, BENCH_ITERATION_RING_BYTES);
    memset(measure->to, 0, BENCH_ITERATION_RING_BYTES);
    measure_find_blocks(measure);
    return STATUS_OK;
}

static void measure_close_all(struct measure *measure) {
    free(measure->sizes);
    free(measure->latencies);
    free(measure->from);
    free(measure->to);
}

/* Resident bytes of process PID, 0 if it cannot be read. Shared memory is
 * excluded: its size is fixed, and its pages become resident with use. */
static uint64_t resident_bytes(long pid) {
    char path[64], line[256];
    unsigned long long all = 0, shared = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "VmRSS: %llu kB", &all);
        sscanf(line, "RssShmem: %llu kB", &shared);
    }
    if (file)
        fclose(file);
    return (all - shared) * 1024;
}

/* The sum over the list; null if one is unknown. */
static json_t *memory_of(const char *pids) {
    uint64_t sum = 0;
    while (pids && *pids) {
        char *end;
        uint64_t bytes = resident_bytes(strtol(pids, &end, 10));
        if (!bytes || end == pids)
            return json_null();
        sum += bytes;
        pids = *end == ',' ? end + 1 : end;
    }
    return sum ? json_integer((json_int_t)sum) : json_null();
}

static json_t *requests_json(const struct bench_iteration *iteration,
                             uint64_t vectors_per_message, json_t *start,
                             json_t *end) {
    return json_pack(
        "{s:{s:I, s:I, s:I, s:f, s:f, s:o, s:o}}", "requests", "count",
        (json_int_t)(iteration->vectors * vectors_per_message), "bytes",
        (json_int_t)(iteration->bytes / vectors_per_message), "together",
        (json_int_t)vectors_per_message, "seconds",
        time_to_seconds(iteration->elapsed), "requests_s",
        bench_iteration_vectors_s(iteration) * (double)vectors_per_message,
        "ps_memory_start", start, "ps_memory_end", end);
}

/* Very many pushes; a tenth as many before them to warm up, as one-time
 * allocations happen then. */
static enum status measure_requests(json_t **out, const struct measure *measure,
                                    struct failure *why) {
    const struct bench_client_settings *settings = measure->settings;
    const struct layout *layout = measure->layout;
    struct bench_stream_client *client = measure->bench_stream_client;
    uint32_t together = settings->batched ? MEASURE_SMALL : 1;
    uint32_t last = layout->num_parameters - 1;
    uint32_t first = layout->first_block[settings->batched ? last : 0];
    uint32_t count = settings->batched ? together : layout->num_blocks_of[0];
    uint64_t times = (settings->requests + together - 1) / together;
    struct bench_iteration iteration = {.kind = BENCH_ITERATION_PUSH,
                                        .depth = MAX_DEPTH,
                                        .times = times / 10 + 1,
                                        .stop = measure->stop};
    enum status status =
        bench_stream_iteration(client, first, count, &iteration, why);
    if (status)
        return status;
    json_t *start = memory_of(settings->ps_pids);
    iteration.times = times;
    status = bench_stream_iteration(client, first, count, &iteration, why);
    if (!status && iteration.vectors < times)
        status = status_fail(why, FAILURE_INTERRUPTED, "ended by a signal");
    if (status)
        json_decref(start);
    else
        *out = requests_json(&iteration, together, start,
                             memory_of(settings->ps_pids));
    return status;
}

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

/* The result is the object that docs/bench.md describes. Pushes are rounded up
 * to whole messages. */
static enum status bench_client_measure(
    struct bench_client *client,
    struct bench_stream_client *bench_stream_client, struct failure *why) {
    const struct bench_client_settings *settings = client->settings;
    struct measure measure = {
        .settings = settings,
        .stop = &client->stop,
        .layout = client->plan->layout,
        .bench_stream_client = bench_stream_client,
        .duration =
            time_from_seconds(settings->seconds / settings->repeats / 2),
    };
    if (settings->requests)
        return measure_requests(&client->result, &measure, why);
    enum status status = open_all(&measure, why);
    if (!status)
        status = fill_all(&measure, why);
    if (!status)
        client->result = measure_result_json(&measure);
    measure_close_all(&measure);
    return status;
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
