/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the CPU device, for ops_cpu.c and ops_cpu_layer.c. */
#ifndef CAPSTAN_OPS_CPU_INTERNAL_H
#define CAPSTAN_OPS_CPU_INTERNAL_H

#include "worker/ops/cpu/ops_cpu_matmul.h"
#include "worker/ops/device.h"

enum { OPS_CPU_ALIGNMENT = 64 };

/* A buffer that grows to the largest operand rounded into it. */
struct ops_cpu_operand {
    float *floats;
    size_t capacity;
};

struct device {
    int threads;
    enum job_precision precision;
    struct ops_cpu_operand a, b; /* operands of a product */
    /* Owned by the thread that computes layers. */
    struct ops_cpu_matmul *matmul;
    const struct rule_loops *loops;
};

/* The functions of device.h with these names. */
void ops_cpu_linear(struct device *device, const float *x, const float *w,
                    const float *bias, float *y, uint32_t n, uint32_t in,
                    uint32_t out, enum job_activation activation);
void ops_cpu_linear_input_gradient(struct device *device, const float *dy,
                                   const float *w, float *dx, uint32_t n,
                                   uint32_t in, uint32_t out);
void ops_cpu_linear_weight_gradient(struct device *device, const float *dy,
                                    const float *x, float *dw, uint32_t n,
                                    uint32_t in, uint32_t out, bool add);
void ops_cpu_column_sums(struct device *device, const float *dy, float *db,
                         uint32_t n, uint32_t out, bool add);
void ops_cpu_activation_gradient(struct device *device,
                                 enum job_activation activation, const float *y,
                                 float *dy, uint32_t n, uint32_t out);
void ops_cpu_loss(struct device *device, enum job_loss kind, const float *z,
                  const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                  float scale, double *loss, uint32_t *correct);
void ops_cpu_rows(struct device *device, const struct ops_rows *call);

#endif
