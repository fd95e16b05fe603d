/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/loss_oracle.h"

#include <math.h>
#include <string.h>

static double exact_softmax(const float *z, uint32_t label, double *dz,
                            uint32_t out) {
    double top = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < out; j++)
        top = fmax(top, z[j]);
    for (uint32_t j = 0; j < out; j++)
        sum += exp(z[j] - top);
    for (uint32_t j = 0; j < out; j++)
        dz[j] = exp(z[j] - top) / sum - (j == label);
    return top + log(sum) - z[label];
}

double loss_oracle_target(uint32_t label, uint32_t j, uint32_t out) {
    float target;
    memcpy(&target, &label, sizeof target);
    return out == 1 ? (double)target : j == label;
}

/* -log of the probability of each output's target. */
static double exact_sigmoid(const float *z, uint32_t label, double *dz,
                            uint32_t out) {
    double sum = 0;
    for (uint32_t j = 0; j < out; j++) {
        double target = loss_oracle_target(label, j, out);
        sum += fmax(z[j], 0) + log1p(exp(-fabs(z[j]))) - target * z[j];
        dz[j] = (1 / (1 + exp(-(double)z[j])) - target) / out;
    }
    return sum / out;
}

static double exact_mse(const float *z, uint32_t label, double *dz,
                        uint32_t out) {
    double sum = 0;
    for (uint32_t j = 0; j < out; j++) {
        double off = z[j] - loss_oracle_target(label, j, out);
        sum += off * off;
        dz[j] = 2 * off / out;
    }
    return sum / out;
}

double loss_oracle(enum job_loss kind, const float *z, uint32_t label,
                   double *dz, uint32_t out) {
    switch (kind) {
    case JOB_SOFTMAX_CROSS_ENTROPY:
        return exact_softmax(z, label, dz, out);
    case JOB_SIGMOID_CROSS_ENTROPY:
        return exact_sigmoid(z, label, dz, out);
    case JOB_MSE:
        return exact_mse(z, label, dz, out);
    }
    return NAN;
}
