/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job.h"

#include <inttypes.h>
#include <stdio.h>

struct batch {
    uint64_t train, micro, accumulation, replicas;
};

/* Fills the values that are 0. The check finds a division with a remainder. */
static void job_batch_complete(struct batch *batch) {
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

/* False if FACTOR replicas cannot solve the equation; OUT has the values found
 * so far. */
static bool solve_for(const struct job *job, uint32_t factor,
                      struct batch *out) {
    *out = (struct batch){job->train_batch_size, job->micro_batch,
                          job->accumulation, factor};
    job_batch_complete(out);
    return out->micro && out->accumulation &&
           out->micro * out->accumulation <= UINT32_MAX &&
           out->train <= UINT32_MAX &&
           out->train == out->micro * out->accumulation * out->replicas;
}

/* Sizes near the given one that fit the other values. */
static size_t suggest_sizes(const struct job *job, const struct batch *batch,
                            char *text, size_t size) {
    if (!job->train_batch_size)
        return 0;
    uint64_t unit = batch->replicas *
                    (job->micro_batch ? job->micro_batch : 1) *
                    (job->accumulation ? job->accumulation : 1);
    uint64_t below = batch->train / unit * unit;
    if (unit > UINT32_MAX)
        return 0;
    if (!below || (job->micro_batch && job->accumulation))
        return (size_t)snprintf(text, size,
                                ": train_batch_size %" PRIu64 " does", unit);
    return (size_t)snprintf(
        text, size, ": train_batch_size %" PRIu64 " or %" PRIu64 " does", below,
        below + unit);
}

/* Smaller numbers of devices that fit the given values, if all trainers have
 * the same number. */
static void suggest_devices(const struct job *job, struct job_replicas replicas,
                            bool follows, char *text, size_t size) {
    struct batch ignored;
    if (replicas.all != (uint64_t)replicas.trainers * replicas.each)
        return;
    for (uint32_t each = replicas.each; each-- > 1;) {
        uint32_t factor = job->staleness ? each : replicas.trainers * each;
        if (!solve_for(job, factor, &ignored))
            continue;
        snprintf(text, size, "%s \"devices\": %u does", follows ? ", or" : ":",
                 each);
        return;
    }
}

/* "4 trainers" if each is one replica, else "16 replicas (4 trainers x 4
 * devices)"; without the devices if their numbers differ. */
static void describe_factor(const struct job *job, struct job_replicas replicas,
                            uint64_t factor, char *text, size_t size) {
    bool single = replicas.all == replicas.trainers;
    int length =
        snprintf(text, size, "%" PRIu64 " %s%s", factor,
                 single ? "trainer" : "replica", factor == 1 ? "" : "s");
    if (single || job->staleness)
        return;
    length += snprintf(text + length, size - (size_t)length, " (%u trainer%s",
                       replicas.trainers, replicas.trainers == 1 ? "" : "s");
    bool alike = replicas.all == (uint64_t)replicas.trainers * replicas.each;
    snprintf(text + length, size - (size_t)length,
             alike ? " x %u devices)" : ")", replicas.each);
}

static enum status report_mismatch(const struct job *job,
                                   struct job_replicas replicas,
                                   const struct batch *batch,
                                   struct failure *why) {
    char fitting[160] = "", factors[64];
    size_t length = suggest_sizes(job, batch, fitting, sizeof fitting);
    suggest_devices(job, replicas, length, fitting + length,
                    sizeof fitting - length);
    describe_factor(job, replicas, batch->replicas, factors, sizeof factors);
    return status_fail(
        why, FAILURE_JOB_INVALID,
        "batch: train_batch_size %" PRIu64 "%s is not "
        "train_micro_batch_size_per_gpu %" PRIu64 "%s x "
        "gradient_accumulation_steps %" PRIu64
        "%s x %s%s; give two of the three, or make them fit%s",
        batch->train, origin(job->train_batch_size), batch->micro,
        origin(job->micro_batch), batch->accumulation,
        origin(job->accumulation), factors,
        job->staleness ? " (with staleness each push is an update)" : "",
        fitting);
}

enum status job_solve_replicas(struct job *job, struct job_replicas replicas,
                               struct failure *why) {
    uint32_t factor = job->staleness ? replicas.each : replicas.all;
    struct batch batch;
    if (!solve_for(job, factor, &batch))
        return report_mismatch(job, replicas, &batch, why);
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

enum status job_check_batch(const struct job *job, uint32_t trainers,
                            struct failure *why) {
    uint32_t least = job->staleness ? 1 : trainers;
    uint32_t each = job->device == JOB_DEVICE_CPU ? 1
                    : job->devices                ? job->devices
                                                  : JOB_MAX_DEVICES;
    struct batch ignored;
    for (uint32_t factor = least; factor <= least * each; factor++)
        if (solve_for(job, factor, &ignored))
            return STATUS_OK;
    struct job copy = *job;
    return job_solve_batch(&copy, trainers, why);
}
