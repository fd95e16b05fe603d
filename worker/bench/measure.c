/* SPDX-License-Identifier: Apache-2.0 */
/* For each size and kind of request the movers take turns, and the turns are
 * repeated: what the machine does in the course of minutes then meets all of
 * them. A figure is the median over the repeats. Each turn is two laps, one
 * with many vectors under way for the rate, one with a single one for the
 * latency. */
#include "worker/bench/measure.h"

#include "proto/base/time.h"
#include "worker/bench/bare_zmq.h"
#include "worker/bench/plain_socket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_REPEATS = 101, MOST_SAMPLES = 1 << 16, MOST_DEPTH = 1000 };
static const double AHEAD_BYTES = 16 << 20, GIGA = 1e9;

/* Who moves the bytes. */
enum mover { LANE, SOCKET, ZMQ, MOVERS };
static const char *const mover_names[MOVERS] = {"lane", "socket", "zmq"};

/* One figure: a value of each lap. */
struct figure {
    double vectors_s[MOST_REPEATS], messages_s[MOST_REPEATS];
    double p50[MOST_REPEATS], p99[MOST_REPEATS];
};

struct size {
    uint64_t bytes;
    uint32_t first, count; /* blocks */
    struct figure figures[LAP_KINDS][MOVERS];
    double copied_s[MOST_REPEATS]; /* vectors by memcpy */
};

struct measure {
    const struct measure_settings *settings;
    const struct layout *layout;
    struct stream *stream;
    struct plain_socket *plain;
    struct bare_zmq *bare;
    struct size *sizes; /* [num_sizes + 1]: the small ones last */
    int64_t *latencies;
    char *from, *to;  /* memcpy's */
    int64_t duration; /* of a lap */
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
        return status_fail(why, STATUS_RETRY, "no memory for a layout");
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
    double depth = AHEAD_BYTES / (double)bytes;
    return depth > MOST_DEPTH ? MOST_DEPTH : depth < 2 ? 2 : (uint32_t)depth;
}

static void copy_lap(struct measure *measure, struct lap *lap) {
    int64_t start = time_now();
    size_t ring = LAP_RING_BYTES;
    lap->vectors = 0;
    do {
        for (size_t done = 0; done < lap->bytes; done += ring)
            memcpy(measure->to, measure->from,
                   lap->bytes - done < ring ? lap->bytes - done : ring);
        __asm__ volatile("" : : "r"(measure->to) : "memory");
        lap->vectors++;
        lap->elapsed = time_now() - start;
    } while (lap_goes_on(lap, lap->vectors, lap->elapsed));
}

static enum status run_lap(struct measure *measure, const struct size *size,
                           enum mover mover, struct lap *lap,
                           struct failure *why) {
    lap->bytes = size->bytes;
    lap->stop = measure->settings->stop;
    if (mover == SOCKET)
        return plain_socket_lap(measure->plain, lap, why);
    if (mover == ZMQ)
        return bare_zmq_lap(measure->bare, lap, why);
    return stream_lap(measure->stream, size->first, size->count, lap, why);
}

/* Two laps: many vectors under way for the rate, one for the latency. */
static enum status fill_figure(struct measure *measure, struct size *size,
                               enum lap_kind kind, enum mover mover,
                               uint32_t repeat, struct failure *why) {
    struct figure *figure = &size->figures[kind][mover];
    struct lap lap = {.kind = kind,
                      .depth = depth_of(size->bytes),
                      .duration = measure->duration};
    enum status status = run_lap(measure, size, mover, &lap, why);
    if (status)
        return status;
    figure->vectors_s[repeat] = lap_vectors_s(&lap);
    figure->messages_s[repeat] = lap_messages_s(&lap);
    lap = (struct lap){.kind = kind,
                       .depth = 1,
                       .duration = measure->duration,
                       .latencies = measure->latencies,
                       .room = MOST_SAMPLES};
    status = run_lap(measure, size, mover, &lap, why);
    figure->p50[repeat] = lap_latency_us(&lap, 0.5);
    figure->p99[repeat] = lap_latency_us(&lap, 0.99);
    return status;
}

static enum status fill_size(struct measure *measure, struct size *size,
                             uint32_t repeat, struct failure *why) {
    enum status status = STATUS_OK;
    struct lap copy = {.bytes = size->bytes, .duration = measure->duration};
    copy_lap(measure, &copy);
    size->copied_s[repeat] = lap_vectors_s(&copy);
    for (int kind = 0; !status && kind < LAP_KINDS; kind++)
        for (int mover = 0; !status && mover < MOVERS; mover++)
            status = fill_figure(measure, size, (enum lap_kind)kind,
                                 (enum mover)mover, repeat, why);
    return status;
}

/* The small ones by the lane only: what they share is a message of ours. */
static enum status fill_small(struct measure *measure, uint32_t repeat,
                              struct failure *why) {
    struct size *small = &measure->sizes[measure->settings->num_sizes];
    enum status status = STATUS_OK;
    for (int kind = 0; !status && kind < LAP_KINDS; kind++)
        status =
            fill_figure(measure, small, (enum lap_kind)kind, LANE, repeat, why);
    return status;
}

static bool stopped(const struct measure *measure) {
    return measure->settings->stop && atomic_load(measure->settings->stop);
}

static enum status fill_all(struct measure *measure, struct failure *why) {
    const struct measure_settings *settings = measure->settings;
    enum status status = STATUS_OK;
    for (uint32_t r = 0; r < settings->repeats && !status; r++) {
        log_info(settings->log, "measuring, %u of %u", r + 1,
                 settings->repeats);
        for (uint32_t i = 0; i < settings->num_sizes && !status; i++)
            status = fill_size(measure, &measure->sizes[i], r, why);
        if (!status)
            status = fill_small(measure, r, why);
        if (!status && stopped(measure))
            status = status_fail(why, STATUS_INTERRUPTED, "ended by a signal");
    }
    return status;
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *tell_figure(struct figure *figure, uint64_t bytes,
                           uint32_t together, uint32_t repeats,
                           double *gigabytes) {
    json_t *object = json_object();
    double vectors_s = lap_median(figure->vectors_s, repeats);
    *gigabytes = vectors_s * (double)bytes / GIGA;
    set_real(object, "gb_s", *gigabytes);
    set_real(object, "requests_s", vectors_s * together);
    set_real(object, "messages_s", lap_median(figure->messages_s, repeats));
    set_real(object, "p50_us", lap_median(figure->p50, repeats));
    set_real(object, "p99_us", lap_median(figure->p99, repeats));
    return object;
}

static json_t *tell_kind(struct size *size, int kind, uint32_t repeats) {
    json_t *object = json_object();
    double gigabytes[MOVERS];
    for (int mover = 0; mover < MOVERS; mover++)
        json_object_set_new(object, mover_names[mover],
                            tell_figure(&size->figures[kind][mover],
                                        size->bytes, 1, repeats,
                                        &gigabytes[mover]));
    set_real(object, "of_socket", gigabytes[LANE] / gigabytes[SOCKET]);
    set_real(object, "of_zmq", gigabytes[LANE] / gigabytes[ZMQ]);
    return object;
}

static json_t *tell_size(struct size *size, uint32_t repeats) {
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)size->bytes));
    set_real(object, "memcpy_gb_s",
             lap_median(size->copied_s, repeats) * (double)size->bytes / GIGA);
    for (int kind = 0; kind < LAP_KINDS; kind++)
        json_object_set_new(object, lap_kind_name((enum lap_kind)kind),
                            tell_kind(size, kind, repeats));
    return object;
}

static json_t *tell_small(struct size *small, uint32_t repeats) {
    json_t *object = json_object();
    double ignored;
    json_object_set_new(object, "bytes",
                        json_integer(MEASURE_SMALL_FLOATS * sizeof(float)));
    json_object_set_new(object, "together", json_integer(MEASURE_SMALL));
    for (int kind = 0; kind < LAP_KINDS; kind++)
        json_object_set_new(object, lap_kind_name((enum lap_kind)kind),
                            tell_figure(&small->figures[kind][LANE],
                                        small->bytes, MEASURE_SMALL, repeats,
                                        &ignored));
    return object;
}

static json_t *tell_all(struct measure *measure) {
    const struct measure_settings *settings = measure->settings;
    json_t *object = json_object(), *sizes = json_array();
    json_object_set_new(object, "repeats", json_integer(settings->repeats));
    json_object_set_new(object, "cores",
                        json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    for (uint32_t i = 0; i < settings->num_sizes; i++)
        json_array_append_new(sizes,
                              tell_size(&measure->sizes[i], settings->repeats));
    json_object_set_new(object, "sizes", sizes);
    json_object_set_new(
        object, "batched",
        tell_small(&measure->sizes[settings->num_sizes], settings->repeats));
    return object;
}

/* Where the vectors lie in the plan. */
static void find_blocks(struct measure *measure) {
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
    measure->latencies = malloc(MOST_SAMPLES * sizeof(int64_t));
    measure->from = malloc(LAP_RING_BYTES);
    measure->to = malloc(LAP_RING_BYTES);
    if (!measure->sizes || !measure->latencies || !measure->from ||
        !measure->to)
        return status_fail(why, STATUS_RETRY, "no memory to measure with");
    memset(measure->from, 1, LAP_RING_BYTES);
    memset(measure->to, 0, LAP_RING_BYTES);
    find_blocks(measure);
    enum status status = plain_socket_open(
        &measure->plain, settings->reference->plain_port, why);
    return status ? status
                  : bare_zmq_open(&measure->bare, settings->zmq,
                                  settings->reference->zmq_port, why);
}

static void close_all(struct measure *measure) {
    plain_socket_close(&measure->plain);
    bare_zmq_close(&measure->bare);
    free(measure->sizes);
    free(measure->latencies);
    free(measure->from);
    free(measure->to);
}

enum status measure_run(json_t **out, struct stream *stream,
                        const struct layout *layout,
                        const struct measure_settings *settings,
                        struct failure *why) {
    struct measure measure = {
        .settings = settings,
        .layout = layout,
        .stream = stream,
        .duration =
            time_from_seconds(settings->seconds / settings->repeats / 2),
    };
    *out = NULL;
    enum status status = open_all(&measure, why);
    if (!status)
        status = fill_all(&measure, why);
    if (!status)
        *out = tell_all(&measure);
    close_all(&measure);
    return status;
}
