/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/predict_command.h"

#include "chief/plan/network_bound.h"
#include "commands/measure/compare_table.h"
#include "commands/measure/ranking.h"
#include "core/base/diagnostics.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* Azure, under learn.microsoft.com/azure/virtual-machines:
 *   nda100-v4-series, ndm-a100-v4-series: "8 x 200 Gigabit HDR"
 *   ndv2-series: "100-Gigabit InfiniBand EDR"
 *   nc-a100-v4-series: network bandwidth 20,000, 40,000, 80,000 Mbps
 *   ncv3-series: devices only, no network bandwidth; of NC24rs_v3 that it has
 *   RDMA, not how fast
 *   nc-series (retired): devices only, each half of a K80; of NC24r that it has
 *   RDMA
 *   hbv3-series, hc-series, "Backend Network": RDMA performance 200 and 100
 *   Gb/s of each size; no accelerators
 * AWS: aws.amazon.com/ec2/instance-types/p3 and .../p4.
 * Inside a host, half of what NVIDIA states for both directions together:
 * NVLink 3.0 of an A100 600 GB/s, NVLink 2.0 of a V100 300 GB/s (p3.8xlarge:
 * 200 GB/s); PCIe 4.0 x16 31.5 GB/s each way where devices are in pairs. How
 * the devices of nc-series and ncv3-series are linked is not stated: PCIe 3.0
 * x16 is assumed, 32 GB/s in NVIDIA's data sheets of the K80 and the V100. */
static const struct vm table[] = {
    {"Standard_ND96asr_v4", "ND_A100_v4", "A100 40 GB", 8, 1600, 2400},
    {"Standard_ND96amsr_A100_v4", "NDm_A100_v4", "A100 80 GB", 8, 1600, 2400},
    {"Standard_ND40rs_v2", "NDv2", "V100 32 GB", 8, 100, 1200},
    {"Standard_NC24ads_A100_v4", NULL, "A100 80 GB PCIe", 1, 20, 0},
    {"Standard_NC48ads_A100_v4", NULL, "A100 80 GB PCIe", 2, 40, 2400},
    {"Standard_NC96ads_A100_v4", NULL, "A100 80 GB PCIe", 4, 80, 252},
    {"Standard_NC6s_v3", NULL, "V100 16 GB", 1, 0, 0},
    {"Standard_NC12s_v3", NULL, "V100 16 GB", 2, 0, 128},
    {"Standard_NC24s_v3", NULL, "V100 16 GB", 4, 0, 128},
    {"Standard_NC24rs_v3", NULL, "V100 16 GB", 4, 0, 128},
    {"Standard_NC6", NULL, "K80 12 GB", 1, 0, 0},
    {"Standard_NC12", NULL, "K80 12 GB", 2, 0, 128},
    {"Standard_NC24", NULL, "K80 12 GB", 4, 0, 128},
    {"Standard_NC24r", NULL, "K80 12 GB", 4, 0, 128},
    {"Standard_HB120rs_v3", "HBv3", "120 cores", 1, 200, 0},
    {"Standard_HB120-96rs_v3", NULL, "96 cores", 1, 200, 0},
    {"Standard_HB120-64rs_v3", NULL, "64 cores", 1, 200, 0},
    {"Standard_HB120-32rs_v3", NULL, "32 cores", 1, 200, 0},
    {"Standard_HB120-16rs_v3", NULL, "16 cores", 1, 200, 0},
    {"Standard_HC44rs", "HC", "44 cores", 1, 100, 0},
    {"Standard_HC44-32rs", NULL, "32 cores", 1, 100, 0},
    {"Standard_HC44-16rs", NULL, "16 cores", 1, 100, 0},
    {"p4d.24xlarge", NULL, "A100 40 GB", 8, 400, 2400},
    {"p3dn.24xlarge", NULL, "V100 32 GB", 8, 100, 1200},
    {"p3.16xlarge", NULL, "V100 16 GB", 8, 25, 1200},
    {"p3.8xlarge", NULL, "V100 16 GB", 4, 10, 800},
    {"p3.2xlarge", NULL, "V100 16 GB", 1, 10, 0},
};
enum { COUNT = sizeof table / sizeof *table };

/* NAME without Azure's prefix of sizes. */
static const char *size_name(const char *name) {
    static const char prefix[] = "Standard_";
    size_t length = sizeof prefix - 1;
    return strncasecmp(name, prefix, length) ? name : name + length;
}

const struct vm *vm_table_find(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (!strcasecmp(size_name(table[i].name), size_name(name)) ||
            (table[i].series && !strcasecmp(table[i].series, size_name(name))))
            return &table[i];
    return NULL;
}

/* Prints in WIDTH columns; a dash if unknown. */
static void vm_table_print_rate(FILE *out, int width, double gbits) {
    if (gbits > 0)
        fprintf(out, " %*.0f", width, gbits);
    else
        fprintf(out, " %*s", width, "-");
}

/* Prints one line per machine. */
static void vm_table_print(FILE *out) {
    fprintf(out, "%-26s %-12s %-16s %7s %12s %12s\n", "machine", "series",
            "device", "devices", "link Gbit/s", "inner Gbit/s");
    for (int i = 0; i < COUNT; i++) {
        fprintf(out, "%-26s %-12s %-16s %7" PRIu32, table[i].name,
                table[i].series ? table[i].series : "-", table[i].device,
                table[i].devices);
        vm_table_print_rate(out, 12, table[i].link_gbits);
        vm_table_print_rate(out, 12, table[i].inner_gbits);
        fprintf(out, "\n");
    }
}

/* The distance of NAME, without the prefix, to VM's name or series. */
static unsigned row_distance(const struct vm *vm, const char *name) {
    unsigned size = diagnostics_nearest_distance(name, size_name(vm->name));
    unsigned series =
        vm->series ? diagnostics_nearest_distance(name, vm->series) : size;
    return series < size ? series : size;
}

const char *vm_table_nearest(const char *name) {
    const struct vm *best = table;
    name = size_name(name);
    for (int i = 1; i < COUNT; i++)
        if (row_distance(&table[i], name) < row_distance(best, name))
            best = &table[i];
    return best->name;
}

const char *vm_table_names(void) {
    return "ND96asr_v4 (ND_A100_v4), ND96amsr_A100_v4 (NDm_A100_v4), "
           "ND40rs_v2 (NDv2), NC24ads_A100_v4, NC48ads_A100_v4, "
           "NC96ads_A100_v4, NC6s_v3, NC12s_v3, NC24s_v3, NC24rs_v3, NC6, NC12, NC24, "
           "NC24r, HB120rs_v3 (HBv3), HC44rs (HC), p4d.24xlarge, p3dn.24xlarge, p3.16xlarge, "
           "p3.8xlarge, p3.2xlarge";
}

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
