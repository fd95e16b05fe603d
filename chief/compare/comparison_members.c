/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_members.h"

#include <stdio.h>
#include <string.h>

/* All numbers, or where they are too many those that double, and all. */
static void count_up(struct compare_counts *counts, unsigned most) {
    counts->count = 0;
    for (unsigned i = 1; i < most;
         i = most <= COMPARE_OPTIONS_MAX_COUNTS ? i + 1 : 2 * i)
        counts->values[counts->count++] = i;
    if (most)
        counts->values[counts->count++] = most;
}

static enum status settle_ps(const struct comparison_members *members,
                             struct compare_options *flags, bool given,
                             struct failure *why) {
    unsigned listed = members->there.num_ps;
    if (!given)
        count_up(&flags->ps, listed);
    else if (!listed)
        return status_fail(why, STATUS_CONFIG,
                           "compare.ps: found %u; allowed: none, for the "
                           "cluster lists no ps; leave it out to measure "
                           "all-reduce alone",
                           flags->ps.values[0]);
    else if (flags->ps.values[flags->ps.count - 1] > listed)
        return status_fail(why, STATUS_CONFIG,
                           "compare.ps: found %u; allowed: 1 to %u, as the "
                           "cluster lists",
                           flags->ps.values[flags->ps.count - 1], listed);
    if (!listed)
        log_info(members->log, "the cluster lists no ps: all-reduce alone is "
                               "measured");
    return STATUS_OK;
}

static enum status settle_workers(const struct comparison_members *members,
                                  struct compare_options *flags, bool given,
                                  struct failure *why) {
    unsigned trainers = members->there.trainers;
    const struct compare_counts *asked = &flags->workers;
    if (members->there.alone || !trainers)
        return status_fail(why, STATUS_CONFIG,
                           "\"compare\" in a job compares across a cluster, "
                           "and this process trains alone: `capstan compare "
                           "JOB.json` compares on one machine");
    if (given && (asked->count > 1 || asked->values[0] != trainers))
        return status_fail(why, STATUS_CONFIG,
                           "compare.workers: found %u%s; allowed: %u, for in "
                           "a cluster all trainers take part",
                           asked->values[0], asked->count > 1 ? ", ..." : "",
                           trainers);
    flags->workers = (struct compare_counts){{trainers}, 1};
    return STATUS_OK;
}

enum status comparison_members_settle(struct comparison_members *members,
                                      struct options *options,
                                      struct failure *why) {
    struct compare_options *flags = &options->compare;
    const struct job_compare *block = &members->job->compare;
    enum status status =
        settle_workers(members, flags, block->workers.count, why);
    if (!status)
        status = settle_ps(members, flags, block->ps.count, why);
    return status ? status
                  : comparison_batch_find(&members->batch, members->job,
                                          members->there.trainers, false, why);
}

/* The job of a run, the caller's. */
static enum status make(struct job **job,
                        const struct comparison_members *members,
                        const struct comparison_asked *asked,
                        struct failure *why) {
    struct comparison_command settings;
    comparison_command_settings(&settings, members->flags, asked);
    struct job_source source = {.path = members->flags->job,
                                .deepspeed = members->flags->deepspeed,
                                .overrides =
                                    (const char *const *)settings.words,
                                .num_overrides = settings.count};
    enum status status = job_load(job, &source, NULL, why);
    comparison_command_forget(&settings);
    return status;
}

static enum status check(void *context, const struct comparison_asked *asked,
                         struct failure *why) {
    const struct comparison_members *members = context;
    struct job *job = NULL;
    struct strategy strategy;
    enum status status = make(&job, members, asked, why);
    if (!status)
        status = strategy_choose(&strategy, job, &members->there, NULL, why);
    if (!status)
        status = job_check_batch(job, members->there.trainers, why);
    job_free(&job);
    return status;
}

static enum status run(void *context, const struct comparison_asked *asked,
                       struct comparison_outcome *outcome,
                       struct failure *why) {
    struct comparison_members *members = context;
    struct job *job = NULL;
    struct series series = {.ps = asked->of.ps,
                            .first = !members->begun,
                            .limit = members->flags->compare.limit};
    memcpy(series.more, asked->more, sizeof series.more);
    enum status status = make(&job, members, asked, why);
    if (status)
        return status;
    members->begun = true;
    status = members->lead(members->context, job, &series, why);
    outcome->object = series.measured;
    if (status && status != STATUS_FAILED)
        return status;
    outcome->code = (int)status;
    if (!outcome->object)
        snprintf(outcome->problem, sizeof outcome->problem, "%.500s",
                 status ? why->text : "no memory for its figures");
    return STATUS_OK;
}

enum status comparison_members_run(json_t **result,
                                   struct comparison_members *members,
                                   struct failure *why) {
    struct comparison_way way = {
        .check = check, .run = run, .context = members};
    struct comparison_options given = {.flags = members->flags,
                                       .job = members->job,
                                       .way = &way,
                                       .batch = members->batch,
                                       .members = members->there.trainers +
                                                  members->there.num_ps,
                                       .here = members->here,
                                       .log = members->log};
    return comparison_run(result, &given, why);
}
