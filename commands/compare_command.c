/* SPDX-License-Identifier: Apache-2.0 */
/* Flags override the job's block "compare", which overrides defaults. Output
 * files are opened at the start, because the runs before they are written may
 * take hours. */
#include "commands/verbs.h"

#include "commands/composition.h"
#include "commands/launch/launch.h"
#include "commands/measure/compare_cluster.h"
#include "commands/measure/compare_file.h"
#include "commands/measure/compare_hparams.h"
#include "commands/measure/compare_plot.h"
#include "commands/measure/compare_report.h"
#include "commands/measure/compare_runs.h"
#include "commands/measure/compare_table.h"
#include "commands/measure/predict_command.h"
#include "commands/page.h"
#include "commands/process.h"
#include "worker/models/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status compare_command_load(struct job **job,
                                        const struct options *options,
                                        const struct log *log,
                                        struct failure *why) {
    struct job_source source = {.models = &model_schemas,
                                .path = options->job,
                                .deepspeed = options->deepspeed,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets,
                                .external = options->command};
    return job_load(job, &source, log, why);
}

/* Values of the job's block apply where no flag was given. */
static void apply_job_block(struct options *flags,
                            const struct job_compare *job) {
    if (job->ps.count && !flags->given.ps)
        flags->ps = job->ps;
    if (job->workers.count && !flags->given.workers)
        flags->workers = job->workers;
    if (job->steps && !flags->given.steps)
        flags->steps = job->steps;
    if (job->repeats && !flags->given.repeats)
        flags->repeats = job->repeats;
    if (job->limit > 0 && !flags->given.limit)
        flags->limit = job->limit;
    if (job->csv && !flags->given.csv)
        flags->csv = job->csv;
    if (job->plot && !flags->given.plot)
        flags->plot = job->plot;
    if (job->tensorboard && !flags->given.tensorboard)
        flags->tensorboard = job->tensorboard;
    if (job->report && !flags->given.report)
        flags->report = job->report;
    if (job->link_gbits > 0 && !flags->given.link_gbits)
        flags->link_gbits = job->link_gbits;
    if (job->latency_us > 0 && !flags->given.latency_us)
        flags->latency_us = job->latency_us;
}

static enum status write_csv(const json_t *result, const char *path,
                             struct failure *why) {
    FILE *file = fopen(path, "w");
    if (!file)
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno, "--csv %s",
                            path);
    compare_table_csv(file, result);
    return fclose(file) ? status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                                       "--csv %s", path)
                        : STATUS_OK;
}

static enum status compare_command_print_result(const struct options *options,
                                                const json_t *result,
                                                struct failure *why) {
    enum status status = STATUS_OK;
    if (options->json) {
        char *text = json_dumps(
            result,
            JSON_COMPACT | JSON_REAL_PRECISION(COMPARE_REPORT_PRECISION));
        puts(text ? text : "");
        free(text);
    } else {
        compare_table_print(stdout, result);
    }
    fflush(stdout);
    if (options->csv)
        status = write_csv(result, options->csv, why);
    if (!status && options->plot)
        status = compare_plot_draw(result, options->plot, why);
    if (!status && options->tensorboard)
        status = compare_hparams_write(result, options->tensorboard, why);
    if (!status && options->report)
        status = compare_report_write(result, options->report, why);
    return status;
}

/* Is PATH, of an output, the file that --from reads? */
static bool is_source(const struct options *flags, const char *path) {
    struct stat source, there;
    return flags->from && !stat(flags->from, &source) && !stat(path, &there) &&
           source.st_dev == there.st_dev && source.st_ino == there.st_ino;
}

/* A file that did not exist before the check does not exist after it. */
static enum status check_file(const struct options *flags, const char *flag,
                              const char *path, struct failure *why) {
    struct stat about;
    bool was_there = path && !lstat(path, &about);
    if (path && is_source(flags, path))
        return status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                           "%s %s: that is the file that --from reads; name "
                           "another one",
                           flag, path);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (path && !file)
        return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno, "%s %s", flag,
                            path);
    if (file)
        fclose(file);
    if (file && !was_there)
        unlink(path);
    return STATUS_OK;
}

/* Fails now rather than after hours of runs if a file cannot be written. */
static enum status check_files(const struct options *flags,
                               struct failure *why) {
    enum status status = STATUS_OK;
    if (flags->plot)
        status = compare_plot_check_gnuplot(why);
    if (!status)
        status = check_file(flags, "--csv", flags->csv, why);
    if (!status)
        status = check_file(flags, "--plot", flags->plot, why);
    if (!status && flags->report)
        status = page_check_path("--report", flags->report, -1, why);
    if (!status)
        status = check_file(flags, "--report", flags->report, why);
    if (!status && flags->tensorboard)
        status = compare_hparams_check(flags->tensorboard, why);
    return status;
}

static enum status run_local(json_t **result, const struct options *options,
                             const struct job *job, struct compare_batch batch,
                             struct failure *why) {
    struct log log;
    char program[4096];
    log_open(&log, "compare", -1);
    launch_program(program, sizeof program);
    struct compare_local local = {
        .flags = options, .job = job, .program = program, .log = &log};
    struct compare_runs_runner runner = compare_local_runner(&local);
    struct compare_runs_settings given = {.flags = options,
                                          .job = job,
                                          .batch = batch,
                                          .runner = &runner,
                                          .local = true,
                                          .log = &log};
    enum status status = subprocess_open(&local.signals, why);
    if (!status)
        status = compare_runs(result, &given, why);
    subprocess_close(&local.signals);
    return status;
}

static enum status compare_command_measure(const struct options *flags,
                                           struct failure *why) {
    struct options options = *flags;
    json_t *result = NULL;
    struct job *job = NULL;
    struct compare_batch batch;
    enum status status = compare_command_load(&job, &options, NULL, why);
    if (!status)
        status = launch_command_check_model(&options, job, why);
    if (!status) {
        const struct job_counts *workers = &options.workers;
        apply_job_block(&options, &job->compare);
        status = compare_batch_find(
            &batch, job, workers->values[workers->count - 1], true, why);
    }
    if (!status)
        status = check_files(&options, why);
    if (!status)
        status = run_local(&result, &options, job, batch, why);
    if (!status)
        status = compare_command_print_result(&options, result, why);
    json_decref(result);
    job_free(&job);
    return status;
}

/* Shows a comparison that was made before. */
static enum status compare_command_show(const struct options *options,
                                        struct failure *why) {
    json_t *result = NULL;
    enum status status = compare_file_read(&result, options->from, why);
    if (!status)
        status = check_files(options, why);
    if (!status)
        status = compare_command_print_result(options, result, why);
    json_decref(result);
    return status;
}

enum status compare_command(const struct options *options,
                            struct failure *why) {
    if (options->predict || options_lists_vms(options))
        return predict_command_print(stdout, options, options->json, why);
    return options->from ? compare_command_show(options, why)
                         : compare_command_measure(options, why);
}

/* composition.c refuses the job of an external model. */
bool compare_command_is_requested(const struct options *options) {
    struct job *job = NULL;
    struct failure ignored;
    bool is_requested = (options->job || options->deepspeed) &&
                        !compare_command_load(&job, options, NULL, &ignored) &&
                        job->compare.on && job->model.type != JOB_EXTERNAL;
    job_free(&job);
    return is_requested;
}

/* State shared by the runs of a series. */
struct session {
    const struct options *options;
    const struct process_settings *process_settings;
    const struct cluster *cluster;
    bool started; /* its first run, which the peers have joined */
};

static enum status run_chief(void *context, struct job *job,
                             struct run_series *series, struct failure *why) {
    const struct session *session = context;
    struct composition_series_run run = {job, *series};
    enum status status =
        process_run_one_of_series(session->options, session->process_settings,
                                  session->cluster, &run, why);
    series->measured = run.series.measured;
    return status;
}

/* Decides by the known facts: the ranks on this host, or the listed host
 * names. */
static bool is_single_host(const struct cluster *cluster) {
    const char *first = NULL;
    int64_t count = 0;
    bool alike = true;
    for (int role = 0; role < CLUSTER_ROLES; role++)
        for (uint32_t i = 0; i < cluster->jobs[role].count; i++) {
            const char *host = cluster->jobs[role].tasks[i].host;
            first = first ? first : host;
            alike &= *host && !strcmp(host, first);
            count++;
        }
    return cluster->from_ranks ? cluster->local_size == count : alike;
}

static enum status run_cluster(struct session *session, struct options *options,
                               struct job *job, const struct log *log,
                               struct failure *why) {
    struct compare_cluster given = {
        .flags = options,
        .job = job,
        .topology =
            composition_members(session->options, session->cluster, job),
        .local = is_single_host(session->cluster),
        .log = log,
        .run_chief = run_chief,
        .context = session};
    json_t *result = NULL;
    options->given.link_gbits = false; /* the block goes before this flag */
    apply_job_block(options, &job->compare);
    enum status status = compare_cluster_resolve(&given, options, why);
    if (!status)
        status = check_files(options, why);
    if (!status)
        status = compare_cluster_run(&result, &given, why);
    if (!status)
        status = compare_command_print_result(options, result, why);
    session->started = given.started;
    json_decref(result);
    return status;
}

enum status compare_command_cluster(const struct options *flags,
                                    const struct process_settings *settings,
                                    const struct cluster *cluster,
                                    struct failure *why) {
    struct options options = *flags;
    struct session session = {&options, settings, cluster, false};
    struct job *job = NULL;
    struct log log;
    log_open(&log, "chief", -1);
    enum status status = compare_command_load(&job, &options, &log, why);
    if (!status)
        status = run_cluster(&session, &options, job, &log, why);
    if (status && !session.started && cluster_expects_joins(cluster))
        process_refuse(&options, cluster, why);
    if (status && why->text[0])
        log_failure(&log, why);
    job_free(&job);
    return status;
}
