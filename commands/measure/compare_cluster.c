/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_cluster.h"

#include <stdio.h>
#include <string.h>

/* Fills in all numbers; if there are too many, the powers of two and the
 * largest. */
static void fill_counts(struct job_counts *counts, unsigned most) {
    counts->count = 0;
    for (unsigned i = 1; i < most; i = most <= JOB_MAX_COUNTS ? i + 1 : 2 * i)
        counts->values[counts->count++] = i;
    if (most)
        counts->values[counts->count++] = most;
}

static enum status compare_cluster_resolve_ps(
    const struct compare_cluster *members, struct options *flags, bool given,
    struct failure *why) {
    unsigned listed = members->topology.num_ps;
    if (!given)
        fill_counts(&flags->ps, listed);
    else if (!listed)
        return status_fail(
            why, FAILURE_JOB_UNFIT,
            "compare.ps: found %u; allowed: none, because the cluster lists "
            "no ps; leave it out to measure only all-reduce",
            flags->ps.values[0]);
    else if (flags->ps.values[flags->ps.count - 1] > listed)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "compare.ps: found %u; allowed: 1 to %u, as the "
                           "cluster lists",
                           flags->ps.values[flags->ps.count - 1], listed);
    if (!listed)
        log_info(members->log, "ps_cases_skipped",
                 "the cluster lists no ps: only all-reduce is measured");
    return STATUS_OK;
}

static enum status resolve_workers(const struct compare_cluster *members,
                                   struct options *flags, bool given,
                                   struct failure *why) {
    unsigned trainers = members->topology.trainers;
    const struct job_counts *request = &flags->workers;
    if (members->topology.alone || !trainers)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "\"compare\" in a job compares across a cluster, "
                           "and this process trains alone: `capstan compare "
                           "JOB.json` compares on one machine");
    if (given && (request->count > 1 || request->values[0] != trainers))
        return status_fail(
            why, FAILURE_JOB_UNFIT,
            "compare.workers: found %u%s; allowed: %u, because in a cluster "
            "all trainers take part",
            request->values[0], request->count > 1 ? ", ..." : "", trainers);
    flags->workers = (struct job_counts){{trainers}, 1};
    return STATUS_OK;
}

enum status compare_cluster_resolve(struct compare_cluster *members,
                                    struct options *options,
                                    struct failure *why) {
    const struct job_compare *block = &members->job->compare;
    enum status status =
        resolve_workers(members, options, block->workers.count, why);
    if (!status)
        status =
            compare_cluster_resolve_ps(members, options, block->ps.count, why);
    return status ? status
                  : compare_batch_find(&members->batch, members->job,
                                       members->topology.trainers, false, why);
}

/* Makes the job of one run, owned by the caller. */
static enum status make_job(struct job **job,
                            const struct compare_cluster *members,
                            const struct compare_arguments_request *request,
                            struct failure *why) {
    struct compare_arguments settings;
    compare_arguments_overrides(&settings, members->flags, request);
    struct job_source source = {.models = members->job->models,
                                .path = members->flags->job,
                                .deepspeed = members->flags->deepspeed,
                                .overrides = (const char *const *)settings.argv,
                                .num_overrides = settings.count};
    enum status status = job_load(job, &source, NULL, why);
    compare_arguments_free(&settings);
    return status;
}

/* Rejects a case that its strategy or its batch does not allow, before any run
 * is made. */
static enum status compare_cluster_check(
    void *context, const struct compare_arguments_request *request,
    struct failure *why) {
    const struct compare_cluster *members = context;
    struct job *job = NULL;
    struct strategy strategy;
    enum status status = make_job(&job, members, request, why);
    if (!status)
        status = strategy_choose(&strategy, job, &members->topology, NULL, why);
    if (!status)
        status = job_check_batch(job, members->topology.trainers, why);
    job_free(&job);
    return status;
}

static enum status compare_cluster_run_once(
    void *context, const struct compare_arguments_request *request,
    struct compare_runs_outcome *outcome, struct failure *why) {
    struct compare_cluster *members = context;
    struct job *job = NULL;
    struct run_series series = {.ps = request->spec.ps,
                                .first = !members->started,
                                .limit = members->flags->limit};
    memcpy(series.continues, request->continues, sizeof series.continues);
    enum status status = make_job(&job, members, request, why);
    if (status)
        return status;
    members->started = true;
    status = members->run_chief(members->context, job, &series, why);
    outcome->object = series.measured;
    /* A run that fails on its own is a failure of its case. Any other failure,
     * like a lost member, would affect all further runs. */
    if (status && status != STATUS_FAILED)
        return status;
    outcome->code = (int)status;
    if (!outcome->object)
        snprintf(outcome->problem, sizeof outcome->problem, "%.500s",
                 status ? why->text : "no memory for its figures");
    return STATUS_OK;
}

enum status compare_cluster_run(json_t **result,
                                struct compare_cluster *members,
                                struct failure *why) {
    struct compare_runs_runner runner = {.check = compare_cluster_check,
                                         .run = compare_cluster_run_once,
                                         .context = members};
    struct compare_runs_settings given = {
        .flags = members->flags,
        .job = members->job,
        .runner = &runner,
        .batch = members->batch,
        .members = members->topology.trainers + members->topology.num_ps,
        .local = members->local,
        .log = members->log};
    return compare_runs(result, &given, why);
}
