/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/compare_batch.h"

/* Trainers that share a machine have one device each; a trainer that is alone
 * on its machine, or in a cluster, may have more. */
enum status compare_batch_find(struct compare_batch *out, const struct job *job,
                               uint32_t trainers, bool local,
                               struct failure *why) {
    bool single = job->device == JOB_DEVICE_CPU || job->devices == 1 ||
                  (local && trainers > 1);
    struct job solved = *job;
    *out = (struct compare_batch){0};
    if (job->train_batch_size && !single)
        return job_check_batch(job, trainers, why);
    enum status status = job_solve_batch(&solved, trainers, why);
    if (!status)
        *out = (struct compare_batch){solved.micro_batch, solved.accumulation};
    return status;
}

static uint32_t compare_batch_count(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

void compare_batch_update(struct compare_batch *batch, const json_t *run) {
    struct compare_batch found = {compare_batch_count(run, "micro_batch"),
                                  compare_batch_count(run, "accumulation")};
    if (!batch->micro && found.micro && found.accumulation)
        *batch = found;
}

void compare_batch_grow(struct compare_batch *batch, uint32_t samples) {
    uint32_t least =
        batch->micro ? (samples + batch->micro - 1) / batch->micro : 0;
    if (batch->accumulation < least)
        batch->accumulation = least;
}

double compare_batch_samples(const struct compare_batch *batch) {
    return (double)batch->micro * batch->accumulation;
}
