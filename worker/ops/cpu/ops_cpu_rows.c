/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fields on the CPU: a sample at a time, loops over the values of a row
 * innermost, which the compiler vectorises. */
#include "core/tensor/philox.h"
#include "worker/ops/cpu/ops_cpu_internal.h"
#include "worker/ops/dropout.h"
#include "worker/ops/rows_element.h"

#include <string.h>

enum { PART = 64 }; /* values of a row that are summed at a time */

static uint32_t field_part_of(uint32_t width, uint32_t from) {
    return width - from < PART ? width - from : PART;
}

static void ops_cpu_rows_put(float *restrict y, const float *restrict x,
                             uint32_t count, bool add) {
    if (!add) {
        memcpy(y, x, count * sizeof *y);
        return;
    }
    for (uint32_t j = 0; j < count; j++)
        y[j] += x[j];
}

/* Sums of COUNT values of all fields, and of their squares. */
static void sum_fields(const struct op *c, const float *restrict x,
                       float *restrict sums, float *restrict squares,
                       uint32_t count) {
    memset(sums, 0, count * sizeof *sums);
    memset(squares, 0, count * sizeof *squares);
    for (uint32_t f = 0; f < c->fields; f++, x += c->width)
        for (uint32_t k = 0; k < count; k++) {
            sums[k] += x[k];
            squares[k] += x[k] * x[k];
        }
}

static void ops_cpu_rows_pairs(const struct op *c, const float *x, float *y) {
    float sums[PART], squares[PART], pairs = 0;
    for (uint32_t from = 0; from < c->width; from += PART) {
        uint32_t count = field_part_of(c->width, from);
        sum_fields(c, x + from, sums, squares, count);
        for (uint32_t k = 0; k < count; k++)
            pairs += rows_pairs_of(sums[k], squares[k]);
    }
    *y = c->add ? *y + pairs : pairs;
}

static void pairs_gradient(const struct op *c, const float *x, float dy,
                           float *y) {
    float sums[PART], squares[PART];
    for (uint32_t from = 0; from < c->width; from += PART) {
        uint32_t count = field_part_of(c->width, from);
        sum_fields(c, x + from, sums, squares, count);
        for (uint32_t f = 0; f < c->fields; f++) {
            const float *own = x + (size_t)f * c->width + from;
            for (uint32_t k = 0; k < count; k++)
                squares[k] = dy * (sums[k] - own[k]);
            ops_cpu_rows_put(y + (size_t)f * c->width + from, squares, count,
                             c->add);
        }
    }
}

static void ops_cpu_rows_dots(const struct op *c, const float *x, float *y) {
    for (uint32_t a = 1; a < c->fields; a++)
        for (uint32_t b = 0; b < a; b++, y++) {
            float dot = rows_dot(x + (size_t)a * c->width,
                                 x + (size_t)b * c->width, c->width);
            *y = c->add ? *y + dot : dot;
        }
}

/* As rows_dot_gradient for COUNT values of field A. */
static void ops_cpu_rows_add_others(const struct op *c, const float *restrict x,
                                    const float *restrict dy, uint32_t a,
                                    float *restrict sums, uint32_t count) {
    memset(sums, 0, count * sizeof *sums);
    for (uint32_t b = 0; b < c->fields; b++, x += c->width) {
        if (b == a)
            continue;
        float by = dy[b < a ? rows_pair(a, b) : rows_pair(b, a)];
        for (uint32_t k = 0; k < count; k++)
            sums[k] += by * x[k];
    }
}

static void dots_gradient(const struct op *c, const float *x, const float *dy,
                          float *y) {
    float sums[PART];
    for (uint32_t a = 0; a < c->fields; a++)
        for (uint32_t from = 0; from < c->width; from += PART) {
            uint32_t count = field_part_of(c->width, from);
            ops_cpu_rows_add_others(c, x + from, dy, a, sums, count);
            ops_cpu_rows_put(y + (size_t)a * c->width + from, sums, count,
                             c->add);
        }
}

static void ops_cpu_rows_dropout(const struct op *c, uint32_t i, const float *x,
                                 float *y) {
    uint32_t count = c->fields * c->width, words[4];
    const uint64_t *batch = c->reads[1].data;
    uint64_t stream = c->step * *batch + c->number;
    uint64_t first = (uint64_t)i * count, known = UINT64_MAX;
    uint32_t threshold = dropout_threshold(c->rate);
    float gain = dropout_scale(c->rate);
    for (uint32_t j = 0; j < count; j++) {
        uint64_t position = (first + j) / 4;
        if (position != known)
            philox(c->key, stream, known = position, words);
        y[j] = dropout_element(x[j], words[(first + j) % 4], threshold, gain);
    }
}

static void ops_cpu_rows_sample(const struct op *c, uint32_t i) {
    const float *x = (const float *)c->reads[0].data + (size_t)i * c->x_row;
    const float *dy = c->reads[1].data;
    float *y = (float *)c->writes[0].data + (size_t)i * c->y_row;
    if (dy)
        dy += (size_t)i * c->dy_row;
    switch (c->kind) {
    case OP_ROWS_COPY:
        ops_cpu_rows_put(y, x, c->fields * c->width, c->add);
        return;
    case OP_ROWS_PAIRS:
        ops_cpu_rows_pairs(c, x, y);
        return;
    case OP_ROWS_PAIRS_GRADIENT:
        pairs_gradient(c, x, *dy, y);
        return;
    case OP_ROWS_DOTS:
        ops_cpu_rows_dots(c, x, y);
        return;
    case OP_ROWS_DOTS_GRADIENT:
        dots_gradient(c, x, dy, y);
        return;
    case OP_ROWS_DROPOUT:
        ops_cpu_rows_dropout(c, i, x, y);
        return;
    default:
        return;
    }
}

static void ops_cpu_rows_run(struct device *device, const struct op *op) {
    (void)device;
    for (uint32_t i = 0; i < op->n; i++)
        ops_cpu_rows_sample(op, i);
}

#define ROWS_ROWS(ROW)                                                         \
    ROW(OP_ROWS_COPY, NULL, ops_cpu_rows_run)                                  \
    ROW(OP_ROWS_PAIRS, NULL, ops_cpu_rows_run)                                 \
    ROW(OP_ROWS_PAIRS_GRADIENT, NULL, ops_cpu_rows_run)                        \
    ROW(OP_ROWS_DOTS, NULL, ops_cpu_rows_run)                                  \
    ROW(OP_ROWS_DOTS_GRADIENT, NULL, ops_cpu_rows_run)                         \
    ROW(OP_ROWS_DROPOUT, NULL, ops_cpu_rows_run)
const struct ops_cpu_kind ops_cpu_rows_kinds[OP_KINDS] = {ROWS_ROWS(OP_ROW)};
_Static_assert(ROWS_ROWS(OP_ONE) == OP_FILL - OP_ROWS_COPY,
               "each op of rows has its row");
