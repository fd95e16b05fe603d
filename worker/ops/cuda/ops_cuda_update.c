/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's ops on weights, gradients, state and samples outside a pass. */
#include "worker/ops/cuda/cuda_kernels.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

_Static_assert(sizeof(float) == sizeof(uint32_t),
               "a float of 0 is a word of 0");

static int ops_cuda_update_fill(struct device *device,
                                struct ops_cuda_branch *branch,
                                const struct op *op) {
    (void)device;
    return cuda_kernels_fill(branch->stream, op->writes[0].data,
                             op->writes[0].bytes / sizeof(float), op->scale);
}

static int ops_cuda_update_scale(struct device *device,
                                 struct ops_cuda_branch *branch,
                                 const struct op *op) {
    (void)device;
    return cuda_kernels_scale(branch->stream, op->writes[0].data,
                              op->writes[0].bytes / sizeof(float), op->scale,
                              NULL);
}

static int ops_cuda_update_pixels(struct device *device,
                                  struct ops_cuda_branch *branch,
                                  const struct op *op) {
    (void)device;
    return cuda_kernels_pixels(branch->stream, op->reads[0].data,
                               op->writes[0].data, op->reads[0].bytes);
}

static int ops_cuda_update_find_overflow(struct device *device,
                                         struct ops_cuda_branch *branch,
                                         const struct op *op) {
    (void)device;
    int error = cuda_kernels_fill(branch->stream, op->writes[0].data, 1, 0);
    return error
               ? error
               : cuda_kernels_find_overflow(branch->stream, op->reads[0].data,
                                            op->reads[0].bytes / sizeof(float),
                                            op->writes[0].data);
}

static int ops_cuda_update_square_sums(struct device *device,
                                       struct ops_cuda_branch *branch,
                                       const struct op *op) {
    (void)device;
    return cuda_kernels_square_sums(branch->stream, op->reads[0].data,
                                    op->reads[0].bytes / sizeof(float),
                                    op->scale, NULL, op->writes[0].data);
}

static int ops_cuda_update_reduce_sum(struct device *device,
                                      struct ops_cuda_branch *branch,
                                      const struct op *op) {
    (void)device;
    return cuda_kernels_reduce_sum(branch->stream, op->reads[0].data,
                                   op->reads[0].bytes / sizeof(double),
                                   op->writes[0].data);
}

static int ops_cuda_update_clip(struct device *device,
                                struct ops_cuda_branch *branch,
                                const struct op *op) {
    (void)device;
    return cuda_kernels_clip(branch->stream, op->reads[0].data, op->n, op->step,
                             op->limit, op->writes[0].data);
}

static bool supports_rule(const struct op *op) {
    return !op->writes[1 + RULE_MAX_SLOTS].data;
}

static int ops_cuda_update_rule(struct device *device,
                                struct ops_cuda_branch *branch,
                                const struct op *op) {
    struct cuda_kernels_update update = {.form = (enum rule_form)op->form,
                                         .constants = op->constants,
                                         .factor = op->reads[1].data,
                                         .elements = op->writes[0].bytes /
                                                     sizeof(float),
                                         .gradient = op->reads[0].data,
                                         .weights = op->writes[0].data};
    (void)device;
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        update.state[slot] = op->writes[1 + slot].data;
    return cuda_kernels_rule(branch->stream, &update);
}

#define VECTOR_ROWS(ROW)                                                       \
    ROW(OP_FILL, "filling a vector", ops_cuda_update_fill)                     \
    ROW(OP_SCALE, "scaling a vector", ops_cuda_update_scale)                   \
    ROW(OP_PIXELS, "pixels as floats", ops_cuda_update_pixels)                 \
    ROW(OP_FIND_OVERFLOW, "the overflow check", ops_cuda_update_find_overflow) \
    ROW(OP_SQUARE_SUMS, "sums of squares", ops_cuda_update_square_sums)        \
    ROW(OP_REDUCE_SUM, "adding up", ops_cuda_update_reduce_sum)                \
    ROW(OP_CLIP, "clipping", ops_cuda_update_clip)                             \
    ROW(OP_RULE, "an update", ops_cuda_update_rule, .supports = supports_rule)
const struct ops_cuda_kind ops_cuda_update_kinds[OPS_CUDA_OPS] = {
    VECTOR_ROWS(OP_ROW)};
_Static_assert(VECTOR_ROWS(OP_ONE) == OP_KINDS - OP_FILL,
               "each op of vectors has its row");
