/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/memory_footprint.h"

#include "proto/config/byte_size.h"
#include "proto/tensor/encoding.h"
#include "proto/tensor/recompute.h"
#include "proto/tensor/rule.h"

#include <stdio.h>

static uint32_t memory_footprint_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint64_t replicas(const struct memory_footprint_case *given) {
    return given->replicas ? given->replicas : 1;
}

/* The samples in memory at once, in training or evaluation. */
static uint64_t samples_of(const struct memory_footprint_case *given) {
    uint32_t samples = given->job->micro_batch;
    return given->test_samples
               ? memory_footprint_larger(samples, MEMORY_FOOTPRINT_EVALUATION)
               : samples;
}

/* The caller of the library has activations and data, and with ps weights and
 * gradients as well. */
static bool is_external(const struct memory_footprint_case *given) {
    return given->job->model.type == JOB_EXTERNAL;
}

/* Rows of all activation buffers, and of the gradients above and below a
 * layer. */
static uint64_t activations(const struct memory_footprint_case *given) {
    const struct job_model *model = &given->job->model;
    struct recompute plan;
    uint32_t widest = 0;
    if (is_external(given))
        return 0;
    for (uint32_t l = 1; l < model->num_layers; l++)
        widest = memory_footprint_larger(widest, model->layers[l]);
    recompute_plan(&plan, model);
    return samples_of(given) *
           (recompute_floats(&plan) + 2 * (uint64_t)widest) * sizeof(float);
}

/* The largest left operand, rows as wide as the widest layer, and the largest
 * right operand, a layer's weights or its inputs. */
static uint64_t rounded(const struct memory_footprint_case *given) {
    const struct job_model *model = &given->job->model;
    uint64_t samples = samples_of(given), right = 0;
    uint32_t widest = model->layers[0];
    if (model->precision == JOB_PRECISION_FP32 || is_external(given))
        return 0;
    for (uint32_t l = 1; l < model->num_layers; l++) {
        uint64_t in = model->layers[l - 1], out = model->layers[l];
        uint64_t largest = in * (out > samples ? out : samples);
        widest = memory_footprint_larger(widest, model->layers[l]);
        right = largest > right ? largest : right;
    }
    return (samples * widest + right) * sizeof(float);
}

/* Each replica has the current batch and the prefetched ones; in file order one
 * more for evaluation. */
static uint64_t batches(const struct memory_footprint_case *given) {
    const struct job *job = given->job;
    uint64_t inputs = job->model.layers[0];
    uint64_t ahead =
        (uint64_t)job->data.num_workers * job->data.prefetch_factor;
    uint64_t samples = (ahead + 1) * job->micro_batch * replicas(given);
    if (given->test_samples)
        samples += MEMORY_FOOTPRINT_EVALUATION;
    return samples * (inputs * sizeof(float) + sizeof(uint32_t));
}

/* One byte for a pixel and for a label; the order of the training set for each
 * replica. */
static uint64_t data(const struct memory_footprint_case *given) {
    uint64_t inputs = given->job->model.layers[0];
    uint64_t order = replicas(given) * given->train_samples * sizeof(uint32_t);
    if (!given->job->data.shuffle)
        order = 0;
    return (given->train_samples + given->test_samples) * (inputs + 1) + order;
}

static uint64_t state(const struct memory_footprint_case *given,
                      uint64_t elements) {
    return rule_slots(&given->job->optimizer) * elements * sizeof(float);
}

/* In all-reduce the whole state, or with ZeRO a trainer's partition. */
static uint64_t state_share(const struct memory_footprint_case *given) {
    uint64_t share = given->elements;
    if (given->job->zero.stage)
        share = (share + given->trainers - 1) / given->trainers;
    return given->allreduce ? state(given, share) : 0;
}

/* Two batches of each kind, one of them being copied. */
static void fill_device(struct memory_footprint *out,
                        const struct memory_footprint_case *given) {
    uint64_t inputs = given->job->model.layers[0];
    uint64_t samples = given->job->micro_batch;
    if (given->test_samples)
        samples += MEMORY_FOOTPRINT_EVALUATION;
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_STATE] = given->resident ? state_share(given) : 0,
        [MEMORY_FOOTPRINT_ACTIVATIONS] = activations(given),
        [MEMORY_FOOTPRINT_BATCHES] =
            2 * samples * (inputs * sizeof(float) + sizeof(uint32_t)),
    }};
}

/* Gradients that are not in the arena, or not in the wire's encoding, are
 * copied to where a ps of this host reads them (client_messages.c). */
static uint64_t staged_bytes(const struct memory_footprint_case *given) {
    enum job_wire wire = given->job->wire;
    bool copies = is_external(given) || wire != JOB_WIRE_FLOAT32;
    return copies ? encoding_bytes(wire, given->elements_beside) : 0;
}

static void fill_host(struct memory_footprint *out,
                      const struct memory_footprint_case *given,
                      enum memory_footprint_scope scope) {
    bool resident = given->resident && scope == MEMORY_FOOTPRINT_HOST;
    bool external = is_external(given);
    uint64_t copies = given->adds_on_host ? replicas(given) : 1;
    uint64_t gradients = copies * given->elements * sizeof(float);
    *out = (struct memory_footprint){
        {[MEMORY_FOOTPRINT_GRADIENTS] = staged_bytes(given)}};
    if (external && !given->allreduce)
        return;
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] =
            resident ? 0 : gradients + staged_bytes(given),
        [MEMORY_FOOTPRINT_STATE] = resident ? 0 : state_share(given),
        [MEMORY_FOOTPRINT_BATCHES] = external ? 0 : batches(given),
        [MEMORY_FOOTPRINT_DATA] = external ? 0 : data(given),
    }};
}

void memory_footprint_trainer(struct memory_footprint *out,
                              const struct memory_footprint_case *given,
                              enum memory_footprint_scope scope) {
    if (scope == MEMORY_FOOTPRINT_DEVICE)
        fill_device(out, given);
    else
        fill_host(out, given, scope);
    if (scope != MEMORY_FOOTPRINT_ALL)
        return;
    out->bytes[MEMORY_FOOTPRINT_ACTIVATIONS] = activations(given);
    out->bytes[MEMORY_FOOTPRINT_ROUNDED] = rounded(given);
}

void memory_footprint_ps(struct memory_footprint *out,
                         const struct memory_footprint_case *given,
                         uint64_t elements, uint32_t remote) {
    const struct job *job = given->job;
    bool means = job->optimizer.type == OPTIMIZER_NONE;
    bool waits = is_external(given) ||
                 (job->gradient_clipping > 0 && job->staleness == 0);
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] =
            waits ? remote * encoding_bytes(job->wire, elements) : 0,
        [MEMORY_FOOTPRINT_STATE] =
            means ? elements * sizeof(float) : state(given, elements),
    }};
}

uint64_t memory_footprint_sum(const struct memory_footprint *footprint) {
    uint64_t sum = 0;
    for (int kind = 0; kind < MEMORY_FOOTPRINT_KINDS; kind++)
        sum += footprint->bytes[kind];
    return sum;
}

void memory_footprint_text(const struct memory_footprint *footprint, char *text,
                           size_t size) {
    static const char *const names[] = {"weights",     "gradients", "state",
                                        "activations", "rounded",   "batches",
                                        "data"};
    char bytes[16];
    byte_size_text(memory_footprint_sum(footprint), bytes, sizeof bytes);
    size_t length = (size_t)snprintf(text, size, "%s", bytes);
    const char *before = ": ";
    for (int kind = 0; kind < MEMORY_FOOTPRINT_KINDS && length < size; kind++) {
        if (!footprint->bytes[kind])
            continue;
        byte_size_text(footprint->bytes[kind], bytes, sizeof bytes);
        length += (size_t)snprintf(text + length, size - length, "%s%s %s",
                                   before, names[kind], bytes);
        before = ", ";
    }
}
