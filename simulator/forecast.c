/* SPDX-License-Identifier: Apache-2.0 */
/* From flags and measured costs to a case, and from its result to lines, a
 * table or JSON. --overhead scales what the exchange costs and leaves the
 * computing. */
#include "simulator/forecast.h"

#include "proto/net/messages/message.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

enum { MOST_WORKERS = 256, MOST_PS = 64, WARM = 3, SWEEP_ROUNDS = 4 };

/* 1448 bytes of payload in a frame of 1514: TCP with timestamps over Ethernet.
 */
double forecast_rate(double gbits) {
    return gbits * 1e9 / 8 * 1448 / 1514;
}

static struct model_costs scaled(const struct model_costs *costs,
                                 double factor) {
    return (struct model_costs){.step = costs->step,
                                .message = factor * costs->message,
                                .wake = factor * costs->wake,
                                .turn = factor * costs->turn,
                                .send_byte = factor * costs->send_byte,
                                .receive_byte = factor * costs->receive_byte,
                                .copy_byte = factor * costs->copy_byte,
                                .update_byte = factor * costs->update_byte,
                                .gradient_byte = factor * costs->gradient_byte};
}

void forecast_case(struct model_case *given, const struct forecast *forecast,
                   const struct simulate_options *flags) {
    static const enum model_place places[] = {[SIMULATE_APART] = MODEL_APART,
                                              [SIMULATE_PAIRS] = MODEL_PAIRS,
                                              [SIMULATE_ONE] = MODEL_ONE};
    *given = (struct model_case){
        .num_ps = forecast->num_ps,
        .num_workers = forecast->num_workers,
        .layout = forecast->layout,
        .forward = forecast->forward,
        .backward = forecast->backward,
        .costs = scaled(&forecast->costs, flags->overhead),
        .staleness = forecast->staleness,
        .clip = forecast->clip,
        .bf16 = forecast->bf16,
        .group_bytes = flags->group ? (uint32_t)flags->group
                                    : message_group(flags->place == SIMULATE_ONE
                                                        ? 0
                                                        : flags->link_gbits),
        .place = places[flags->place],
        .link_rate =
            flags->place == SIMULATE_ONE ? 0 : forecast_rate(flags->link_gbits),
        .latency = 1e-6 * flags->latency_us,
        .cores = flags->cores ? (uint32_t)flags->cores : forecast->cores,
        .crowded = forecast->crowded,
        .share_cores = flags->share_cores,
        .jitter = flags->jitter,
        .seed = flags->seed,
        .warm = WARM,
        .rounds = (uint32_t)flags->rounds,
    };
}

static double computing(const struct forecast *forecast) {
    double seconds = forecast->costs.step;
    for (uint32_t p = 0; p < forecast->layout->num_parameters; p++)
        seconds += forecast->forward[p] + forecast->backward[p];
    return seconds;
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, json_real(value));
}

static void set_count(json_t *object, const char *key, uint64_t value) {
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *result_object(const struct model_case *given,
                             const struct model_result *result) {
    json_t *object = json_object(), *usage = json_object();
    set_count(object, "ps", given->num_ps);
    set_count(object, "workers", given->num_workers);
    set_real(object, "round_seconds", result->mean);
    set_real(object, "round_p99_seconds", result->p99);
    set_real(object,
             given->staleness ? "steps_per_second" : "rounds_per_second",
             result->rate);
    json_object_set_new(object, "bound_seconds",
                        result->bound > 0 ? json_real(result->bound)
                                          : json_null());
    json_object_set_new(object, "share_of_bound",
                        result->bound > 0 ? json_real(result->share)
                                          : json_null());
    json_object_set_new(object, "limit",
                        json_string(model_resource_name(result->limit)));
    for (int r = 0; r < MODEL_RESOURCES; r++)
        set_real(usage, model_resource_name((enum model_resource)r),
                 result->usage[r]);
    json_object_set_new(object, "usage", usage);
    return object;
}

static json_t *case_object(const struct forecast *forecast,
                           const struct model_case *given) {
    json_t *object = json_object(), *costs = json_object();
    set_count(object, "bytes", 4 * given->layout->elements);
    set_count(object, "blocks", given->layout->num_blocks);
    set_real(object, "link_bytes_per_second", given->link_rate);
    set_real(object, "latency_seconds", given->latency);
    set_count(object, "cores", given->cores);
    set_real(object, "crowded", given->crowded);
    set_real(object, "computing_seconds", computing(forecast));
    if (forecast->replicas) {
        set_count(object, "replicas", forecast->replicas);
        set_count(object, "micro_batch", forecast->micro_batch);
        set_count(object, "accumulation", forecast->accumulation);
    }
    set_real(object, "jitter", given->jitter);
    set_count(object, "seed", given->seed);
    set_real(costs, "message", given->costs.message);
    set_real(costs, "wake", given->costs.wake);
    set_real(costs, "turn", given->costs.turn);
    set_real(costs, "send_byte", given->costs.send_byte);
    set_real(costs, "receive_byte", given->costs.receive_byte);
    set_real(costs, "copy_byte", given->costs.copy_byte);
    set_real(costs, "update_byte", given->costs.update_byte);
    set_real(costs, "gradient_byte", given->costs.gradient_byte);
    json_object_set_new(object, "cost_seconds", costs);
    return object;
}

static void print_json(FILE *out, json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fprintf(out, "%s\n", text ? text : "");
    free(text);
    json_decref(object);
}

/* What the figures stand on. */
static void print_case(FILE *out, const struct forecast *forecast,
                       const struct model_case *given) {
    const struct model_costs *costs = &given->costs;
    fprintf(out,
            "simulated: %.2f MB in %u blocks, computing %.3f ms a step, %s\n",
            4e-6 * (double)given->layout->elements, given->layout->num_blocks,
            1e3 * computing(forecast),
            !given->staleness
                ? (given->clip ? "synchronous, clipping" : "synchronous")
            : given->staleness == MODEL_ASYNCHRONOUS ? "asynchronous"
                                                     : "stale-synchronous");
    if (given->link_rate > 0)
        fprintf(out, "links of %.1f MB/s each way, %.0f us apart; ",
                1e-6 * given->link_rate, 1e6 * given->latency);
    fprintf(out, "%u cores%s\n", given->cores,
            given->share_cores          ? " for all of them"
            : given->place == MODEL_ONE ? ""
                                        : " a host");
    fprintf(out,
            "measured here: message %.1f us in each thread, %.1f more in one "
            "that slept (%.1f where all cores are busy), byte %.3f ns sent, "
            "%.3f received, %.3f copied, %.3f updated and %.3f a gradient\n",
            1e6 * costs->message, 1e6 * costs->wake, 1e6 * costs->turn,
            1e9 * costs->send_byte, 1e9 * costs->receive_byte,
            1e9 * costs->copy_byte, 1e9 * costs->update_byte,
            1e9 * costs->gradient_byte);
}

static void print_result(FILE *out, const struct model_case *given,
                         const struct model_result *result) {
    fprintf(out, "%u ps, %u workers: %s %.3f ms, p99 %.3f ms; %.1f %s/s\n",
            given->num_ps, given->num_workers,
            given->staleness ? "a step takes" : "a round takes",
            1e3 * result->mean, 1e3 * result->p99, result->rate,
            given->staleness ? "steps" : "rounds");
    if (result->bound > 0)
        fprintf(out, "bound by the links: %.3f ms; %.1f %% of it reached\n",
                1e3 * result->bound, 100 * result->share);
    fprintf(out, "most used: %s, %.0f %%\n", model_resource_name(result->limit),
            100 * result->usage[result->limit]);
}

static enum status print_one(FILE *out, const struct forecast *forecast,
                             const struct model_case *given,
                             struct failure *why) {
    struct model_result result;
    enum status status = model_run(given, &result, why);
    if (status)
        return status;
    if (forecast->json) {
        json_t *object = case_object(forecast, given);
        json_t *found = result_object(given, &result);
        json_object_update(object, found);
        json_decref(found);
        print_json(out, object);
    } else {
        print_case(out, forecast, given);
        print_result(out, given, &result);
    }
    return STATUS_OK;
}

static void print_heads(FILE *out) {
    fprintf(out, "\nms a round and %% of the bound, by ps; the last column is "
                 "the best share's limit\nworkers");
    for (uint32_t ps = 1; ps <= MOST_PS; ps *= 2)
        fprintf(out, " %11u", ps);
    fprintf(out, "\n");
}

/* One line of the table: all ps that there are blocks for. */
static enum status sweep_line(FILE *out, struct model_case given, json_t *list,
                              struct failure *why) {
    enum status status = STATUS_OK;
    struct model_result result, best = {0};
    if (!list)
        fprintf(out, "%7u", given.num_workers);
    for (uint32_t ps = 1;
         !status && ps <= MOST_PS && ps <= given.layout->num_blocks; ps *= 2) {
        given.num_ps = ps;
        status = model_run(&given, &result, why);
        if (!status && list)
            json_array_append_new(list, result_object(&given, &result));
        else if (!status)
            fprintf(out, " %7.2f %3.0f", 1e3 * result.mean, 100 * result.share);
        if (!status && result.share >= best.share)
            best = result;
    }
    if (!list)
        fprintf(out, "  %s\n", model_resource_name(best.limit));
    fflush(out);
    return status;
}

static enum status print_sweep(FILE *out, const struct forecast *forecast,
                               struct model_case *given, struct failure *why) {
    enum status status = STATUS_OK;
    json_t *list = forecast->json ? json_array() : NULL;
    if (given->rounds > SWEEP_ROUNDS)
        given->rounds = SWEEP_ROUNDS;
    given->warm = 2;
    if (!list) {
        print_case(out, forecast, given);
        print_heads(out);
    }
    for (uint32_t workers = 1; !status && workers <= MOST_WORKERS;
         workers *= 2) {
        given->num_workers = workers;
        status = sweep_line(out, *given, list, why);
    }
    if (!list)
        return status;
    json_t *object = case_object(forecast, given);
    json_object_set_new(object, "cases", list);
    if (status)
        json_decref(object);
    else
        print_json(out, object);
    return status;
}

enum status forecast_print(FILE *out, const struct forecast *forecast,
                           const struct simulate_options *flags,
                           struct failure *why) {
    struct model_case given;
    forecast_case(&given, forecast, flags);
    return flags->sweep ? print_sweep(out, forecast, &given, why)
                        : print_one(out, forecast, &given, why);
}
