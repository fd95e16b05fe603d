/* SPDX-License-Identifier: Apache-2.0 */
/* For each size and kind of request the transports take turns, and the turns
 * are repeated, so that slow changes of the machine affect all of them. A
 * figure is the median over the repeats. Each turn has two iterations: one with
 * many vectors in flight for the rate, one with a single vector for the
 * latency. */
#include "commands/measure/measure.h"

#include "core/base/time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    const struct measure_settings *settings;
    const struct layout *layout;
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

enum status measure_layout(struct layout **out, const uint64_t *sizes,
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
    iteration->stop = measure->settings->stop;
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
    return measure->settings->stop && atomic_load(measure->settings->stop);
}

static enum status fill_all(struct measure *measure, struct failure *why) {
    const struct measure_settings *settings = measure->settings;
    enum status status = STATUS_OK;
    for (uint32_t r = 0; r < settings->repeats && !status; r++) {
        log_info(settings->log, "measurement_started", "measuring, %u of %u",
                 r + 1, settings->repeats);
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
    const struct measure_settings *settings = measure->settings;
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
    const struct measure_settings *settings = measure->settings;
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
static enum status measure_requests(json_t **out,
                                    struct bench_stream_client *client,
                                    const struct layout *layout,
                                    const struct measure_settings *settings,
                                    struct failure *why) {
    uint32_t together = settings->batched ? MEASURE_SMALL : 1;
    uint32_t last = layout->num_parameters - 1;
    uint32_t first = layout->first_block[settings->batched ? last : 0];
    uint32_t count = settings->batched ? together : layout->num_blocks_of[0];
    uint64_t times = (settings->requests + together - 1) / together;
    struct bench_iteration iteration = {.kind = BENCH_ITERATION_PUSH,
                                        .depth = MAX_DEPTH,
                                        .times = times / 10 + 1,
                                        .stop = settings->stop};
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

enum status measure_run(json_t **out, struct bench_stream_client *client,
                        const struct layout *layout,
                        const struct measure_settings *settings,
                        struct failure *why) {
    struct measure measure = {
        .settings = settings,
        .layout = layout,
        .bench_stream_client = client,
        .duration =
            time_from_seconds(settings->seconds / settings->repeats / 2),
    };
    *out = NULL;
    if (settings->requests)
        return measure_requests(out, client, layout, settings, why);
    enum status status = open_all(&measure, why);
    if (!status)
        status = fill_all(&measure, why);
    if (!status)
        *out = measure_result_json(&measure);
    measure_close_all(&measure);
    return status;
}
