/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_cases.h"
#include "worker/ops/device.h"

static const uint32_t shapes[][3] = {{1, 2, 1},    {7, 2, 8},  {5, 3, 7},
                                     {33, 26, 16}, {2, 5, 67}, {1, 4, 130},
                                     {257, 1, 9}};
enum { SHAPES = sizeof shapes / sizeof *shapes, GAP = 2 };

/* What a call reads. */
struct inputs {
    float *x, *dy;
    uint64_t *batch;
};

static struct op with_tensors(struct op call, const struct inputs *in,
                              float *y) {
    return call.kind == OP_ROWS_DROPOUT
               ? op_rows_dropout(call, in->x, in->batch, y)
               : op_rows(call, in->x, in->dy, y);
}

static struct op call_of(enum op_kind kind, const uint32_t *shape, bool add) {
    struct op call = {.kind = kind,
                      .key = 5,
                      .number = 6,
                      .step = 9,
                      .rate = 0.3,
                      .n = shape[0],
                      .fields = shape[1],
                      .width = shape[2],
                      .add = add && kind != OP_ROWS_DROPOUT};
    uint32_t values = shape[1] * shape[2];
    call.x_row = values + GAP;
    call.dy_row = (uint32_t)op_pairs(call.fields) + GAP;
    call.y_row = values + call.dy_row;
    return call;
}

static void check_call(struct op call) {
    struct device *cpu;
    size_t count = (size_t)call.n * call.y_row;
    const struct inputs in = {cuda_floats((size_t)call.n * call.x_row, 1, 1),
                              cuda_floats((size_t)call.n * call.dy_row, 2, 1),
                              cuda_backend_allocate(sizeof *in.batch)};
    float *before = cuda_floats(count, 3, 1);
    float *expected = cuda_copy(before, count);
    *in.batch = UINT64_C(1) << 40;
    assert_int_equal(ops_cpu_open(&cpu, 1, NULL), STATUS_OK);
    ops_cpu()->run(cpu, STREAM_COMPUTE, with_tensors(call, &in, expected));
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *y = cuda_copy(before, count);
        const struct op op = with_tensors(call, &in, y);
        cuda_set_order(order);
        assert_runs(cuda_kernels_rows(NULL, &op));
        cuda_assert_same_bits(y, expected, count);
        cuda_backend_release(y);
    }
    ops_cpu_close(&cpu);
    cuda_backend_release(in.x);
    cuda_backend_release(in.dy);
    cuda_backend_release(in.batch);
    cuda_backend_release(before);
    cuda_backend_release(expected);
}

TEST(rows_have_the_cpus_bits) {
    for (int kind = OP_ROWS_COPY; kind <= OP_ROWS_DROPOUT; kind++)
        for (int s = 0; s < SHAPES; s++)
            for (int add = 0; add < 2; add++)
                check_call(call_of((enum op_kind)kind, shapes[s], add));
}

TEST(no_samples_are_no_work) {
    for (int kind = OP_ROWS_COPY; kind <= OP_ROWS_DROPOUT; kind++)
        assert_runs(cuda_kernels_rows(
            NULL,
            &(struct op){.kind = (uint32_t)kind, .fields = 3, .width = 2}));
}
