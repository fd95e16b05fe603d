/* SPDX-License-Identifier: Apache-2.0 */
/* Losses: one warp per sample, whose lanes take every 32nd class; then one
 * block sums the samples. Sums over lanes use a butterfly, in which a lane and
 * its partner add the same two numbers, so that all lanes have the same
 * bits. */
#include "worker/ops/cuda/cuda_launch.h"

#include "worker/ops/loss_element.h"

#include <math.h>

enum { SAMPLES = CUDA_THREADS / CUDA_WARP }; /* per block at a time */

/* A sample's logits z[out], its gradient dz[out] (may be NULL, or Z), the
 * gradient's factor, and the calling thread's lane. */
struct sample {
    const float *z;
    float *dz;
    uint32_t label, out, lane;
    float factor;
};

CUDA_ELEMENT double warp_sum(double value) {
    for (int apart = CUDA_WARP / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(CUDA_FULL_WARP, value, apart);
    return value;
}

CUDA_ELEMENT float warp_max(float value) {
    for (int apart = CUDA_WARP / 2; apart > 0; apart /= 2)
        value = loss_max(value, __shfl_xor_sync(CUDA_FULL_WARP, value, apart));
    return value;
}

CUDA_ELEMENT float cuda_loss_largest(const struct sample *s) {
    float top = -INFINITY;
    for (size_t j = s->lane; j < s->out; j += CUDA_WARP)
        top = loss_max(top, s->z[j]);
    return warp_max(top);
}

/* A lane writes only its own classes, and all lanes have read LABEL_LOGIT, the
 * label's logit, before: the gradient may overwrite the logits. */
CUDA_ELEMENT double softmax_cross_entropy(const struct sample *s,
                                          float label_logit) {
    float top = cuda_loss_largest(s);
    double sum = 0;
    for (size_t j = s->lane; j < s->out; j += CUDA_WARP) {
        float power = loss_exp(s->z[j], top);
        sum += power;
        if (s->dz)
            s->dz[j] = power;
    }
    sum = warp_sum(sum);
    float over_sum = (float)(s->factor / sum);
    for (size_t j = s->lane; s->dz && j < s->out; j += CUDA_WARP) {
        float share = s->dz[j] * over_sum;
        s->dz[j] = j == s->label ? share - s->factor : share;
    }
    return log(sum) + ((double)top - label_logit);
}

CUDA_ELEMENT double sigmoid_cross_entropy(const struct sample *s) {
    double sum = 0;
    float share = s->factor / (float)s->out;
    for (size_t j = s->lane; j < s->out; j += CUDA_WARP) {
        float derivative;
        sum += loss_sigmoid(s->z[j], loss_target(s->label, (uint32_t)j, s->out),
                            &derivative);
        if (s->dz)
            s->dz[j] = share * derivative;
    }
    return warp_sum(sum) / s->out;
}

CUDA_ELEMENT double mse(const struct sample *s) {
    double sum = 0;
    float share = 2 * s->factor / (float)s->out;
    for (size_t j = s->lane; j < s->out; j += CUDA_WARP) {
        float difference = s->z[j] - loss_target(s->label, (uint32_t)j, s->out);
        sum += (double)difference * difference;
        if (s->dz)
            s->dz[j] = share * difference;
    }
    return warp_sum(sum) / s->out;
}

CUDA_ELEMENT bool is_correct(const struct sample *s, float label_logit) {
    bool correct = true;
    for (size_t j = s->lane; j < s->out; j += CUDA_WARP)
        correct &=
            loss_label_outranks(label_logit, s->label, s->z[j], (uint32_t)j);
    return __all_sync(CUDA_FULL_WARP, correct);
}

CUDA_ELEMENT double loss_of(enum job_loss kind, const struct sample *s,
                            float label_logit) {
    switch (kind) {
    case JOB_SOFTMAX_CROSS_ENTROPY:
        return softmax_cross_entropy(s, label_logit);
    case JOB_SIGMOID_CROSS_ENTROPY:
        return sigmoid_cross_entropy(s);
    case JOB_MSE:
        return mse(s);
    }
    return NAN;
}

/* An invalid label: the loss becomes NaN. */
CUDA_ELEMENT double write_invalid(const struct sample *s) {
    for (size_t j = s->lane; s->dz && j < s->out; j += CUDA_WARP)
        s->dz[j] = NAN;
    return NAN;
}

/* losses[n], corrects[n] and dz[n, out] (may be NULL, or Z) of z[n, out],
 * labels[n] and weights[n] (NULL: 1 each). */
static __global__ void sample_losses(enum job_loss kind, const float *z,
                                     const uint32_t *labels,
                                     const float *weights, float *dz, size_t n,
                                     uint32_t out, float scale,
                                     const float *factor, double *losses,
                                     uint32_t *corrects) {
    float all = cuda_scale(scale, factor);
    struct sample s = {};
    s.out = out;
    s.lane = threadIdx.x % CUDA_WARP;
    size_t first = (size_t)blockIdx.x * SAMPLES + threadIdx.x / CUDA_WARP;
    for (size_t i = first; i < n; i += (size_t)gridDim.x * SAMPLES) {
        s.z = z + i * out;
        s.dz = dz ? dz + i * out : NULL;
        s.label = labels[i];
        float weight = weights ? weights[i] : 1;
        s.factor = weight * all;
        bool target = loss_has_target(kind, out);
        bool known = target || s.label < out;
        float label_logit = target ? s.z[0] : known ? s.z[s.label] : NAN;
        bool correct = target ? loss_hits_target(kind, label_logit,
                                                 loss_target(s.label, 0, 1))
                              : is_correct(&s, label_logit);
        double loss =
            known ? loss_of(kind, &s, label_logit) : write_invalid(&s);
        if (s.lane == 0) {
            losses[i] = (double)weight * loss;
            corrects[i] = correct;
        }
    }
}

/* *LOSS and *CORRECT = the sums of losses[n] and corrects[n]: each thread sums
 * every 256th, then half the threads add the other half. One block. */
static __global__ void sum_samples(const double *losses,
                                   const uint32_t *corrects, size_t n,
                                   double *loss, uint32_t *correct) {
    __shared__ double sums[CUDA_THREADS];
    __shared__ uint32_t counts[CUDA_THREADS];
    unsigned own = threadIdx.x;
    sums[own] = 0;
    counts[own] = 0;
    for (size_t i = own; i < n; i += CUDA_THREADS) {
        sums[own] += losses[i];
        counts[own] += corrects[i];
    }
    for (unsigned half = CUDA_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (own < half) {
            sums[own] += sums[own + half];
            counts[own] += counts[own + half];
        }
    }
    if (own == 0) {
        *loss = sums[0];
        *correct = counts[0];
    }
}

size_t cuda_kernels_loss_scratch(size_t n) {
    return n * (sizeof(double) + sizeof(uint32_t));
}

int cuda_kernels_sample_losses(struct CUstream_st *stream, enum job_loss kind,
                               const float *z, const uint32_t *labels,
                               const float *weights, float *dz, size_t n,
                               uint32_t out, float scale, const float *factor,
                               void *scratch) {
    double *losses = (double *)scratch;
    uint32_t *corrects = (uint32_t *)(losses + n);
    return cuda_launch(stream, cuda_blocks(n, SAMPLES), sample_losses, kind, z,
                       labels, weights, dz, n, out, scale, factor, losses,
                       corrects);
}

int cuda_kernels_sum_losses(struct CUstream_st *stream, const void *scratch,
                            size_t n, double *loss, uint32_t *correct) {
    const double *losses = (const double *)scratch;
    const uint32_t *corrects = (const uint32_t *)(losses + n);
    return cuda_launch(stream, 1, sum_samples, losses, corrects, n, loss,
                       correct);
}
