/* SPDX-License-Identifier: Apache-2.0 */
/* Update rules: how a gradient changes a block's weights. One fused pass sums
 * the gradients of a round, scales the sum and applies the rule. Every variant
 * of the loops and every split into blocks gives the same bits (Ftrl with a
 * power other than -0.5 only on one machine, as powf is the C library's). A NaN
 * stays a NaN. */
#ifndef CAPSTAN_RULE_H
#define CAPSTAN_RULE_H

#include "core/base/status.h"
#include "core/tensor/optimizer.h"
#include "core/tensor/rule_form.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The optimizer's name in a manifest; "None" for a number of no type, as a
 * message may have one. Static. */
const char *rule_name(enum optimizer_type type);

/* Number of state tensors beside the weights, 0..RULE_MAX_SLOTS. */
unsigned rule_slots(const struct optimizer *rule);

/* Name of state SLOT in checkpoints, as in torch's or TensorFlow's state:
 * "momentum_buffer", "exp_avg", "exp_avg_sq", "linear", ... NULL when RULE has
 * no such slot. */
const char *rule_slot_name(const struct optimizer *rule, unsigned slot);

/* The initial value of all elements of state SLOT. */
float rule_slot_start(const struct optimizer *rule, unsigned slot);

/* One update of one block. `scale` multiplies the sum of the gradients (1/n,
 * times the clipping factor). An in-place update has *_out equal to its
 * source; otherwise the two do not overlap. */
struct rule_update {
    uint64_t step; /* the rule's, from 1: updates of this block that had
                      gradients, this one included */
    double rate;   /* at 0 Ftrl, which divides by it, changes nothing */
    float scale;
    size_t elements;
    unsigned num_gradients;
    const void *const *gradients; /* rank order, any alignment */
    enum job_wire wire; /* encoding of the gradients; their sum is float32 */
    const float *weights;
    float *weights_out;
    const float *state[RULE_MAX_SLOTS];
    float *state_out[RULE_MAX_SLOTS];
    bool *nonfinite; /* rule_apply on a CPU: set to true if a sum is NaN or
                        infinite; NULL: sums are not checked */
};

/* One variant of the loops: "plain", "avx2", "avx512". */
struct rule_loops;

/* The variants that this processor can run, best first; *COUNT of them. */
const struct rule_loops *const *rule_variants(size_t *count);

/* The variant called NAME; the best for NULL or "". STATUS_CONFIG names the
 * variants that this processor can run. */
enum status rule_choose(const struct rule_loops **loops, const char *name,
                        struct failure *why) MUST_CHECK;

/* "plain", "avx2" or "avx512". */
const char *rule_variant_name(const struct rule_loops *loops);

/* True if UPDATE changes nothing by RULE: it has no gradient, or divides by a
 * rate of 0. */
bool rule_is_noop(const struct optimizer *rule,
                  const struct rule_update *update);

/* Applies RULE. If it is a no-op, weights and state are copied unchanged to
 * their *_out. */
void rule_apply(const struct rule_loops *loops, const struct optimizer *rule,
                const struct rule_update *update);

/* The same of a rule in its form, which is no no-op. Reads neither `step`,
 * `rate` nor `scale`. */
void rule_apply_form(const struct rule_loops *loops, enum rule_form form,
                     const struct rule_constants *constants,
                     const struct rule_update *update);

/* The failure of an update that found a sum that is not finite: number STEP of
 * parameter NAME. */
enum status rule_nonfinite(const char *name, uint64_t step,
                           struct failure *why) MUST_CHECK;

/* Moves the weights by the share `rate` towards the scaled sum of the
 * gradients, which are values: at rate 1 they become that mean. */
void rule_average(const struct rule_loops *loops,
                  const struct rule_update *update);

/* COUNT FLOATS of the mean, the scaled sum of the gradients, from FIRST on. */
void rule_mean(const struct rule_loops *loops, const struct rule_update *update,
               size_t first, size_t count, float *floats);

/* The weights become the first of the gradients, which are values of any bits.
 */
void rule_assign(const struct rule_update *update);

/* Sums of squares of UPDATE's scale * (sum of the gradients), in double with
 * fixed lanes and a fixed tree, over pieces of RULE_PIECE floats: parts of the
 * global norm. PIECES receives ceil(elements / RULE_PIECE) doubles, one a
 * piece. Weights and state are not read. */
void rule_square_sums(const struct rule_loops *loops,
                      const struct rule_update *update, double *pieces);

/* The loops of bf16.h; the bf16 values may have any alignment. */
void rule_to_bf16(const struct rule_loops *loops, const float *floats,
                  size_t elements, void *bf16);
void rule_from_bf16(const struct rule_loops *loops, const void *bf16,
                    size_t elements, float *floats);

#endif
