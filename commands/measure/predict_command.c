/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/predict_command.h"

#include "chief/plan/network_bound.h"
#include "commands/measure/compare_table.h"
#include "commands/measure/ranking.h"
#include "commands/measure/vm_table.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static enum status apply_vm(const struct options *flags,
                            struct cost_model_case *given, double *link_gbits,
                            double *inner_gbits, struct failure *why) {
    const struct vm *vm = vm_table_find(flags->vm);
    if (!vm)
        return status_fail(
            why, FAILURE_BAD_FLAG_VALUE,
            "--vm: unknown machine '%s'; nearest: %s; known: %s; for others "
            "give --link-gbits, --gpus-per-host and --inner-gbits",
            flags->vm, vm_table_nearest(flags->vm), vm_table_names());
    if (*link_gbits == 0)
        *link_gbits = vm->link_gbits;
    if (*link_gbits == 0)
        return status_fail(
            why, FAILURE_BAD_FLAG_VALUE,
            "--vm %s: its bandwidth is not published; give --link-gbits",
            vm->name);
    if (*inner_gbits == 0)
        *inner_gbits = vm->inner_gbits;
    if (!flags->per_host)
        given->per_host = vm->devices;
    return STATUS_OK;
}

enum status predict_command_case(struct cost_model_case *given,
                                 const struct options *flags,
                                 struct failure *why) {
    double link = flags->link_gbits, intra_host = flags->inner_gbits;
    *given = (struct cost_model_case){
        .parameters = (double)flags->parameters,
        .element_bytes = flags->bf16 ? 2 : 4,
        .latency = 1e-6 * flags->latency_us,
        .compute = 1e-3 * flags->compute_ms,
        .input = 1e-3 * flags->input_ms,
        .overlap = flags->overlap,
        .update = flags->update_gbytes > 0
                      ? sizeof(float) / (1e9 * flags->update_gbytes)
                      : 0,
        .workers = flags->workers.values[0],
        .per_host = flags->per_host ? (uint32_t)flags->per_host : 1,
        .ps = flags->ps.values[0],
        .clip = flags->clip,
    };
    enum status status =
        flags->vm ? apply_vm(flags, given, &link, &intra_host, why) : STATUS_OK;
    given->link = network_bound_payload(link);
    given->intra_host = intra_host > 0 ? 1e9 / 8 * intra_host : INFINITY;
    return status;
}

static void predict_command_set_real(json_t *object, const char *key,
                                     double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *mode_object(const struct cost_model_case *given,
                           enum cost_model_mode mode, double target) {
    struct cost_model_step step = cost_model_step(given, mode);
    json_t *object = json_object(), *busy = json_object();
    json_object_set_new(object, "mode",
                        json_string(cost_model_mode_name(mode)));
    predict_command_set_real(object, "step_seconds", step.seconds);
    predict_command_set_real(object, "steps_per_second", step.rate);
    predict_command_set_real(object, "bound_seconds", step.bound);
    predict_command_set_real(object, "exchange_seconds", step.wire);
    predict_command_set_real(object, "exposed_seconds", step.exposed);
    predict_command_set_real(object, "efficiency", step.efficiency);
    predict_command_set_real(object, "speed_up",
                             step.efficiency * given->workers);
    predict_command_set_real(
        object, "compute_seconds_for_target",
        cost_model_compute_for_efficiency(given, mode, target));
    json_object_set_new(object, "limit",
                        json_string(cost_model_limit_name(step.limit)));
    for (int i = 0; i < COST_MODEL_LIMITS; i++)
        predict_command_set_real(
            busy, cost_model_limit_name((enum cost_model_limit)i),
            step.busy[i]);
    json_object_set_new(object, "busy_seconds", busy);
    return object;
}

static json_t *crossover_object(const struct cost_model_case *given) {
    json_t *object = json_object();
    uint32_t ps = cost_model_crossover(given, COST_MODEL_RING);
    json_object_set_new(object, "ps", ps ? json_integer(ps) : json_null());
    predict_command_set_real(object, "ps_of_exchange",
                             cost_model_crossover_wire(given, COST_MODEL_RING));
    json_object_set_new(object, "formula",
                        json_string(cost_model_crossover_formula()));
    return object;
}

static json_t *predict_command_result_object(
    const struct cost_model_case *given, double target) {
    json_t *object = json_object(), *modes = json_array();
    json_object_set_new(object, "workers", json_integer(given->workers));
    json_object_set_new(object, "workers_per_host",
                        json_integer(given->per_host));
    json_object_set_new(object, "ps", json_integer(given->ps));
    predict_command_set_real(object, "parameters", given->parameters);
    predict_command_set_real(object, "bytes",
                             given->parameters * given->element_bytes);
    predict_command_set_real(object, "link_bytes_per_second", given->link);
    predict_command_set_real(object, "inner_bytes_per_second",
                             given->intra_host);
    predict_command_set_real(object, "latency_seconds", given->latency);
    predict_command_set_real(object, "compute_seconds", given->compute);
    predict_command_set_real(object, "input_seconds", given->input);
    predict_command_set_real(object, "overlap", given->overlap);
    predict_command_set_real(object, "target", target);
    for (int mode = 0; mode < COST_MODEL_MODES; mode++)
        json_array_append_new(
            modes, mode_object(given, (enum cost_model_mode)mode, target));
    json_object_set_new(object, "modes", modes);
    json_object_set_new(object, "crossover", crossover_object(given));
    json_object_set_new(object, "answer", ranking_predict(given));
    return object;
}

static enum status predict_command_print_json(
    FILE *out, const struct cost_model_case *given, double target,
    struct failure *why) {
    json_t *object = predict_command_result_object(given, target);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (!text)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the object");
    fprintf(out, "%s\n", text);
    free(text);
    return STATUS_OK;
}

struct digits {
    char text[COMPARE_TABLE_DIGITS];
};

static struct digits four_digits(double value) {
    struct digits digits;
    compare_table_digits(digits.text, 4, value);
    return digits;
}

static void predict_command_print_case(FILE *out,
                                       const struct cost_model_case *given) {
    double bytes = given->parameters * given->element_bytes;
    fprintf(out,
            "predicted: %sM parameters, %s MB on the wire%s; %u workers, "
            "%u to a host, %u ps\n",
            four_digits(1e-6 * given->parameters).text,
            four_digits(1e-6 * bytes).text,
            given->element_bytes < sizeof(float)
                ? " of ps (all-reduce sums float32)"
                : "",
            given->workers, given->per_host, given->ps);
    fprintf(out, "a host's link passes %s MB/s each way, %s us apart",
            four_digits(1e-6 * given->link).text,
            four_digits(1e6 * given->latency).text);
    if (isfinite(given->intra_host) && given->per_host > 1)
        fprintf(out, "; inside a host %s GB/s",
                four_digits(1e-9 * given->intra_host).text);
    fprintf(out,
            "\ncomputing %s ms a step, bytes may travel during %.0f %% of it\n",
            four_digits(1e3 * given->compute).text, 100 * given->overlap);
}

/* Prints a dash for a value that the given figures do not determine. */
static void predict_command_print_number(FILE *out, int width,
                                         const char *format, double value) {
    char text[32] = "-";
    if (isfinite(value))
        snprintf(text, sizeof text, format, value);
    fprintf(out, " %*s", width, text);
}

static void print_four_digits(FILE *out, double value) {
    fprintf(out, " %8s", isfinite(value) ? four_digits(value).text : "-");
}

static void print_mode(FILE *out, const struct cost_model_case *given,
                       enum cost_model_mode mode, double target) {
    static const char *const texts[COST_MODEL_MODES] = {
        [COST_MODEL_PS] = "ps, synchronous",
        [COST_MODEL_PS_ASYNC] = "ps, asynchronous",
        [COST_MODEL_RING] = "all-reduce, ring",
        [COST_MODEL_HALVING] = "all-reduce, halving"};
    struct cost_model_step step = cost_model_step(given, mode);
    fprintf(out, "%-19s", texts[mode]);
    print_four_digits(out, 1e3 * step.seconds);
    print_four_digits(out, 1e3 * step.wire);
    print_four_digits(out, 1e3 * step.exposed);
    print_four_digits(out, step.rate);
    predict_command_print_number(out, 8, "%.2f",
                                 step.efficiency * given->workers);
    predict_command_print_number(out, 6, "%.1f%%", 100 * step.efficiency);
    print_four_digits(
        out, 1e3 * cost_model_compute_for_efficiency(given, mode, target));
    fprintf(out, "  %s\n",
            step.bound > 0 ? cost_model_limit_name(step.limit) : "-");
}

/* Prints the last line, which is the answer. */
static void print_crossover(FILE *out, const struct cost_model_case *given) {
    double wire = cost_model_crossover_wire(given, COST_MODEL_RING);
    if (isfinite(wire))
        fprintf(out,
                "the exchange alone by ps takes no longer than by ring from "
                "%.0f ps on: m >= nM/(BT)\n",
                fmax(1, ceil(wire)));
    else
        fprintf(out, "the exchange alone by ps takes longer than by ring with "
                     "any number of them\n");
    json_t *answer = ranking_predict(given);
    fprintf(out, "%s\n", json_string_value(answer));
    json_decref(answer);
}

static void print_table(FILE *out, const struct cost_model_case *given,
                        double target) {
    char heading[48], share[COMPARE_TABLE_DIGITS];
    compare_table_digits(share, 3, 100 * target);
    snprintf(heading, sizeof heading, "ms@%s%%", share);
    predict_command_print_case(out, given);
    fprintf(out, "\n%-19s %8s %8s %8s %8s %8s %6s %8s  %s\n", "", "step ms",
            "exchange", "exposed", "steps/s", "speed-up", "T1/nTn", heading,
            "limit");
    for (int mode = 0; mode < COST_MODEL_MODES; mode++)
        print_mode(out, given, (enum cost_model_mode)mode, target);
    print_crossover(out, given);
}

enum status predict_command_print(FILE *out, const struct options *flags,
                                  bool json, struct failure *why) {
    struct cost_model_case given;
    if (options_lists_vms(flags)) {
        vm_table_print(out);
        return STATUS_OK;
    }
    enum status status = predict_command_case(&given, flags, why);
    if (status)
        return status;
    if (json)
        return predict_command_print_json(out, &given, flags->target, why);
    print_table(out, &given, flags->target);
    return STATUS_OK;
}
