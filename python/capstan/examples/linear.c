/* SPDX-License-Identifier: Apache-2.0 */
/* Linear regression with capstan.h: y = 2 x0 - 3 x1 + 1.
 *     cc linear.c $(pkg-config --cflags --libs capstan) -o linear
 *     capstan local --ps 1 --workers 2 -- ./linear */
#include <capstan.h>

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 200, BATCH = 32 };

static int explain(capstan_run *run, int result) {
    fprintf(stderr, "%s: %s\n", capstan_error_name(run), capstan_error(run));
    capstan_close(run);
    return result;
}

/* One step: the gradient of the mean squared error. */
static double compute(const float *weight, const float *bias, float *dw,
                      float *db) {
    double loss = 0;
    dw[0] = dw[1] = db[0] = 0;
    for (int i = 0; i < BATCH; i++) {
        float x[2] = {(float)drand48(), (float)drand48()};
        float error = weight[0] * x[0] + weight[1] * x[1] + bias[0] -
                      (2 * x[0] - 3 * x[1] + 1);
        loss += error * error / BATCH;
        for (int k = 0; k < 2; k++)
            dw[k] += 2 * error * x[k] / BATCH;
        db[0] += 2 * error / BATCH;
    }
    return loss;
}

int main(void) {
    const char *overrides[] = {"optimizer.params.lr=0.5", NULL};
    float weight[2] = {0}, bias[1] = {0}, dw[2], db[1];
    uint32_t w, b, two = 2;
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    capstan_run *run;
    int result = capstan_open(&run, NULL, overrides, CAPSTAN_LOG);
    if (!result &&
        !capstan_trains(run)) { /* a ps, or a chief without gradients */
        result = capstan_serve(run, -1);
        return result ? explain(run, result) : (capstan_close(run), 0);
    }
    if (!result)
        result = capstan_join(run, -1);
    struct capstan_tensor tensors[] = {
        {.name = "weight", .num_dims = 1, .dims = &two, .values = weight},
        {.name = "bias", .values = bias}};
    if (!result)
        result = capstan_declare(run, &tensors[0], &w);
    if (!result)
        result = capstan_declare(run, &tensors[1], &b);
    if (!result)
        result = capstan_start(run, -1);
    if (!result)
        srand48(capstan_rank(run));
    for (int step = 0; !result && step < STEPS; step++) {
        double loss = compute(weight, bias, dw, db);
        result = capstan_push(run, b, db, sizeof db, CAPSTAN_FULL);
        if (!result)
            result = capstan_push(run, w, dw, sizeof dw, CAPSTAN_FULL);
        if (!result)
            result = capstan_step(run, loss, BATCH, 0, &outcome, -1);
        if (!result)
            result = capstan_wait(run, w, -1);
        if (!result)
            result = capstan_wait(run, b, -1);
    }
    if (!result)
        result = capstan_end(run, CAPSTAN_DONE, NULL, -1);
    if (result)
        return explain(run, result);
    capstan_close(run);
    printf("%.3f %.3f %.3f\n", weight[0], weight[1], bias[0]);
}
