/* SPDX-License-Identifier: Apache-2.0 */
/* Three modes. Without a described cluster, one is started on this machine and
 * its table printed here. In a described cluster, this process runs its role.
 * With --simulate only costs are measured. */
#include "commands/verbs.h"

#include "commands/bench_cluster.h"
#include "commands/launch/launch.h"
#include "commands/measure/bench_table.h"
#include "commands/process.h"
#include "core/base/log.h"
#include "proto/cluster/cluster.h"
#include "proto/job/job.h"
#include "simulator/calibration.h"
#include "simulator/simulator_report.h"
#include "worker/models/model.h"
#include "worker/ops/local_device.h"
#include "worker/train/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_PARAMETERS = 2 * JOB_MAX_WIDTHS };
static const double PROBE_SECONDS = 0.4;

/* The model and the computing times of a simulated cluster. */
struct simulation {
    struct job *job; /* NULL: a flat vector */
    struct layout *layout;
    double forward[MAX_PARAMETERS], backward[MAX_PARAMETERS],
        parallel_efficiency;
    struct simulator_costs costs;
    uint32_t replicas_per_worker; /* replicas of a worker; 0: no job */
};

/* Devices of a worker on a host like this one, as a run would choose them. */
static uint32_t devices_per_worker(const struct options *options,
                                   const struct job *job) {
    struct local_device_request request = {.kind = job->device};
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
    uint32_t usable, most = job->devices ? job->devices : JOB_MAX_DEVICES;
    local_device_list_ids(&request, ids, JOB_MAX_DEVICES, &usable);
    if (options->colocation == OPTIONS_PLACE_ONE && options->num_workers > 1)
        most = 1;
    usable = usable < most ? usable : most;
    return usable ? usable : 1;
}

static enum status bench_command_solve_batch(struct simulation *simulation,
                                             const struct options *options,
                                             struct failure *why) {
    uint32_t workers = options->num_workers;
    simulation->replicas_per_worker =
        devices_per_worker(options, simulation->job);
    return job_solve_replicas(
        simulation->job,
        (struct job_replicas){workers,
                              workers * simulation->replicas_per_worker,
                              simulation->replicas_per_worker},
        why);
}

static enum status build_layout(struct simulation *simulation,
                                const struct options *options,
                                struct failure *why) {
    uint64_t floats = options->bytes / sizeof(float);
    struct parameter vector = {
        .name = "vector", .num_dims = 2, .dims = {1, (uint32_t)floats}};
    struct job_source source = {.models = &model_schemas,
                                .path = options->job,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    enum status status = STATUS_OK;
    if (floats > UINT32_MAX) /* rounded to whole megabytes */
        vector.dims[0] = 1 << 18, vector.dims[1] = floats >> 18;
    if (!options->job)
        return layout_build(&simulation->layout, &vector, 1, why);
    status = job_load(&simulation->job, &source, NULL, why);
    if (!status)
        status = bench_command_solve_batch(simulation, options, why);
    return status ? status
                  : model_layout(&simulation->layout, &simulation->job->model,
                                 NULL, why);
}

/* Distributes SECONDS of a step by size: a third for the forward pass, the rest
 * for the backward pass. */
static void distribute_compute(struct simulation *simulation, double seconds) {
    const struct layout *layout = simulation->layout;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        double part = seconds * (double)layout->parameters[p].elements /
                      (double)layout->elements;
        simulation->forward[p] = part / 3;
        simulation->backward[p] = part * 2 / 3;
    }
}

/* Micro batches after the first wait for no weights, and those before the last
 * send no gradients, so their time lies between the two passes. */
static void add_accumulation(struct simulation *simulation) {
    uint32_t count = simulation->layout->num_parameters;
    double once = 0;
    for (uint32_t p = 0; p < count; p++)
        once += simulation->forward[p] + simulation->backward[p];
    simulation->forward[count - 1] +=
        (simulation->job->accumulation - 1) * once;
}

static enum status measure_costs(struct simulation *simulation,
                                 const struct options *flags, unsigned cores,
                                 struct failure *why) {
    static const struct optimizer plain = {.type = OPTIMIZER_SGD};
    struct job *job = simulation->job;
    struct profile profile = {simulation->forward, simulation->backward, 1};
    enum status status = STATUS_OK;
    if (job && flags->batch)
        job->micro_batch = (uint32_t)flags->batch;
    if (job && !flags->given.compute)
        status = profile_measure(&profile, job, cores, PROBE_SECONDS, why);
    else
        distribute_compute(simulation, flags->compute);
    if (!status && job && !flags->given.compute)
        add_accumulation(simulation);
    simulation->parallel_efficiency = profile.parallel_efficiency;
    return status ? status
                  : calibration_measure(&simulation->costs,
                                        job ? &job->optimizer : &plain,
                                        PROBE_SECONDS, why);
}

static enum status simulate(const struct options *options,
                            struct failure *why) {
    struct simulation simulation = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    enum status status = build_layout(&simulation, options, why);
    if (!status)
        status = measure_costs(&simulation, options,
                               cores > 0 ? (unsigned)cores : 1, why);
    const struct job *job = simulation.job;
    struct simulator_report report = {
        .layout = simulation.layout,
        .forward = simulation.forward,
        .backward = simulation.backward,
        .costs = simulation.costs,
        .parallel_efficiency = simulation.parallel_efficiency,
        .cores = cores > 0 ? (uint32_t)cores : 1,
        .num_ps = options->num_ps,
        .num_workers = options->num_workers,
        .staleness = job ? job->staleness : 0,
        .clip = job && job->gradient_clipping > 0,
        .bf16 = job && job->wire == JOB_WIRE_BF16,
        .replicas = simulation.replicas_per_worker * options->num_workers,
        .micro_batch = job ? job->micro_batch : 0,
        .accumulation = job ? job->accumulation : 0,
        .json = options->json,
    };
    if (!status)
        status = simulator_report_print(stdout, &report, options, why);
    layout_free(&simulation.layout);
    job_free(&simulation.job);
    return status;
}

static void show_result(const struct options *options, char *result) {
    if (result && options->json)
        puts(result);
    else if (result)
        bench_table_print(stdout, result);
    fflush(stdout);
    free(result);
}

static enum status launch_bench(const struct options *options,
                                const struct process_settings *settings,
                                struct failure *why) {
    struct log log;
    int code = STATUS_FAILED;
    log_open(&log, "bench", -1);
    process_settings_stay_here(options);
    enum status status = bench_cluster_run(options, settings, &log, &code, why);
    if (status)
        log_failure(&log, why);
    return status ? status : (enum status)code;
}

enum status bench_command(const struct options *options, struct failure *why) {
    struct process_settings settings;
    struct cluster *cluster = NULL;
    char *result = NULL;
    if (options->simulate)
        return simulate(options, why);
    if (options->transport == OPTIONS_TRANSPORT_TCP)
        setenv("CAPSTAN_LANE", "tcp", 1); /* for the ps too */
    else if (options->transport == OPTIONS_TRANSPORT_SHM)
        setenv("CAPSTAN_LANE", "auto", 1);
    enum status status = process_settings_read(&settings, options, why);
    if (!status)
        status = cluster_resolve(&cluster, &options->flags,
                                 process_settings_getenv, NULL, why);
    if (!status)
        status = cluster->local
                     ? launch_bench(options, &settings, why)
                     : process_bench(options, &settings, cluster, &result, why);
    show_result(options, result);
    cluster_free(&cluster);
    return status;
}
