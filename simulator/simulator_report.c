/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a case from flags and measured costs, and prints its result as lines,
 * a table or JSON. --overhead scales the costs of messages and updates, not the
 * computing. */
#include "simulator/simulator_report.h"

#include "proto/messages/message.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

enum { MAX_WORKERS = 256, MAX_PS = 64, WARMUP_STEPS = 3, SWEEP_ROUNDS = 4 };

/* 1448 bytes of payload in a frame of 1514: TCP with timestamps over Ethernet.
 */
double simulator_report_link_rate(double gbits) {
    return gbits * 1e9 / 8 * 1448 / 1514;
}

static struct simulator_costs scale_costs(const struct simulator_costs *costs,
                                          double factor) {
    return (struct simulator_costs){
        .step = costs->step,
        .message = factor * costs->message,
        .idle_wakeup = factor * costs->idle_wakeup,
        .busy_wakeup = factor * costs->busy_wakeup,
        .send_byte = factor * costs->send_byte,
        .receive_byte = factor * costs->receive_byte,
        .copy_byte = factor * costs->copy_byte,
        .update_byte = factor * costs->update_byte,
        .gradient_byte = factor * costs->gradient_byte};
}

void simulator_report_config(struct simulator_config *config,
                             const struct simulator_report *report,
                             const struct options *flags) {
    static const enum simulator_colocation colocations[] = {
        [OPTIONS_PLACE_APART] = SIMULATOR_COLOCATE_NONE,
        [OPTIONS_PLACE_PAIRS] = SIMULATOR_COLOCATE_PAIRS,
        [OPTIONS_PLACE_ONE] = SIMULATOR_COLOCATE_ALL};
    *config = (struct simulator_config){
        .num_ps = report->num_ps,
        .num_workers = report->num_workers,
        .layout = report->layout,
        .forward = report->forward,
        .backward = report->backward,
        .costs = scale_costs(&report->costs, flags->overhead),
        .staleness = report->staleness,
        .clip = report->clip,
        .bf16 = report->bf16,
        .group_bytes = flags->group ? (uint32_t)flags->group
                                    : message_group_bytes(
                                          flags->colocation == OPTIONS_PLACE_ONE
                                              ? 0
                                              : flags->simulated_gbits),
        .colocation = colocations[flags->colocation],
        .link_rate = flags->colocation == OPTIONS_PLACE_ONE
                         ? 0
                         : simulator_report_link_rate(flags->simulated_gbits),
        .latency = 1e-6 * flags->latency_us,
        .cores = flags->cores ? (uint32_t)flags->cores : report->cores,
        .parallel_efficiency = report->parallel_efficiency,
        .share_cores = flags->share_cores,
        .jitter = flags->jitter,
        .seed = flags->seed,
        .warmup_steps = WARMUP_STEPS,
        .rounds = (uint32_t)flags->rounds,
    };
}

static double compute_seconds(const struct simulator_report *report) {
    double seconds = report->costs.step;
    for (uint32_t p = 0; p < report->layout->num_parameters; p++)
        seconds += report->forward[p] + report->backward[p];
    return seconds;
}

static void simulator_report_set_real(json_t *object, const char *key,
                                      double value) {
    json_object_set_new(object, key, json_real(value));
}

static void simulator_report_set_count(json_t *object, const char *key,
                                       uint64_t value) {
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static const char *resource_name(enum simulator_resource resource) {
    static const char *const names[SIMULATOR_RESOURCES] = {
        [SIMULATOR_PS_OUT] = "link out of a ps",
        [SIMULATOR_PS_IN] = "link into a ps",
        [SIMULATOR_WORKER_OUT] = "link out of a worker",
        [SIMULATOR_WORKER_IN] = "link into a worker",
        [SIMULATOR_PS_CPU] = "cores of a ps",
        [SIMULATOR_WORKER_CPU] = "cores of a worker",
        [SIMULATOR_PS_THREAD] = "updating in a ps",
        [SIMULATOR_WORKER_THREAD] = "computing in a worker",
    };
    return names[resource];
}

static json_t *simulator_report_result_object(
    const struct simulator_config *config,
    const struct simulator_result *result) {
    json_t *object = json_object(), *usage = json_object();
    simulator_report_set_count(object, "ps", config->num_ps);
    simulator_report_set_count(object, "workers", config->num_workers);
    simulator_report_set_real(object, "round_seconds", result->mean);
    simulator_report_set_real(object, "round_p99_seconds", result->p99);
    simulator_report_set_real(
        object, config->staleness ? "steps_per_second" : "rounds_per_second",
        result->rate);
    json_object_set_new(object, "bound_seconds",
                        result->bound > 0 ? json_real(result->bound)
                                          : json_null());
    json_object_set_new(object, "share_of_bound",
                        result->bound > 0 ? json_real(result->share)
                                          : json_null());
    json_object_set_new(object, "limit",
                        json_string(resource_name(result->bottleneck)));
    for (int r = 0; r < SIMULATOR_RESOURCES; r++)
        simulator_report_set_real(
            usage, resource_name((enum simulator_resource)r), result->usage[r]);
    json_object_set_new(object, "usage", usage);
    return object;
}

static json_t *case_object(const struct simulator_report *report,
                           const struct simulator_config *config) {
    json_t *object = json_object(), *costs = json_object();
    simulator_report_set_count(object, "bytes", 4 * config->layout->elements);
    simulator_report_set_count(object, "blocks", config->layout->num_blocks);
    simulator_report_set_real(object, "link_bytes_per_second",
                              config->link_rate);
    simulator_report_set_real(object, "latency_seconds", config->latency);
    simulator_report_set_count(object, "cores", config->cores);
    simulator_report_set_real(object, "crowded", config->parallel_efficiency);
    simulator_report_set_real(object, "computing_seconds",
                              compute_seconds(report));
    if (report->replicas) {
        simulator_report_set_count(object, "replicas", report->replicas);
        simulator_report_set_count(object, "micro_batch", report->micro_batch);
        simulator_report_set_count(object, "accumulation",
                                   report->accumulation);
    }
    simulator_report_set_real(object, "jitter", config->jitter);
    simulator_report_set_count(object, "seed", config->seed);
    simulator_report_set_real(costs, "message", config->costs.message);
    simulator_report_set_real(costs, "wake", config->costs.idle_wakeup);
    simulator_report_set_real(costs, "turn", config->costs.busy_wakeup);
    simulator_report_set_real(costs, "send_byte", config->costs.send_byte);
    simulator_report_set_real(costs, "receive_byte",
                              config->costs.receive_byte);
    simulator_report_set_real(costs, "copy_byte", config->costs.copy_byte);
    simulator_report_set_real(costs, "update_byte", config->costs.update_byte);
    simulator_report_set_real(costs, "gradient_byte",
                              config->costs.gradient_byte);
    json_object_set_new(object, "cost_seconds", costs);
    return object;
}

static void simulator_report_print_json(FILE *out, json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fprintf(out, "%s\n", text ? text : "");
    free(text);
    json_decref(object);
}

/* The inputs of the figures. */
static void simulator_report_print_case(FILE *out,
                                        const struct simulator_report *report,
                                        const struct simulator_config *config) {
    const struct simulator_costs *costs = &config->costs;
    fprintf(
        out, "simulated: %.2f MB in %u blocks, computing %.3f ms a step, %s\n",
        4e-6 * (double)config->layout->elements, config->layout->num_blocks,
        1e3 * compute_seconds(report),
        !config->staleness
            ? (config->clip ? "synchronous, clipping" : "synchronous")
        : config->staleness == SIMULATOR_ASYNCHRONOUS ? "asynchronous"
                                                      : "stale-synchronous");
    if (config->link_rate > 0)
        fprintf(out, "links of %.1f MB/s each way, %.0f us apart; ",
                1e-6 * config->link_rate, 1e6 * config->latency);
    fprintf(out, "%u cores%s\n", config->cores,
            config->share_cores                            ? " for all of them"
            : config->colocation == SIMULATOR_COLOCATE_ALL ? ""
                                                           : " a host");
    fprintf(out,
            "measured here: message %.1f us in each thread, %.1f more in one "
            "that slept (%.1f where all cores are busy), byte %.3f ns sent, "
            "%.3f received, %.3f copied, %.3f updated and %.3f a gradient\n",
            1e6 * costs->message, 1e6 * costs->idle_wakeup,
            1e6 * costs->busy_wakeup, 1e9 * costs->send_byte,
            1e9 * costs->receive_byte, 1e9 * costs->copy_byte,
            1e9 * costs->update_byte, 1e9 * costs->gradient_byte);
}

static void simulator_report_print_result(
    FILE *out, const struct simulator_config *config,
    const struct simulator_result *result) {
    fprintf(out, "%u ps, %u workers: %s %.3f ms, p99 %.3f ms; %.1f %s/s\n",
            config->num_ps, config->num_workers,
            config->staleness ? "a step takes" : "a round takes",
            1e3 * result->mean, 1e3 * result->p99, result->rate,
            config->staleness ? "steps" : "rounds");
    if (result->bound > 0)
        fprintf(out, "bound by the links: %.3f ms; %.1f %% of it reached\n",
                1e3 * result->bound, 100 * result->share);
    fprintf(out, "most used: %s, %.0f %%\n", resource_name(result->bottleneck),
            100 * result->usage[result->bottleneck]);
}

static enum status print_one(FILE *out, const struct simulator_report *report,
                             const struct simulator_config *config,
                             struct failure *why) {
    struct simulator_result result;
    enum status status = simulator_run(config, &result, why);
    if (status)
        return status;
    if (report->json) {
        json_t *object = case_object(report, config);
        json_t *found = simulator_report_result_object(config, &result);
        json_object_update(object, found);
        json_decref(found);
        simulator_report_print_json(out, object);
    } else {
        simulator_report_print_case(out, report, config);
        simulator_report_print_result(out, config, &result);
    }
    return STATUS_OK;
}

static void print_header(FILE *out) {
    fprintf(out, "\nms a round and %% of the bound, by ps; the last column is "
                 "the best share's limit\nworkers");
    for (uint32_t ps = 1; ps <= MAX_PS; ps *= 2)
        fprintf(out, " %11u", ps);
    fprintf(out, "\n");
}

/* One line of the table: every number of ps for which there are enough
 * blocks. */
static enum status sweep_line(FILE *out, struct simulator_config config,
                              json_t *list, struct failure *why) {
    enum status status = STATUS_OK;
    struct simulator_result result, best = {0};
    if (!list)
        fprintf(out, "%7u", config.num_workers);
    for (uint32_t ps = 1;
         !status && ps <= MAX_PS && ps <= config.layout->num_blocks; ps *= 2) {
        config.num_ps = ps;
        status = simulator_run(&config, &result, why);
        if (!status && list)
            json_array_append_new(
                list, simulator_report_result_object(&config, &result));
        else if (!status)
            fprintf(out, " %7.2f %3.0f", 1e3 * result.mean, 100 * result.share);
        if (!status && result.share >= best.share)
            best = result;
    }
    if (!list)
        fprintf(out, "  %s\n", resource_name(best.bottleneck));
    fflush(out);
    return status;
}

static enum status print_sweep(FILE *out, const struct simulator_report *report,
                               struct simulator_config *config,
                               struct failure *why) {
    enum status status = STATUS_OK;
    json_t *list = report->json ? json_array() : NULL;
    if (config->rounds > SWEEP_ROUNDS)
        config->rounds = SWEEP_ROUNDS;
    config->warmup_steps = 2;
    if (!list) {
        simulator_report_print_case(out, report, config);
        print_header(out);
    }
    for (uint32_t workers = 1; !status && workers <= MAX_WORKERS;
         workers *= 2) {
        config->num_workers = workers;
        status = sweep_line(out, *config, list, why);
    }
    if (!list)
        return status;
    json_t *object = case_object(report, config);
    json_object_set_new(object, "cases", list);
    if (status)
        json_decref(object);
    else
        simulator_report_print_json(out, object);
    return status;
}

enum status simulator_report_print(FILE *out,
                                   const struct simulator_report *report,
                                   const struct options *flags,
                                   struct failure *why) {
    struct simulator_config config;
    simulator_report_config(&config, report, flags);
    return flags->sweep ? print_sweep(out, report, &config, why)
                        : print_one(out, report, &config, why);
}
