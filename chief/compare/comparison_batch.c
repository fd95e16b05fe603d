/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_batch.h"

/* Trainers of one machine have a device each: one alone may have more, and so
 * may each of a cluster. */
enum status comparison_batch_find(struct comparison_batch *out,
                                  const struct job *job, uint32_t trainers,
                                  bool here, struct failure *why) {
    bool single = job->device == JOB_DEVICE_CPU || job->devices == 1 ||
                  (here && trainers > 1);
    struct job solved = *job;
    *out = (struct comparison_batch){0};
    if (job->train_batch_size && !single)
        return job_check_batch(job, trainers, why);
    enum status status = job_solve_batch(&solved, trainers, why);
    if (!status)
        *out =
            (struct comparison_batch){solved.micro_batch, solved.accumulation};
    return status;
}

static uint32_t count(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

void comparison_batch_learn(struct comparison_batch *batch, const json_t *run) {
    struct comparison_batch found = {count(run, "micro_batch"),
                                     count(run, "accumulation")};
    if (!batch->micro && found.micro && found.accumulation)
        *batch = found;
}

void comparison_batch_widen(struct comparison_batch *batch, uint32_t samples) {
    uint32_t least =
        batch->micro ? (samples + batch->micro - 1) / batch->micro : 0;
    if (batch->accumulation < least)
        batch->accumulation = least;
}

double comparison_batch_samples(const struct comparison_batch *batch) {
    return (double)batch->micro * batch->accumulation;
}
