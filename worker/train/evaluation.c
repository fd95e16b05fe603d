/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/evaluation.h"

#include <stdlib.h>

enum status evaluation_run(struct evaluation *out, struct mlp *mlp,
                           struct intake *intake,
                           const struct evaluation_part *part,
                           float *const *weights, struct failure *why) {
    size_t features = part->test->features;
    uint32_t labels[EVALUATION_BATCH];
    float *inputs = malloc(EVALUATION_BATCH * features * sizeof *inputs);
    enum status status = STATUS_OK;
    *out = (struct evaluation){0};
    if (!inputs)
        return status_fail(why, STATUS_RETRY,
                           "no memory to evaluate %d samples of %zu features",
                           EVALUATION_BATCH, features);
    for (uint64_t i = part->first; !status && i < part->end;) {
        struct loader_batch batch = {.inputs = inputs, .labels = labels};
        struct mlp_result result;
        for (; batch.count < EVALUATION_BATCH && i < part->end;
             batch.count++, i++)
            labels[batch.count] = dataset_sample(
                part->test, (uint32_t)i, inputs + batch.count * features);
        intake_put(intake, &batch);
        mlp_evaluate(mlp, intake_take(intake), weights, NULL, &result);
        intake_done(intake);
        status = mlp_settle(mlp, &result, why);
        out->loss_sum += result.loss;
        out->correct += result.correct;
        out->count += result.count;
    }
    free(inputs);
    return status;
}
