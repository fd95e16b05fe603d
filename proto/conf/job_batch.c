#include "proto/conf/job.h"

#include <inttypes.h>
#include <stdio.h>

struct batch {
    uint64_t train, micro, accumulation, trainers;
};

/* Fills what is 0. A quotient that leaves a rest shows in the check. */
static void solve(struct batch *batch) {
    if (!batch->accumulation && !(batch->train && batch->micro))
        batch->accumulation = 1;
    if (!batch->train)
        batch->train = batch->micro * batch->accumulation * batch->trainers;
    else if (!batch->micro)
        batch->micro = batch->train / batch->accumulation / batch->trainers;
    else if (!batch->accumulation)
        batch->accumulation = batch->train / batch->micro / batch->trainers;
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
    uint64_t unit = batch->trainers *
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

enum status job_solve_batch(struct job *job, uint32_t trainers,
                            struct failure *why) {
    struct batch batch = {job->train_batch_size, job->micro_batch,
                          job->accumulation, job->staleness ? 1 : trainers};
    solve(&batch);
    bool fits =
        batch.micro && batch.accumulation &&
        batch.micro * batch.accumulation <= UINT32_MAX &&
        batch.train <= UINT32_MAX &&
        batch.train == batch.micro * batch.accumulation * batch.trainers;
    char fitting[96];
    name_fitting(job, &batch, fitting, sizeof fitting);
    if (!fits)
        return status_fail(
            why, STATUS_CONFIG,
            "batch: train_batch_size %" PRIu64 "%s is not "
            "train_micro_batch_size_per_gpu %" PRIu64 "%s x "
            "gradient_accumulation_steps %" PRIu64 "%s x %" PRIu64
            " trainer%s%s; give two of the three, or make them fit%s",
            batch.train, origin(job->train_batch_size), batch.micro,
            origin(job->micro_batch), batch.accumulation,
            origin(job->accumulation), batch.trainers,
            batch.trainers == 1 ? "" : "s",
            job->staleness ? " (with staleness each push is an update)" : "",
            fitting);
    job->train_batch_size = (uint32_t)batch.train;
    job->micro_batch = (uint32_t)batch.micro;
    job->accumulation = (uint32_t)batch.accumulation;
    return STATUS_OK;
}
