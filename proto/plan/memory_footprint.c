/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/memory_footprint.h"

#include "core/base/byte_size.h"
#include "core/tensor/rule.h"
#include "proto/plan/encoding.h"

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

/* Zeros of an external model: the caller of the library has activations and
 * data, and with ps weights and gradients as well. */
static struct memory_footprint_model model_of(
    const struct memory_footprint_case *given) {
    struct memory_footprint_model model = {0};
    if (given->model)
        given->model(given->job, samples_of(given), &model);
    if (given->job->data.weight)
        model.sample += sizeof(float);
    return model;
}

/* Each replica has the current batch and the prefetched ones; in file order one
 * more for evaluation. */
static uint64_t batches(const struct memory_footprint_case *given) {
    const struct job *job = given->job;
    uint64_t ahead =
        (uint64_t)job->data.num_workers * job->data.prefetch_factor;
    uint64_t samples = (ahead + 1) * job->micro_batch * replicas(given);
    if (given->test_samples)
        samples += MEMORY_FOOTPRINT_EVALUATION;
    return samples * model_of(given).sample;
}

/* A window of records for each replica and one for evaluation. How long a
 * record is, is not known here. */
static uint64_t windows(const struct memory_footprint_case *given) {
    uint64_t most = given->job->data.shuffle_buffer;
    uint64_t train = given->train_samples, test = given->test_samples;
    train = train && train < most ? train : most;
    test = test < most ? test : most;
    return (replicas(given) * train + test) * MEMORY_FOOTPRINT_RECORD;
}

/* With the order of the training set for each replica. */
static uint64_t data(const struct memory_footprint_case *given) {
    if (given->model && given->job->data.format != JOB_IDX)
        return windows(given);
    uint64_t order = replicas(given) * given->train_samples * sizeof(uint32_t);
    if (!given->job->data.shuffle)
        order = 0;
    return (given->train_samples + given->test_samples) *
               model_of(given).stored +
           order;
}

/* As if all parameters were in the group with the largest state. */
static uint64_t state(const struct memory_footprint_case *given,
                      uint64_t elements) {
    const struct job *job = given->job;
    uint32_t slots = rule_slots(&job->optimizer);
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++)
        if (job->groups[g].given)
            slots = memory_footprint_larger(
                slots, rule_slots(&job->groups[g].optimizer));
    return slots * elements * sizeof(float);
}

/* In all-reduce the whole state, or with ZeRO a trainer's partition. */
static uint64_t state_share(const struct memory_footprint_case *given) {
    uint64_t share = given->elements;
    if (given->job->zero.stage)
        share = (share + given->trainers - 1) / given->trainers;
    return given->allreduce ? state(given, share) : 0;
}

/* Two batches of each kind, one of them being copied: images as bytes. */
static void fill_device(struct memory_footprint *out,
                        const struct memory_footprint_case *given) {
    struct memory_footprint_model model = model_of(given);
    uint64_t samples = given->job->micro_batch;
    if (given->test_samples)
        samples += MEMORY_FOOTPRINT_EVALUATION;
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_STATE] = given->resident ? state_share(given) : 0,
        [MEMORY_FOOTPRINT_ACTIVATIONS] = model.activations,
        [MEMORY_FOOTPRINT_BATCHES] =
            samples * (2 * model.sample +
                       (given->job->data.format == JOB_IDX ? model.stored : 0)),
    }};
}

/* Gradients that are not in the arena, or not in the wire's encoding, are
 * copied to where a ps of this host reads them (client_messages.c). */
static uint64_t staged_bytes(const struct memory_footprint_case *given) {
    enum job_wire wire = given->job->wire;
    bool copies = !given->model || wire != JOB_WIRE_FLOAT32;
    return copies ? encoding_bytes(wire, given->elements_beside) : 0;
}

static void fill_host(struct memory_footprint *out,
                      const struct memory_footprint_case *given,
                      enum memory_footprint_scope scope) {
    bool resident = given->resident && scope == MEMORY_FOOTPRINT_HOST;
    uint64_t copies = given->adds_on_host ? replicas(given) : 1;
    uint64_t gradients = copies * given->elements * sizeof(float);
    *out = (struct memory_footprint){
        {[MEMORY_FOOTPRINT_GRADIENTS] = staged_bytes(given)}};
    if (!given->model && !given->allreduce)
        return;
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = given->elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] =
            resident ? 0 : gradients + staged_bytes(given),
        [MEMORY_FOOTPRINT_STATE] = resident ? 0 : state_share(given),
        [MEMORY_FOOTPRINT_BATCHES] = batches(given),
        [MEMORY_FOOTPRINT_DATA] = given->model ? data(given) : 0,
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
    struct memory_footprint_model model = model_of(given);
    out->bytes[MEMORY_FOOTPRINT_ACTIVATIONS] = model.activations;
    out->bytes[MEMORY_FOOTPRINT_ROUNDED] = model.rounded;
}

/* Of a ps's own part and another's, each the complete one and the next. */
enum { COPIES = 4 };

void memory_footprint_ps(struct memory_footprint *out,
                         const struct memory_footprint_case *given,
                         uint64_t elements, uint32_t remote) {
    const struct job *job = given->job;
    bool means = job->optimizer.type == OPTIMIZER_NONE;
    bool waits =
        !given->model || (job->gradient_clipping > 0 && job->staleness == 0);
    *out = (struct memory_footprint){{
        [MEMORY_FOOTPRINT_WEIGHTS] = elements * sizeof(float),
        [MEMORY_FOOTPRINT_GRADIENTS] =
            waits ? remote * encoding_bytes(job->wire, elements) : 0,
        [MEMORY_FOOTPRINT_STATE] =
            means ? elements * sizeof(float) : state(given, elements),
    }};
    uint64_t part = out->bytes[MEMORY_FOOTPRINT_WEIGHTS] +
                    out->bytes[MEMORY_FOOTPRINT_STATE];
    out->bytes[MEMORY_FOOTPRINT_COPIES] = job->replicas ? COPIES * part : 0;
}

uint64_t memory_footprint_sum(const struct memory_footprint *footprint) {
    uint64_t sum = 0;
    for (int kind = 0; kind < MEMORY_FOOTPRINT_KINDS; kind++)
        sum += footprint->bytes[kind];
    return sum;
}

void memory_footprint_text(const struct memory_footprint *footprint, char *text,
                           size_t size) {
    static const char *const names[] = {"weights", "gradients",   "state",
                                        "copies",  "activations", "rounded",
                                        "batches", "data"};
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
