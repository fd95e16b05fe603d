/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the CPU device, for ops_cpu*.c. */
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

/* What the CPU does for a kind of op. */
struct ops_cpu_kind {
    /* As `prepare` of device.h; false: no memory. NULL: there is nothing to
     * prepare. */
    bool (*prepare)(struct device *device, const struct op *op);
    void (*run)(struct device *device, const struct op *op);
};

/* By kind; the rows of kinds that another table has are 0. */
extern const struct ops_cpu_kind ops_cpu_layer_kinds[OP_KINDS],
    ops_cpu_rows_kinds[OP_KINDS];

#endif
