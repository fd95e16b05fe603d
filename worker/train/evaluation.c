/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/evaluation.h"

#include <stdlib.h>

enum status evaluation_run(struct evaluation *out, struct mlp *mlp,
                           struct batch_prefetch *batch_prefetch,
                           const struct evaluation_range *range,
                           float *const *weights, struct failure *why) {
    size_t features = range->test->features;
    uint32_t labels[EVALUATION_BATCH];
    float *inputs = malloc(EVALUATION_BATCH * features * sizeof *inputs);
    enum status status = STATUS_OK;
    *out = (struct evaluation){0};
    if (!inputs)
        return status_fail(why, STATUS_RETRY,
                           "no memory to evaluate %d samples of %zu features",
                           EVALUATION_BATCH, features);
    for (uint64_t i = range->first; !status && i < range->end;) {
        struct loader_batch batch = {.inputs = inputs, .labels = labels};
        struct mlp_result result;
        for (; batch.count < EVALUATION_BATCH && i < range->end;
             batch.count++, i++)
            labels[batch.count] = dataset_sample(
                range->test, (uint32_t)i, inputs + batch.count * features);
        batch_prefetch_push(batch_prefetch, &batch);
        mlp_evaluate(mlp, batch_prefetch_pop(batch_prefetch), weights, NULL,
                     &result);
        batch_prefetch_release(batch_prefetch);
        status = mlp_wait_result(mlp, &result, why);
        out->loss_sum += result.loss;
        out->correct += result.correct;
        out->count += result.count;
    }
    free(inputs);
    return status;
}
