#include "worker/evaluation.h"

#include <stdlib.h>

enum status evaluation_run(struct evaluation *out, struct mlp *mlp,
                           struct intake *intake, const struct dataset *test,
                           uint64_t first, uint64_t end, float *const *weights,
                           struct failure *why) {
    size_t features = test->features;
    uint32_t labels[EVALUATION_BATCH];
    float *inputs = malloc(EVALUATION_BATCH * features * sizeof *inputs);
    enum status status = STATUS_OK;
    *out = (struct evaluation){0};
    if (!inputs)
        return status_fail(why, STATUS_RETRY,
                           "no memory to evaluate %d samples of %zu features",
                           EVALUATION_BATCH, features);
    for (uint64_t i = first; !status && i < end;) {
        struct loader_batch batch = {.inputs = inputs, .labels = labels};
        struct mlp_result part;
        for (; batch.count < EVALUATION_BATCH && i < end; batch.count++, i++)
            labels[batch.count] = dataset_sample(
                test, (uint32_t)i, inputs + batch.count * features);
        intake_put(intake, &batch);
        mlp_evaluate(mlp, intake_take(intake), weights, NULL, &part);
        intake_done(intake);
        status = mlp_settle(mlp, &part, why);
        out->loss_sum += part.loss;
        out->correct += part.correct;
        out->count += part.count;
    }
    free(inputs);
    return status;
}
