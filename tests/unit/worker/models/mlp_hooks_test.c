/* SPDX-License-Identifier: Apache-2.0 */
/* What a pass tells as it goes: which weights it needs next, which gradients
 * are done, where its spans begin and end, and which ops it prepares. */
#include "worker/models/model.h"

#include "tests/lib/mlp_fixture.h"
#include "tests/lib/test.h"

#include <math.h>

TEST(weights_are_unused_once_their_gradient_is_announced) {
    struct mlp_fixture fixture = {0}, plain = {0};
    mlp_fixture_open(&fixture, &mlp_medium);
    mlp_fixture_open(&plain, &mlp_medium);
    struct batch batch = mlp_fixture_samples(&fixture, 0, 40);
    struct model_result result;
    model_mlp.gradient(plain.mlp, &batch, plain.weights, plain.gradients, 1,
                       false, NULL, &result);
    struct mlp_eager eager = {0};
    mlp_eager_open(&eager, &fixture);
    struct model_hooks hooks = {
        .context = &eager, .need = mlp_eager_need, .done = mlp_eager_done};
    model_mlp.gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients,
                       1, false, &hooks, &result);
    assert_int_equal(eager.num_needed, 6);
    assert_int_equal(eager.num_done, 6);
    for (uint32_t p = 0; p < 6; p++) {
        size_t bytes = fixture.parameters[p].elements * sizeof(float);
        assert_int_equal(eager.needed[p], p);
        assert_int_equal(eager.done[p], 5 - p);
        assert_memory_equal(eager.taken[p], plain.gradients[p], bytes);
        assert_memory_equal(fixture.gradients[p], eager.taken[p], bytes);
    }
    model_mlp.evaluate(fixture.mlp, &batch, fixture.weights, &hooks, &result);
    assert_int_equal(eager.num_needed, 12);
    assert_int_equal(eager.num_done, 6);
    assert_true(isfinite(result.loss));
    mlp_eager_close(&eager);
    mlp_fixture_close(&fixture);
    mlp_fixture_close(&plain);
}

/* What a device is told of spans; what it computes has to lie in one. */
static struct { unsigned begun, ended, layers; } spans;

static void record_begin(struct device *device) {
    (void)device;
    assert_int_equal(spans.begun++, spans.ended);
}

static void record_end(struct device *device) {
    (void)device;
    assert_int_equal(++spans.ended, spans.begun);
}

static void record_run(struct device *device, enum device_stream stream,
                       struct op op) {
    assert_int_equal(spans.begun, spans.ended + 1);
    spans.layers += op.kind == OP_LINEAR;
    ops_cpu()->run(device, stream, op);
}

/* The host may wait there, and the layers below are on their way. */
static void need_outside(void *context, uint32_t first, uint32_t count) {
    (void)context;
    assert_int_equal(spans.begun, spans.ended);
    assert_int_equal(spans.layers, first / 2);
    assert_int_equal(count, 2);
}

static void done_inside(void *context, uint32_t parameter) {
    (void)context, (void)parameter;
    assert_int_equal(spans.begun, spans.ended + 1);
}

static bool refuse(void *context, double loss) {
    (void)context, (void)loss;
    return false;
}

TEST(waiting_for_weights_splits_the_captured_graph) {
    static const struct model_hooks all[] = {
        {NULL, need_outside, NULL, done_inside},
        {NULL, NULL, NULL, done_inside},
        {NULL, NULL, refuse, NULL},
    };
    static const unsigned cuts[] = {3, 0, 0};
    struct mlp_fixture fixture = {0};
    struct model_result result;
    mlp_fixture_open(&fixture, &mlp_medium);
    model_mlp.close(&fixture.mlp);
    struct device_ops noting = *ops_cpu();
    noting.capture_begin = record_begin;
    noting.capture_end = record_end;
    noting.run = record_run;
    assert_int_equal(model_mlp.open(&fixture.mlp, &mlp_medium, NULL, &noting,
                                    fixture.device, MLP_BATCH, NULL),
                     STATUS_OK);
    struct batch batch = mlp_fixture_samples(&fixture, 0, 40);
    for (int i = 0; i < 3; i++) {
        memset(&spans, 0, sizeof spans);
        model_mlp.gradient(fixture.mlp, &batch, fixture.weights,
                           fixture.gradients, 1, false, &all[i], &result);
        assert_int_equal(spans.ended, 1 + cuts[i]);
        assert_int_equal(spans.begun, spans.ended);
        memset(&spans, 0, sizeof spans);
        model_mlp.evaluate(fixture.mlp, &batch, fixture.weights, &all[i],
                           &result);
        assert_int_equal(spans.ended, 1 + cuts[i]);
        assert_int_equal(spans.begun, spans.ended);
    }
    mlp_fixture_close(&fixture);
}

/* The ops that a model has prepared, and may run. */
static struct {
    struct op ops[64];
    int count;
} prepared;

static enum status record_prepare(struct device *device, struct op op,
                                  struct failure *why) {
    assert_in_range(prepared.count, 0, 63);
    prepared.ops[prepared.count++] = op;
    return ops_cpu()->prepare(device, op, why);
}

static void run_prepared(struct device *device, enum device_stream stream,
                         struct op op) {
    bool found = op.kind == OP_ACTIVATION_GRADIENT;
    for (int i = 0; i < prepared.count; i++) {
        const struct op *before = &prepared.ops[i];
        found |= before->kind == op.kind && before->n >= op.n &&
                 before->in == op.in && before->out == op.out;
    }
    if (!found)
        fail_msg("op %u of %u, %u and %u", op.kind, op.n, op.in, op.out);
    ops_cpu()->run(device, stream, op);
}

static bool supports_no_loss(const struct device *device, struct op op) {
    (void)device;
    return op.kind != OP_LOSS;
}

TEST(an_open_model_has_prepared_its_ops) {
    struct mlp_fixture fixture = {0};
    struct model_result result;
    struct device_ops noting = *ops_cpu();
    mlp_fixture_open(&fixture, &mlp_medium);
    model_mlp.close(&fixture.mlp);
    noting.prepare = record_prepare;
    noting.run = run_prepared;
    assert_int_equal(model_mlp.open(&fixture.mlp, &mlp_medium, NULL, &noting,
                                    fixture.device, MLP_BATCH, NULL),
                     STATUS_OK);
    struct batch batch = mlp_fixture_samples(&fixture, 0, MLP_BATCH);
    model_mlp.gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients,
                       1, false, NULL, &result);
    model_mlp.evaluate(fixture.mlp, &batch, fixture.weights, NULL, &result);
    mlp_fixture_close(&fixture);
}

TEST(a_device_without_an_op_of_the_model_is_refused) {
    struct mlp_fixture fixture = {0};
    struct failure why = {0};
    struct device_ops lacking = *ops_cpu();
    mlp_fixture_open(&fixture, &mlp_medium);
    model_mlp.close(&fixture.mlp);
    lacking.supports = supports_no_loss;
    assert_fails(model_mlp.open(&fixture.mlp, &mlp_medium, NULL, &lacking,
                                fixture.device, MLP_BATCH, &why),
                 &why, FAILURE_DEVICE_UNUSABLE);
    assert_contains(why.text, "device cpu does not compute op");
    mlp_fixture_close(&fixture);
}
