#include "proto/conf/job.h"

#include <inttypes.h>
#include <stdio.h>

struct batch {
    uint64_t train, micro, accumulation, replicas;
};

/* Fills what is 0. A quotient that leaves a rest shows in the check. */
static void solve(struct batch *batch) {
    if (!batch->accumulation && !(batch->train && batch->micro))
        batch->accumulation = 1;
    if (!batch->train)
        batch->train = batch->micro * batch->accumulation * batch->replicas;
    else if (!batch->micro)
        batch->micro = batch->train / batch->accumulation / batch->replicas;
    else if (!batch->accumulation)
        batch->accumulation = batch->train / batch->micro / batch->replicas;
}

static const char *origin(uint32_t given) {
    return given ? "" : " (not given)";
}

/* Sizes around the one given that fit the rest of what is given. */
static void name_fitting(const struct job *job, const struct batch *batch,
                         char *text, size_t size) {
    *text = 0;
    if (!job->train_batch_size || (job->micro_batch && job->accumulation))
        return;
    uint64_t unit = batch->replicas *
                    (job->micro_batch ? job->micro_batch : 1) *
                    (job->accumulation ? job->accumulation : 1);
    uint64_t below = batch->train / unit * unit;
    if (below)
        snprintf(text, size,
                 ": train_batch_size %" PRIu64 " or %" PRIu64 " does", below,
                 below + unit);
    else
        snprintf(text, size, ": train_batch_size %" PRIu64 " does", unit);
}

/* "4 trainers", where each is one replica, else "16 replicas (4 trainers)". */
static void name_factor(const struct job *job, struct job_replicas replicas,
                        uint64_t factor, char *text, size_t size) {
    bool single = replicas.all == replicas.trainers;
    int length =
        snprintf(text, size, "%" PRIu64 " %s%s", factor,
                 single ? "trainer" : "replica", factor == 1 ? "" : "s");
    if (!single && !job->staleness)
        snprintf(text + length, size - (size_t)length, " (%u trainer%s)",
                 replicas.trainers, replicas.trainers == 1 ? "" : "s");
}

enum status job_solve_replicas(struct job *job, struct job_replicas replicas,
                               struct failure *why) {
    uint32_t factor = job->staleness ? replicas.each : replicas.all;
    struct batch batch = {job->train_batch_size, job->micro_batch,
                          job->accumulation, factor};
    solve(&batch);
    bool fits =
        batch.micro && batch.accumulation &&
        batch.micro * batch.accumulation <= UINT32_MAX &&
        batch.train <= UINT32_MAX &&
        batch.train == batch.micro * batch.accumulation * batch.replicas;
    char fitting[96], factors[64];
    name_fitting(job, &batch, fitting, sizeof fitting);
    name_factor(job, replicas, factor, factors, sizeof factors);
    if (!fits)
        return status_fail(
            why, STATUS_CONFIG,
            "batch: train_batch_size %" PRIu64 "%s is not "
            "train_micro_batch_size_per_gpu %" PRIu64 "%s x "
            "gradient_accumulation_steps %" PRIu64
            "%s x %s%s; give two of the three, or make them fit%s",
            batch.train, origin(job->train_batch_size), batch.micro,
            origin(job->micro_batch), batch.accumulation,
            origin(job->accumulation), factors,
            job->staleness ? " (with staleness each push is an update)" : "",
            fitting);
    job->train_batch_size = (uint32_t)batch.train;
    job->micro_batch = (uint32_t)batch.micro;
    job->accumulation = (uint32_t)batch.accumulation;
    return STATUS_OK;
}

enum status job_solve_batch(struct job *job, uint32_t trainers,
                            struct failure *why) {
    return job_solve_replicas(job, (struct job_replicas){trainers, trainers, 1},
                              why);
}

/* Can the batch be solved for FACTOR replicas? */
static bool is_solvable(const struct job *job, uint32_t trainers,
                        uint32_t factor) {
    struct job copy = *job;
    return !job_solve_replicas(
        &copy, (struct job_replicas){trainers, factor, factor}, NULL);
}

enum status job_check_batch(const struct job *job, uint32_t trainers,
                            struct failure *why) {
    uint32_t least = job->staleness ? 1 : trainers;
    uint32_t each = job->device == JOB_DEVICE_CPU ? 1
                    : job->devices                ? job->devices
                                                  : JOB_MOST_DEVICES;
    for (uint32_t factor = least; factor <= least * each; factor++)
        if (is_solvable(job, trainers, factor))
            return STATUS_OK;
    struct job copy = *job;
    return job_solve_batch(&copy, trainers, why);
}
