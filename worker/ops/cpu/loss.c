/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cpu/loss.h"

#include "worker/ops/loss_element.h"

#include <math.h>

static float loss_largest(const float *z, uint32_t out) {
    float best = z[0];
    for (uint32_t j = 1; j < out; j++)
        best = loss_max(best, z[j]);
    return best;
}

double loss_softmax_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor) {
    float top = loss_largest(z, out);
    double below_top = (double)top - z[label], sum = 0;
    for (uint32_t j = 0; j < out; j++) {
        float power = loss_exp(z[j], top);
        sum += power;
        if (dz)
            dz[j] = power;
    }
    float over_sum = (float)(factor / sum);
    for (uint32_t j = 0; dz && j < out; j++)
        dz[j] *= over_sum;
    if (dz)
        dz[label] -= factor;
    return log(sum) + below_top;
}

double loss_sigmoid_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor) {
    double sum = 0;
    float share = factor / (float)out;
    for (uint32_t j = 0; j < out; j++) {
        float derivative;
        sum += loss_sigmoid(z[j], loss_target(label, j, out), &derivative);
        if (dz)
            dz[j] = share * derivative;
    }
    return sum / out;
}

double loss_mse(const float *z, uint32_t label, float *dz, uint32_t out,
                float factor) {
    double sum = 0;
    float share = 2 * factor / (float)out;
    for (uint32_t j = 0; j < out; j++) {
        float difference = z[j] - loss_target(label, j, out);
        sum += (double)difference * difference;
        if (dz)
            dz[j] = share * difference;
    }
    return sum / out;
}

bool loss_is_correct(const float *z, uint32_t label, uint32_t out) {
    bool correct = true;
    for (uint32_t j = 0; j < out; j++)
        correct &= loss_label_outranks(z[label], label, z[j], j);
    return correct;
}
