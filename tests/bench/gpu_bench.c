/* SPDX-License-Identifier: Apache-2.0 */
/* A training step on this machine's GPU: alone, and as 1 ps and 1 worker take
 * it, beside what the copies and the wire allow.
 *
 *   gpu_bench [--device cuda|cpu] [--batches 256,4096,32768] [--seconds S]
 *             [--set KEY.PATH=VALUE]... [--torch FILE] [--json] [JOB.json]
 *
 * S: of each figure (5). A job in float32 is measured in TF32, too. FILE has
 * PyTorch's steps here in microseconds: {"256": {"fp32 eager": 90, "fp32
 * graph": 50, "tf32 eager": 90, "tf32 graph": 40}, ...}. The model and the data
 * are JOB's (deploy/gpu-bench.json); the program is that of the variable
 * CAPSTAN (build/capstan), with its plugins beside it. Exit code 0: measured;
 * 1: it failed; 2: there is no such device, or the words are wrong. */
#include "tests/bench/gpu_cluster.h"
#include "tests/bench/gpu_compute.h"
#include "tests/bench/gpu_table.h"
#include "tests/bench/gpu_use.h"
#include "tests/gpu/sync_device.h"
#include "worker/models/mlp.h"

#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 8, FEWEST_STEPS = 20, MAX_STEPS = 100000 };

struct choices {
    enum job_device kind;
    uint32_t batches[GPU_TABLE_MAX_BATCHES];
    unsigned num_batches;
    double seconds;
    const char *sets[MAX_SETS + 1];
    unsigned num_sets;
    bool json;
    const char *job;
    json_t *torch; /* what FILE has, or NULL */
};

static bool read_batches(struct choices *choices, const char *text) {
    choices->num_batches = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        unsigned long batch = strtoul(text, &end, 10);
        if (end == text || (*end && *end != ',') || batch < 1 ||
            batch > 1 << 24 || choices->num_batches == GPU_TABLE_MAX_BATCHES)
            return false;
        choices->batches[choices->num_batches++] = (uint32_t)batch;
    }
    return choices->num_batches > 0;
}

static bool read_device(struct choices *choices, const char *text) {
    choices->kind = strcmp(text, "cpu") ? JOB_DEVICE_CUDA : JOB_DEVICE_CPU;
    return !strcmp(text, "cpu") || !strcmp(text, "cuda");
}

static bool read_word(struct choices *choices, int flag, const char *text) {
    switch (flag) {
    case 'd':
        return read_device(choices, text);
    case 'b':
        return read_batches(choices, text);
    case 's':
        choices->seconds = atof(text);
        return choices->seconds > 0;
    case 'k':
        choices->sets[choices->num_sets++] = text;
        return choices->num_sets <= MAX_SETS;
    case 't':
        return (choices->torch = json_load_file(text, 0, NULL));
    case 'j':
        return choices->json = true;
    default:
        return false;
    }
}

static bool read_choices(struct choices *choices, int argc, char **argv) {
    static const struct option flags[] = {
        {"device", required_argument, NULL, 'd'},
        {"batches", required_argument, NULL, 'b'},
        {"seconds", required_argument, NULL, 's'},
        {"set", required_argument, NULL, 'k'},
        {"torch", required_argument, NULL, 't'},
        {"json", no_argument, NULL, 'j'},
        {0},
    };
    *choices = (struct choices){.kind = JOB_DEVICE_CUDA,
                                .batches = {256, 4096, 32768},
                                .num_batches = 3,
                                .seconds = 5,
                                .job = "deploy/gpu-bench.json"};
    for (int flag; (flag = getopt_long(argc, argv, "", flags, NULL)) != -1;)
        if (!read_word(choices, flag, optarg))
            return false;
    if (optind < argc)
        choices->job = argv[optind];
    return argc - optind <= 1;
}

/* The table of the plugin beside CAPSTAN; what it lacks is said as trainers say
 * it. */
static enum status open_device(struct local_device *device,
                               const struct choices *choices, bool tf32,
                               const struct log *log, struct failure *why) {
    struct local_device_request request = {
        .kind = choices->kind, .threads = 1, .timeout = 60, .tf32 = tf32};
    if (choices->kind == JOB_DEVICE_CUDA) {
        request.cuda = sync_device_plugin(why);
        if (!request.cuda) {
            status_context(why, "no GPU");
            why->code = FAILURE_NO_DEVICE;
            return STATUS_CONFIG;
        }
    }
    return local_device_open(device, &request, log, why);
}

/* Multiplications and additions of a step: three products a layer, two in the
 * first. */
static double gflop(const struct job_model *model, uint32_t n) {
    const struct mlp_settings *mlp = model->settings;
    const uint32_t *widths = mlp->layers.items;
    double sum = 0;
    for (uint32_t l = 0; l + 1 < mlp->layers.count; l++)
        sum += (l > 0 ? 6.0 : 4.0) * n * widths[l] * widths[l + 1];
    return sum * 1e-9;
}

/* Of the model 784-512-512-10 on an H200. */
static double aim_us(const struct gpu_table_row *row, uint64_t parameters) {
    static const struct {
        uint32_t batch;
        enum job_precision precision;
        double us;
    } known[] = {{256, JOB_PRECISION_FP32, 80},
                 {256, JOB_PRECISION_TF32, 60},
                 {4096, JOB_PRECISION_TF32, 110},
                 {32768, JOB_PRECISION_TF32, 750}};
    for (size_t i = 0; parameters == 669706 && i < 4; i++)
        if (known[i].batch == row->batch &&
            known[i].precision == row->precision)
            return known[i].us;
    return NAN;
}

/* PyTorch's step HOW ("eager", "graph") of ROW's batch and precision. */
static double torch_us(const json_t *torch, const struct gpu_table_row *row,
                       const char *how) {
    char batch[16], name[16];
    bool tf32 = row->precision == JOB_PRECISION_TF32;
    snprintf(batch, sizeof batch, "%u", row->batch);
    snprintf(name, sizeof name, "%s %s", tf32 ? "tf32" : "fp32", how);
    const json_t *us = json_object_get(json_object_get(torch, batch), name);
    bool same = tf32 || row->precision == JOB_PRECISION_FP32;
    return same && json_is_number(us) ? json_number_value(us) : NAN;
}

static uint64_t count_parameters(const struct job_model *model) {
    struct parameter all[2 * JOB_MAX_WIDTHS];
    uint32_t count = model_mlp.parameters(model, NULL, all);
    uint64_t sum = 0;
    for (uint32_t p = 0; p < count; p++)
        sum += all[p].elements;
    return sum;
}

/* Without a cluster around it. */
static enum status measure_alone(struct gpu_table_row *row,
                                 const struct local_device *device,
                                 const struct job_model *model, double seconds,
                                 struct failure *why) {
    struct job_model in = *model;
    in.precision = row->precision;
    enum status status = gpu_compute_step(&row->alone, device, &in, row->batch,
                                          false, seconds, why);
    return status ? status
                  : gpu_compute_step(&row->updated, device, &in, row->batch,
                                     true, seconds, why);
}

static enum status measure_device(struct gpu_table *table,
                                  const struct local_device *device,
                                  const struct choices *choices,
                                  const struct job_model *model,
                                  struct failure *why) {
    const enum job_precision modes[] = {model->precision, JOB_PRECISION_TF32};
    unsigned num_modes =
        device->ops->async && modes[0] == JOB_PRECISION_FP32 ? 2 : 1;
    enum status status =
        gpu_compute_copies(&table->copies, device, choices->seconds / 3, why);
    for (unsigned i = 0; !status && i < choices->num_batches * num_modes; i++) {
        struct gpu_table_row *row = &table->rows[table->num_rows++];
        row->batch = choices->batches[i / num_modes];
        row->precision = modes[i % num_modes];
        row->gflop = gflop(model, row->batch);
        row->aim_us = aim_us(row, table->parameters);
        row->eager_us = torch_us(choices->torch, row, "eager");
        row->graph_us = torch_us(choices->torch, row, "graph");
        status = measure_alone(row, device, model, choices->seconds, why);
    }
    return status;
}

static uint64_t steps_for(double seconds, double step) {
    double steps = seconds / step;
    if (!(steps > FEWEST_STEPS))
        return FEWEST_STEPS;
    return steps < MAX_STEPS ? (uint64_t)steps : MAX_STEPS;
}

/* A short run says how many steps make one of so many seconds. */
static enum status measure_runs(struct gpu_table_row *row,
                                const struct gpu_cluster *cluster,
                                double seconds, struct failure *why) {
    enum status status = STATUS_OK;
    for (int l = 0; !status && l < GPU_TABLE_LANES; l++) {
        struct gpu_cluster_run *run = &row->runs[l].seconds;
        const char *lane = gpu_table_lanes[l];
        status =
            gpu_cluster_train(run, cluster, lane, row->batch,
                              steps_for(seconds / 5, row->alone.median), why);
        if (!status)
            status = gpu_cluster_train(run, cluster, lane, row->batch,
                                       steps_for(seconds, run->step), why);
    }
    return status;
}

static enum status measure_cluster(struct gpu_table *table,
                                   const struct gpu_cluster *cluster,
                                   const struct choices *choices,
                                   const struct job *job, struct failure *why) {
    enum status status =
        gpu_cluster_wire(&table->wire, cluster, table->parameters * 4,
                         fmin(choices->seconds / 3, 1), why);
    struct batch_spec spec;
    model_mlp.inputs(&job->model, NULL, &spec);
    spec.columns[MLP_INPUTS].pixels = job->data.format == JOB_IDX;
    for (unsigned i = 0; !status && i < table->num_rows; i++) {
        struct gpu_table_row *row = &table->rows[i];
        struct gpu_cluster with = *cluster;
        with.tf32 = row->precision == JOB_PRECISION_TF32;
        status = measure_runs(row, &with, choices->seconds, why);
        gpu_table_derive(table, row, batch_bytes(&spec, row->batch));
    }
    return status;
}

/* DEVICE is let go before the cluster takes it. */
static enum status measure(struct gpu_table *table, struct local_device *device,
                           const struct choices *choices, const struct job *job,
                           struct gpu_use *use, struct failure *why) {
    const char *program = getenv("CAPSTAN");
    struct gpu_cluster cluster = {program ? program : "build/capstan",
                                  choices->job,
                                  device->ops->name,
                                  choices->sets,
                                  choices->num_sets,
                                  false,
                                  use};
    char id[DEVICE_ID] = "";
    uint64_t free_bytes;
    table->parameters = count_parameters(&job->model);
    bool is_gpu = local_device_query_memory(device, &free_bytes, id);
    enum status status =
        measure_device(table, device, choices, &job->model, why);
    local_device_close(device);
    if (status)
        return status;
    if (is_gpu)
        (void)nvml_open(&use->device, id);
    status = measure_cluster(table, &cluster, choices, job, why);
    nvml_close(&use->device);
    return status;
}

static enum status bench(const struct choices *choices, struct gpu_table *table,
                         struct gpu_use *use, struct failure *why) {
    struct log log;
    struct job *job = NULL;
    struct local_device device = {0};
    char name[sizeof device.name];
    const struct job_source source = {.models = &model_schemas,
                                      .path = choices->job,
                                      .overrides = choices->sets,
                                      .num_overrides = choices->num_sets};
    log_open(&log, "gpu_bench", -1);
    log.quiet = true;
    enum status status = job_load(&job, &source, NULL, why);
    if (!status)
        status = open_device(&device, choices, job->tf32, &log, why);
    if (!status) {
        memcpy(name, device.name, sizeof name);
        table->device = name;
        table->reason = use->device.reason;
        status = measure(table, &device, choices, job, use, why);
    }
    local_device_close(&device);
    job_free(&job);
    if (!status && choices->json)
        gpu_table_print_json(table, stdout);
    else if (!status)
        gpu_table_print(table, stdout);
    return status;
}

int main(int argc, char **argv) {
    struct choices choices;
    struct failure why;
    if (!read_choices(&choices, argc, argv)) {
        fprintf(stderr, "Usage: gpu_bench [--device cuda|cpu] [--batches "
                        "N,...] [--seconds S]\n       [--set KEY.PATH=VALUE]"
                        "... [--torch FILE] [--json] [JOB.json]\n");
        return STATUS_CONFIG;
    }
    struct gpu_table *table = calloc(1, sizeof *table);
    struct gpu_use *use = calloc(1, sizeof *use);
    enum status status =
        table && use
            ? bench(&choices, table, use, &why)
            : status_fail(&why, FAILURE_TOO_LITTLE_MEMORY, "no memory");
    if (status)
        fprintf(stderr, "gpu_bench: %s\n", why.text);
    json_decref(choices.torch);
    free(table);
    free(use);
    return status == STATUS_CONFIG ? STATUS_CONFIG : status != STATUS_OK;
}
