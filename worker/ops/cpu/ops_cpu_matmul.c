/* SPDX-License-Identifier: Apache-2.0 */
/* A primitive is prepared once per shape. A model has few shapes: its layers,
 * each with the rows of a batch, of an epoch's last batch and of evaluation.
 * oneDNN's own cache keeps the code of a shape, not its memory objects. */
#include "worker/ops/cpu/ops_cpu_matmul.h"

#include <dnnl.h>
#include <stddef.h>
#include <stdlib.h>

struct plan {
    uint32_t n, in, out;
    dnnl_primitive_t product;
    dnnl_memory_t x, w, y; /* bound to the operands of each call */
};

struct ops_cpu_matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct plan *plans;
    size_t count;
};

/* A float32 matrix; element (r, c) is r * strides[0] + c * strides[1] floats
 * from the first. */
struct matrix {
    dnnl_dims_t extents, strides;
};

/* x, w^T and y, as in oneDNN's product. */
static void ops_cpu_matmul_describe(struct matrix of[3], int64_t n, int64_t in,
                                    int64_t out) {
    of[0] = (struct matrix){{n, in}, {in, 1}};
    of[1] = (struct matrix){{in, out}, {1, in}};
    of[2] = (struct matrix){{n, out}, {out, 1}};
}

/* oneDNN 3 and oneDNN 2 do the same by different calls. */
#if DNNL_VERSION_MAJOR >= 3
static bool choose(dnnl_primitive_desc_t *chosen, dnnl_engine_t engine,
                   const struct matrix of[3]) {
    dnnl_memory_desc_t d[3] = {NULL, NULL, NULL};
    bool can = true;
    for (int i = 0; can && i < 3; i++)
        can = !dnnl_memory_desc_create_with_strides(&d[i], 2, of[i].extents,
                                                    dnnl_f32, of[i].strides);
    can = can && !dnnl_matmul_primitive_desc_create(chosen, engine, d[0], d[1],
                                                    NULL, d[2], NULL);
    for (int i = 0; i < 3; i++)
        dnnl_memory_desc_destroy(d[i]);
    return can;
}
#else
static bool choose(dnnl_primitive_desc_t *chosen, dnnl_engine_t engine,
                   const struct matrix of[3]) {
    dnnl_memory_desc_t d[3];
    dnnl_matmul_desc_t product;
    bool can = true;
    for (int i = 0; can && i < 3; i++)
        can = !dnnl_memory_desc_init_by_strides(&d[i], 2, of[i].extents,
                                                dnnl_f32, of[i].strides);
    return can && !dnnl_matmul_desc_init(&product, &d[0], &d[1], NULL, &d[2]) &&
           !dnnl_primitive_desc_create(chosen, &product, NULL, engine, NULL);
}
#endif

static void ops_cpu_matmul_free_plan(struct plan *plan) {
    dnnl_primitive_destroy(plan->product);
    dnnl_memory_destroy(plan->x);
    dnnl_memory_destroy(plan->w);
    dnnl_memory_destroy(plan->y);
}

static bool ops_cpu_matmul_view(dnnl_memory_t *memory, dnnl_engine_t engine,
                                dnnl_primitive_desc_t chosen,
                                dnnl_query_t which) {
    return !dnnl_memory_create(memory,
                               dnnl_primitive_desc_query_md(chosen, which, 0),
                               engine, DNNL_MEMORY_NONE);
}

static bool ops_cpu_matmul_build(struct plan *plan, dnnl_engine_t engine) {
    struct matrix of[3];
    dnnl_primitive_desc_t chosen;
    ops_cpu_matmul_describe(of, plan->n, plan->in, plan->out);
    if (!choose(&chosen, engine, of))
        return false;
    bool can =
        !dnnl_primitive_create(&plan->product, chosen) &&
        ops_cpu_matmul_view(&plan->x, engine, chosen, dnnl_query_src_md) &&
        ops_cpu_matmul_view(&plan->w, engine, chosen, dnnl_query_weights_md) &&
        ops_cpu_matmul_view(&plan->y, engine, chosen, dnnl_query_dst_md);
    dnnl_primitive_desc_destroy(chosen);
    if (!can)
        ops_cpu_matmul_free_plan(plan);
    return can;
}

static struct plan *ops_cpu_matmul_add(struct ops_cpu_matmul *matmul,
                                       struct plan plan) {
    struct plan *plans =
        realloc(matmul->plans, (matmul->count + 1) * sizeof *plans);
    if (!plans)
        return NULL;
    matmul->plans = plans;
    if (!ops_cpu_matmul_build(&plan, matmul->engine))
        return NULL;
    plans[matmul->count] = plan;
    return &plans[matmul->count++];
}

static struct plan *ops_cpu_matmul_find(struct ops_cpu_matmul *matmul,
                                        uint32_t n, uint32_t in, uint32_t out) {
    for (size_t i = 0; i < matmul->count; i++) {
        struct plan *plan = &matmul->plans[i];
        if (plan->n == n && plan->in == in && plan->out == out)
            return plan;
    }
    return ops_cpu_matmul_add(matmul,
                              (struct plan){.n = n, .in = in, .out = out});
}

static struct ops_cpu_matmul *open_plan(void) {
    struct ops_cpu_matmul *matmul = calloc(1, sizeof *matmul);
    if (matmul && !dnnl_engine_create(&matmul->engine, dnnl_cpu, 0) &&
        !dnnl_stream_create(&matmul->stream, matmul->engine,
                            dnnl_stream_default_flags))
        return matmul;
    ops_cpu_matmul_close(&matmul);
    return NULL;
}

static struct plan *plan_of(struct ops_cpu_matmul **matmul, uint32_t n,
                            uint32_t in, uint32_t out) {
    if (!*matmul)
        *matmul = open_plan();
    return *matmul ? ops_cpu_matmul_find(*matmul, n, in, out) : NULL;
}

bool ops_cpu_matmul_prepare(struct ops_cpu_matmul **matmul, uint32_t n,
                            uint32_t in, uint32_t out) {
    return plan_of(matmul, n, in, out);
}

/* oneDNN only reads x and w. */
static bool bind_memory(dnnl_memory_t memory, const float *floats) {
    return !dnnl_memory_set_data_handle(memory, (void *)floats);
}

bool ops_cpu_matmul(struct ops_cpu_matmul **matmul, const float *x,
                    const float *w, float *y, uint32_t n, uint32_t in,
                    uint32_t out) {
    struct plan *plan = plan_of(matmul, n, in, out);
    if (!plan || !bind_memory(plan->x, x) || !bind_memory(plan->w, w) ||
        !bind_memory(plan->y, y))
        return false;
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, plan->x},
                                         {DNNL_ARG_WEIGHTS, plan->w},
                                         {DNNL_ARG_DST, plan->y}};
    return !dnnl_primitive_execute(plan->product, (*matmul)->stream, 3,
                                   arguments) &&
           !dnnl_stream_wait((*matmul)->stream);
}

void ops_cpu_matmul_close(struct ops_cpu_matmul **where) {
    struct ops_cpu_matmul *matmul = *where;
    *where = NULL;
    if (!matmul)
        return;
    for (size_t i = 0; i < matmul->count; i++)
        ops_cpu_matmul_free_plan(&matmul->plans[i]);
    dnnl_stream_destroy(matmul->stream);
    dnnl_engine_destroy(matmul->engine);
    free(matmul->plans);
    free(matmul);
}
