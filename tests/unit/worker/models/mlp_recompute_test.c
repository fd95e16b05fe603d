/* SPDX-License-Identifier: Apache-2.0 */
/* Models that keep few activations and compute the others anew: the same bits
 * in less memory. */
#include "worker/models/model.h"

#include "tests/lib/mlp_fixture.h"
#include "tests/lib/test.h"

/* What the models below have of their device, in bytes. */
static size_t had;

static void *counted_allocate(struct device *device, size_t bytes) {
    had += bytes;
    return ops_cpu()->allocate(device, bytes);
}

/* As mlp_fixture_open, with *BYTES: what the model itself takes for MLP_BATCH.
 */
static void open_counted(struct mlp_fixture *fixture,
                         const struct job_model *model,
                         struct device_ops *counted, size_t *bytes) {
    mlp_fixture_open(fixture, model);
    model_mlp.close(&fixture->mlp);
    *counted = *ops_cpu();
    counted->allocate = counted_allocate;
    had = 0;
    assert_int_equal(model_mlp.open(&fixture->mlp, model, NULL, counted,
                                    fixture->device, MLP_BATCH, NULL),
                     STATUS_OK);
    *bytes = had;
}

/* Two micro batches, the second added to the first, weights taken away as soon
 * as they may be. */
static void pass_twice(struct mlp_fixture *fixture,
                       struct model_result *result) {
    struct batch first = mlp_fixture_samples(fixture, 0, 33);
    struct batch second = mlp_fixture_samples(fixture, 33, 7);
    model_mlp.gradient(fixture->mlp, &first, fixture->weights,
                       fixture->gradients, 0.5f, false, NULL, result);
    struct mlp_eager eager = {0};
    mlp_eager_open(&eager, fixture);
    struct model_hooks hooks = {
        .context = &eager, .need = mlp_eager_need, .done = mlp_eager_done};
    model_mlp.gradient(fixture->mlp, &second, fixture->weights,
                       fixture->gradients, 0.5f, true, &hooks, result);
    assert_int_equal(eager.num_needed, fixture->num_parameters);
    assert_int_equal(eager.num_done, fixture->num_parameters);
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        assert_int_equal(eager.needed[p], p);
        assert_int_equal(eager.done[p], fixture->num_parameters - 1 - p);
        memcpy(fixture->weights[p], eager.weights[p],
               fixture->parameters[p].elements * sizeof(float));
    }
    mlp_eager_close(&eager);
}

static void expect_same_bits(struct mlp_fixture *all, struct mlp_fixture *few) {
    struct model_result one, two;
    pass_twice(all, &one);
    pass_twice(few, &two);
    assert_memory_equal(&one.loss, &two.loss, sizeof one.loss);
    for (uint32_t p = 0; p < all->num_parameters; p++)
        assert_memory_equal(all->gradients[p], few->gradients[p],
                            all->parameters[p].elements * sizeof(float));
    struct batch batch = mlp_fixture_samples(all, 3, 64 - 3);
    model_mlp.evaluate(all->mlp, &batch, all->weights, NULL, &one);
    model_mlp.evaluate(few->mlp, &batch, few->weights, NULL, &two);
    assert_memory_equal(&one.loss, &two.loss, sizeof one.loss);
    assert_int_equal(one.correct, two.correct);
}

static const struct mlp_settings deep[] = {
    {.layers = {9, {20, 65, 65, 65, 65, 65, 65, 65, 10}}},
    {.layers = {9, {7, 1, 64, 255, 3, 130, 17, 2, 5}}},
    {.layers = {4, {33, 65, 31, 10}}},
    {.layers = {3, {9, 1025, 2}}},
    {.layers = {2, {4, 3}}},
};

TEST(recomputing_activations_gives_the_same_bits) {
    for (size_t m = 0; m < sizeof deep / sizeof *deep; m++)
        for (int activation = JOB_RELU; activation <= JOB_IDENTITY;
             activation++)
            for (uint32_t kept = 1; kept < deep[m].layers.count; kept++) {
                struct mlp_settings settings = deep[m];
                struct job_model model = {.settings = &settings};
                settings.activation = (enum job_activation)activation;
                struct mlp_fixture all = {0}, few = {0};
                mlp_fixture_open(&all, &model);
                model.kept = kept;
                mlp_fixture_open(&few, &model);
                expect_same_bits(&all, &few);
                mlp_fixture_close(&all);
                mlp_fixture_close(&few);
            }
}

/* Seven hidden layers of 65, of which KEPT stay and the longest stretch of
 * those between them. */
TEST(fewer_kept_activations_use_less_memory) {
    static const uint32_t activations[] = {7,     1 + 3, 2 + 2, 3 + 1,
                                           4 + 1, 5 + 1, 7};
    size_t all = 0;
    for (uint32_t kept = 0; kept < 7; kept++) {
        struct job_model model = {.settings = &deep[0]};
        struct mlp_fixture fixture = {0};
        struct device_ops counted;
        size_t bytes;
        model.kept = kept;
        open_counted(&fixture, &model, &counted, &bytes);
        all = kept ? all : bytes;
        assert_int_equal(all - bytes, MLP_BATCH * sizeof(float) * 65 *
                                          (7 - activations[kept]));
        mlp_fixture_close(&fixture);
    }
}
