/* SPDX-License-Identifier: Apache-2.0 */
/* An op: a computation on tensors in a device's memory, as a value. It owns
 * nothing, can be kept and compared byte by byte, and a device runs it
 * (device.h).
 *
 * The list of kinds says what each computes of its tensors, those that it reads
 * and those that it writes, in the order named, and of the fields of struct op
 * that it names; all others are 0. Tensors are float32, row-major, unless their
 * type is given. One that is written overlaps no other of the op, unless its
 * kind allows it.
 *
 * A new op touches this file (its kind and its function), a file of cpu/ and
 * one of cuda/ (a row in the file's table, and its loop or launch) and the
 * test. */
#ifndef CAPSTAN_OP_H
#define CAPSTAN_OP_H

#include "core/tensor/rule.h"
#include "proto/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum op_kind {
    /* Layers. These and all up to OP_FILL run on STREAM_COMPUTE alone.
     * Reads x[n, in], w[out, in], bias[out]; writes y[n, out] = x w^T + bias,
     * then the activation. */
    OP_LINEAR,

    /* Reads dy[n, out], w[out, in]; writes dx[n, in] = dy w. */
    OP_LINEAR_INPUT_GRADIENT,

    /* Reads dy[n, out], x[n, in]; writes dw[out, in] = dy^T x; added to dw if
     * `add`. */
    OP_LINEAR_WEIGHT_GRADIENT,

    /* Reads dy[n, out]; writes db[out] = its column sums; added to db if
     * `add`. */
    OP_COLUMN_SUMS,

    /* Reads y[n, out]; writes dy[n, out] *= derivative of the activation with
     * output y. */
    OP_ACTIVATION_GRADIENT,

    /* Reads logits z[n, out], uint32 labels[n], each below OUT, and the
     * samples' weights[n] (NULL: 1 each); writes dz[n, out], the gradient of
     * scale * sum (NULL: it is not computed), a double, the sum of weight *
     * `loss` over the samples, and a uint32, the number of samples whose
     * largest logit (the first of equals) is the label's. With OUT 1, except by
     * softmax, labels are the bits of floats, the targets, and the number is of
     * those that sigmoid(z) rounds to. A sample's sigmoid cross-entropy or
     * squared error is the mean over its outputs, as in torch. */
    OP_LOSS,

    /* Rows of fields, the same bits on every device: of each of N samples x is
     * [fields, width]. Samples are x_row, dy_row and y_row floats apart; with
     * `add` results are added to y.
     * Reads x; writes y[fields * width] = x; with x_row 0 x is one row for all
     * samples. */
    OP_ROWS_COPY,

    /* Reads x; writes y[1] = the sum of the products of all pairs of fields
     * (Rendle 2010, Factorization Machines, lemma 3.1). */
    OP_ROWS_PAIRS,

    /* Reads x, dy[1]; writes y[fields, width], the gradient of x. */
    OP_ROWS_PAIRS_GRADIENT,

    /* Reads x; writes y[pairs] = the products of all pairs of fields: 1-0, 2-0,
     * 2-1, 3-0, ... (Naumov et al. 2019). */
    OP_ROWS_DOTS,

    /* Reads x, dy[pairs]; writes y[fields, width], the gradient of x. */
    OP_ROWS_DOTS_GRADIENT,

    /* Reads x, and a uint64, the batch's number; writes y[fields * width] = x
     * with a share of `rate` dropped: dropout.h. x may be y. Without `add`.
     * Philox's key is `key`, its stream `step` * the batch's number + `number`;
     * the position is that of the element in y's rows without gaps. */
    OP_ROWS_DROPOUT,

    /* Vectors; these run on any stream. Writes x[count] = scale. */
    OP_FILL,

    /* Writes x[count] *= scale. */
    OP_SCALE,

    /* Reads uint8 x[count]; writes y[count] = x / 255, the nearest float32. */
    OP_PIXELS,

    /* Reads x[count]; writes a uint32, 1 if x contains an infinity or a NaN,
     * else 0. */
    OP_FIND_OVERFLOW,

    /* Reads x[count]; writes doubles pieces[ceil(count / RULE_PIECE)] =
     * rule_square_sums of scale * x. The same bits on every device. */
    OP_SQUARE_SUMS,

    /* Reads doubles pieces[count]; writes a double, their sum, added from first
     * to last. The same bits on every device. */
    OP_REDUCE_SUM,

    /* Reads doubles squares; writes a float, limit / (norm + 1e-6) if that is
     * below 1, else 1 (also for a norm of NaN). The norm is the root of the sum
     * of squares[0], squares[step] and so on, N of them, added in that order.
     * The same bits on every device. */
    OP_CLIP,

    /* Reads the sum of the gradients and a float, which multiplies
     * constants.scale (NULL: 1); writes weights, RULE_MAX_SLOTS states (NULL:
     * the rule has fewer) and a bool, true if the sum is not finite, else
     * unchanged (NULL: not checked). rule_apply in place, of `form` with
     * `constants`; without tensors it changes nothing. The same bits on
     * every device, except RULE_FTRL_POWER. */
    OP_RULE,
    OP_KINDS
};

/* A device's table of kinds is a list of ROW(a kind, its columns), by which the
 * compiler counts them. */
#define OP_ROW(kind, ...) [kind] = {__VA_ARGS__},
#define OP_ONE(...) +1

/* All from its first to its last element; NULL, of no bytes: none. */
struct op_tensor {
    void *data;
    uint64_t bytes;
};

enum {
    OP_READS = 3,
    OP_WRITES = RULE_MAX_SLOTS + 2,
    OP_TENSORS = OP_READS + OP_WRITES
};

/* Without padding, so that two ops are equal if their bytes are. */
struct op {
    struct op_tensor reads[OP_READS], writes[OP_WRITES];
    double limit, rate;
    uint64_t key, number;
    uint32_t kind; /* enum op_kind */
    uint32_t n, in, out;
    uint32_t fields, width, x_row, dy_row, y_row, step;
    uint32_t activation, loss; /* enum job_activation, enum job_loss */
    uint32_t add;              /* 0 or 1 */
    uint32_t form;             /* enum rule_form */
    float scale;
    struct rule_constants constants;
};

/* Pairs of FIELDS. */
static inline uint64_t op_pairs(uint32_t fields) {
    return (uint64_t)fields * (fields - 1) / 2;
}

#ifndef __cplusplus
_Static_assert(sizeof(struct op) == OP_TENSORS * 16 + 4 * 8 + 15 * 4 +
                                        sizeof(struct rule_constants),
               "no padding");

static inline struct op_tensor op_tensor(const void *data, uint64_t bytes) {
    return (struct op_tensor){(void *)data, data ? bytes : 0};
}

static inline struct op_tensor op_vector(const float *data, uint64_t floats) {
    return op_tensor(data, floats * sizeof *data);
}

static inline struct op_tensor op_matrix(const float *data, uint64_t rows,
                                         uint32_t columns) {
    return op_vector(data, rows * columns);
}

/* The tensors that OP reads, then those that it writes; I < OP_TENSORS. */
static inline const struct op_tensor *op_tensor_at(const struct op *op,
                                                   unsigned i) {
    return i < OP_READS ? &op->reads[i] : &op->writes[i - OP_READS];
}

/* Each function below is an op of the kind of its name, whose tensors and
 * fields are its parameters. */

static inline struct op op_linear(const float *x, const float *w,
                                  const float *bias, float *y, uint32_t n,
                                  uint32_t in, uint32_t out,
                                  enum job_activation activation) {
    return (struct op){.kind = OP_LINEAR,
                       .n = n,
                       .in = in,
                       .out = out,
                       .activation = activation,
                       .reads = {op_matrix(x, n, in), op_matrix(w, out, in),
                                 op_vector(bias, out)},
                       .writes = {op_matrix(y, n, out)}};
}

static inline struct op op_linear_input_gradient(const float *dy,
                                                 const float *w, float *dx,
                                                 uint32_t n, uint32_t in,
                                                 uint32_t out) {
    return (struct op){.kind = OP_LINEAR_INPUT_GRADIENT,
                       .n = n,
                       .in = in,
                       .out = out,
                       .reads = {op_matrix(dy, n, out), op_matrix(w, out, in)},
                       .writes = {op_matrix(dx, n, in)}};
}

static inline struct op op_linear_weight_gradient(const float *dy,
                                                  const float *x, float *dw,
                                                  uint32_t n, uint32_t in,
                                                  uint32_t out, bool add) {
    return (struct op){.kind = OP_LINEAR_WEIGHT_GRADIENT,
                       .n = n,
                       .in = in,
                       .out = out,
                       .add = add,
                       .reads = {op_matrix(dy, n, out), op_matrix(x, n, in)},
                       .writes = {op_matrix(dw, out, in)}};
}

static inline struct op op_column_sums(const float *dy, float *db, uint32_t n,
                                       uint32_t out, bool add) {
    return (struct op){.kind = OP_COLUMN_SUMS,
                       .n = n,
                       .out = out,
                       .add = add,
                       .reads = {op_matrix(dy, n, out)},
                       .writes = {op_vector(db, out)}};
}

static inline struct op op_activation_gradient(enum job_activation activation,
                                               const float *y, float *dy,
                                               uint32_t n, uint32_t out) {
    return (struct op){.kind = OP_ACTIVATION_GRADIENT,
                       .n = n,
                       .out = out,
                       .activation = activation,
                       .reads = {op_matrix(y, n, out)},
                       .writes = {op_matrix(dy, n, out)}};
}

static inline struct op op_loss(enum job_loss loss, const float *z,
                                const uint32_t *labels, const float *weights,
                                float *dz, uint32_t n, uint32_t out,
                                float scale, double *sum, uint32_t *correct) {
    return (struct op){
        .kind = OP_LOSS,
        .n = n,
        .out = out,
        .loss = loss,
        .scale = scale,
        .reads = {op_matrix(z, n, out), op_tensor(labels, n * sizeof *labels),
                  op_vector(weights, n)},
        .writes = {op_matrix(dz, n, out), op_tensor(sum, sizeof *sum),
                   op_tensor(correct, sizeof *correct)}};
}

static inline struct op_tensor op_spaced(const float *data, uint32_t n,
                                         uint32_t row, uint64_t values) {
    return op_vector(data, n ? (uint64_t)(n - 1) * row + values : 0);
}

/* OP with the tensors of OP_ROWS_*, by its kind and fields, which are set. DY
 * is NULL but for the two gradients. */
static inline struct op op_rows(struct op op, const float *x, const float *dy,
                                float *y) {
    uint64_t x_values = (uint64_t)op.fields * op.width, y_values = x_values;
    uint64_t pairs = op_pairs(op.fields);
    if (op.kind == OP_ROWS_PAIRS || op.kind == OP_ROWS_DOTS)
        y_values = op.kind == OP_ROWS_DOTS ? pairs : 1;
    op.reads[0] = op_spaced(x, op.n, op.x_row, x_values);
    op.reads[1] = op_spaced(dy, op.n, op.dy_row,
                            op.kind == OP_ROWS_DOTS_GRADIENT ? pairs : 1);
    op.writes[0] = op_spaced(y, op.n, op.y_row, y_values);
    return op;
}

/* OP_ROWS_DROPOUT by the kind and fields of OP, which are set. */
static inline struct op op_rows_dropout(struct op op, const float *x,
                                        const uint64_t *batch, float *y) {
    op = op_rows(op, x, NULL, y);
    op.reads[1] = op_tensor(batch, sizeof *batch);
    return op;
}

/* OP_ROWS_COPY of WIDTH values of each sample. */
static inline struct op op_rows_copy(const float *x, uint32_t x_row, float *y,
                                     uint32_t y_row, uint32_t n, uint32_t width,
                                     bool add) {
    const struct op copy = {.kind = OP_ROWS_COPY,
                            .n = n,
                            .fields = 1,
                            .width = width,
                            .x_row = x_row,
                            .y_row = y_row,
                            .add = add};
    return op_rows(copy, x, NULL, y);
}

static inline struct op op_fill(float *x, size_t count, float value) {
    return (struct op){
        .kind = OP_FILL, .scale = value, .writes = {op_vector(x, count)}};
}

static inline struct op op_scale(float *x, size_t count, float by) {
    return (struct op){
        .kind = OP_SCALE, .scale = by, .writes = {op_vector(x, count)}};
}

static inline struct op op_pixels(const uint8_t *x, size_t count, float *y) {
    return (struct op){.kind = OP_PIXELS,
                       .reads = {op_tensor(x, count)},
                       .writes = {op_vector(y, count)}};
}

static inline struct op op_find_overflow(const float *x, size_t count,
                                         uint32_t *found) {
    return (struct op){.kind = OP_FIND_OVERFLOW,
                       .reads = {op_vector(x, count)},
                       .writes = {op_tensor(found, sizeof *found)}};
}

static inline struct op op_square_sums(const float *x, size_t count,
                                       float scale, double *pieces) {
    size_t number = (count + RULE_PIECE - 1) / RULE_PIECE;
    return (struct op){.kind = OP_SQUARE_SUMS,
                       .scale = scale,
                       .reads = {op_vector(x, count)},
                       .writes = {op_tensor(pieces, number * sizeof *pieces)}};
}

static inline struct op op_reduce_sum(const double *pieces, size_t count,
                                      double *sum) {
    return (struct op){.kind = OP_REDUCE_SUM,
                       .reads = {op_tensor(pieces, count * sizeof *pieces)},
                       .writes = {op_tensor(sum, sizeof *sum)}};
}

static inline struct op op_clip(const double *squares, uint32_t count,
                                uint32_t step, double limit, float *factor) {
    uint64_t number = count ? (uint64_t)(count - 1) * step + 1 : 0;
    return (struct op){.kind = OP_CLIP,
                       .n = count,
                       .step = step,
                       .limit = limit,
                       .reads = {op_tensor(squares, number * sizeof *squares)},
                       .writes = {op_tensor(factor, sizeof *factor)}};
}

/* As rule_apply of RULE for UPDATE, which has at most one float32 gradient and
 * is in place, times *FACTOR (NULL: 1). */
static inline struct op op_rule(const struct optimizer *rule,
                                const struct rule_update *update,
                                const float *factor) {
    size_t count = update->elements;
    struct op op = {.kind = OP_RULE};
    if (rule_is_noop(rule, update))
        return op;
    op.form = rule_form_of(rule);
    op.constants = rule_form_constants(rule, update);
    op.reads[0] = op_vector(update->gradients[0], count);
    op.reads[1] = op_tensor(factor, sizeof *factor);
    op.writes[0] = op_vector(update->weights_out, count);
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        op.writes[1 + slot] = op_vector(update->state_out[slot], count);
    op.writes[1 + RULE_MAX_SLOTS] =
        op_tensor(update->nonfinite, sizeof *update->nonfinite);
    return op;
}
#endif

#endif
