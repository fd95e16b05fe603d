/* SPDX-License-Identifier: Apache-2.0 */
/* Update rules in GB/s of gradient (as float32) a core, beside memcpy of the
 * same bytes. `bound` is what memory would allow: memcpy's rate over the
 * tensors the rule reads and writes. Weights are 64 MiB, cut into blocks,
 * updated in place, after the caches have been left by the other blocks.
 * Gradients come in float32 and in bf16. Then the conversions
 * between the two. */
#include "core/base/time.h"
#include "core/tensor/rule.h"
#include "proto/plan/encoding.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKING_SET = 64 << 20, MAX_GRADIENTS = 2, PASSES = 3 };
enum { ELEMENTS = WORKING_SET / sizeof(float) };

static const struct {
    const char *name;
    struct optimizer rule;
} rules[] = {
    {"SGD", {.type = OPTIMIZER_SGD}},
    {"SGD momentum", {.type = OPTIMIZER_SGD, .momentum = 0.9}},
    {"Adagrad", {.type = OPTIMIZER_ADAGRAD, .eps = 1e-10}},
    {"RMSprop", {.type = OPTIMIZER_RMSPROP, .alpha = 0.99, .eps = 1e-8}},
    {"RMSprop momentum",
     {.type = OPTIMIZER_RMSPROP, .alpha = 0.99, .eps = 1e-8, .momentum = 0.9}},
    {"RMSprop centered",
     {.type = OPTIMIZER_RMSPROP, .alpha = 0.99, .eps = 1e-8, .centered = true}},
    {"RMSprop both",
     {.type = OPTIMIZER_RMSPROP,
      .alpha = 0.99,
      .eps = 1e-8,
      .centered = true,
      .momentum = 0.9}},
    {"Adam",
     {.type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}},
    {"AdamW",
     {.type = OPTIMIZER_ADAMW,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .weight_decay = 0.01}},
    {"Adam amsgrad",
     {.type = OPTIMIZER_ADAM,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .amsgrad = true}},
    {"Ftrl", {.type = OPTIMIZER_FTRL, .learning_rate_power = -0.5}},
    {"Ftrl power", {.type = OPTIMIZER_FTRL, .learning_rate_power = -0.4}},
};
enum { RULES = sizeof rules / sizeof *rules };

/* One allocation each of WORKING_SET bytes. */
struct shm_segment {
    float *gradients[MAX_GRADIENTS], *weights, *state[RULE_MAX_SLOTS];
};

static float *filled(float value) {
    float *shm_segment = aligned_alloc(64, WORKING_SET);
    if (!shm_segment) {
        fprintf(stderr, "rule_bench: no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < ELEMENTS; i++)
        shm_segment[i] = value + (float)(i % 7) * 0.01f;
    return shm_segment;
}

static void shm_segment_open(struct shm_segment *segment) {
    for (int k = 0; k < MAX_GRADIENTS; k++)
        segment->gradients[k] = filled(0.1f);
    segment->weights = filled(1);
    for (int slot = 0; slot < RULE_MAX_SLOTS; slot++)
        segment->state[slot] = filled(0.5f);
}

static void memory_close(struct shm_segment *segment) {
    for (int k = 0; k < MAX_GRADIENTS; k++)
        free(segment->gradients[k]);
    free(segment->weights);
    for (int slot = 0; slot < RULE_MAX_SLOTS; slot++)
        free(segment->state[slot]);
}

/* What an update is made of. */
struct arrival {
    unsigned num_gradients;
    enum job_wire wire;
    size_t block; /* elements */
};

static void update_block(const struct shm_segment *segment,
                         const struct rule_loops *loops,
                         const struct optimizer *rule,
                         const struct arrival *arrival, size_t first,
                         size_t elements) {
    const void *gradients[MAX_GRADIENTS];
    unsigned num_gradients = arrival->num_gradients;
    for (unsigned k = 0; k < num_gradients; k++)
        gradients[k] = (const char *)segment->gradients[k] +
                       encoding_bytes(arrival->wire, first);
    struct rule_update update = {
        .step = 10,
        .rate = 1e-3,
        .scale = 1.0f / (float)num_gradients,
        .elements = elements,
        .num_gradients = num_gradients,
        .gradients = gradients,
        .wire = arrival->wire,
        .weights = segment->weights + first,
        .weights_out = segment->weights + first,
    };
    for (unsigned slot = 0; slot < rule_slots(rule); slot++)
        update.state[slot] = update.state_out[slot] =
            segment->state[slot] + first;
    rule_apply(loops, rule, &update);
}

/* The shortest of some passes over all blocks, as GB/s of BYTES. */
static double best_rate(double bytes, const int64_t *times) {
    int64_t best = times[0];
    for (int pass = 1; pass < PASSES; pass++)
        if (times[pass] < best)
            best = times[pass];
    return bytes / (double)best;
}

static double rule_rate(const struct shm_segment *segment,
                        const struct rule_loops *loops,
                        const struct optimizer *rule,
                        const struct arrival *arrival) {
    int64_t times[PASSES];
    size_t block = arrival->block;
    for (int pass = 0; pass < PASSES; pass++) {
        int64_t start = time_now();
        for (size_t first = 0; first < ELEMENTS; first += block)
            update_block(segment, loops, rule, arrival, first, block);
        times[pass] = time_now() - start;
    }
    return best_rate((double)WORKING_SET * arrival->num_gradients, times);
}

static double memcpy_rate(const struct shm_segment *segment, size_t block) {
    int64_t times[PASSES];
    for (int pass = 0; pass < PASSES; pass++) {
        int64_t start = time_now();
        for (size_t first = 0; first < ELEMENTS; first += block)
            memcpy(segment->weights + first, segment->gradients[0] + first,
                   block * sizeof(float));
        times[pass] = time_now() - start;
    }
    return best_rate(WORKING_SET, times);
}

/* memcpy reads and writes a byte for each of its rate; the rule reads its
 * gradients, and reads and writes its weights and state. */
static double bound(const struct optimizer *rule, const struct arrival *arrival,
                    double memcpy_rate) {
    double gradients = arrival->num_gradients;
    double read =
        gradients * (double)encoding_bytes(arrival->wire, 1) / sizeof(float);
    return memcpy_rate * 2 * gradients / (read + 2 * (1 + rule_slots(rule)));
}

static void print_table(const struct shm_segment *segment,
                        const struct arrival *arrival) {
    unsigned num_gradients = arrival->num_gradients;
    size_t block = arrival->block;
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    double copied = memcpy_rate(segment, block);
    printf("\n%u gradient%s in %s, blocks of %zu KiB, GB/s of gradient; memcpy "
           "%.1f\n%-18s",
           num_gradients, num_gradients > 1 ? "s" : "",
           arrival->wire == JOB_WIRE_BF16 ? "bf16" : "float32",
           block * sizeof(float) >> 10, copied, "");
    for (size_t v = 0; v < count; v++)
        printf("%8s", rule_variant_name(variants[v]));
    printf("%8s\n", "bound");
    for (int r = 0; r < RULES; r++) {
        printf("%-18s", rules[r].name);
        for (size_t v = 0; v < count; v++)
            printf("%8.2f",
                   rule_rate(segment, variants[v], &rules[r].rule, arrival));
        printf("%8.2f\n", bound(&rules[r].rule, arrival, copied));
    }
}

/* BLOCK elements to bf16 or back, in GB/s of floats, in the caches. */
static double conversion_rate(const struct shm_segment *segment,
                              const struct rule_loops *loops, size_t block,
                              bool back) {
    int64_t best = INT64_MAX;
    for (int pass = 0; pass < 200; pass++) {
        int64_t start = time_now();
        if (back)
            rule_from_bf16(loops, segment->state[0], block, segment->weights);
        else
            rule_to_bf16(loops, segment->weights, block, segment->state[0]);
        int64_t took = time_now() - start;
        best = took < best ? took : best;
    }
    return (double)(block * sizeof(float)) / (double)best;
}

static void print_conversions(const struct shm_segment *segment, size_t block) {
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    printf("\nblock of %zu KiB, GB/s of floats\n", block * sizeof(float) >> 10);
    for (int back = 0; back < 2; back++) {
        printf("%-18s", back ? "from bf16" : "to bf16");
        for (size_t v = 0; v < count; v++)
            printf("%8.2f", conversion_rate(segment, variants[v], block, back));
        printf("\n");
    }
}

int main(void) {
    static const size_t blocks[] = {(64 << 10) / sizeof(float),
                                    (1 << 20) / sizeof(float)};
    struct shm_segment segment;
    shm_segment_open(&segment);
    for (unsigned num_gradients = 1; num_gradients <= MAX_GRADIENTS;
         num_gradients++)
        for (int b = 0; b < 2; b++) {
            struct arrival arrival = {num_gradients, JOB_WIRE_FLOAT32,
                                      blocks[b]};
            print_table(&segment, &arrival);
            arrival.wire = JOB_WIRE_BF16;
            print_table(&segment, &arrival);
        }
    for (int b = 0; b < 2; b++)
        print_conversions(&segment, blocks[b]);
    memory_close(&segment);
    return 0;
}
