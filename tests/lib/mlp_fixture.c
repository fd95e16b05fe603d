/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/mlp_fixture.h"
#include "tests/lib/test.h"

#include <math.h>

static const struct mlp_settings medium = {.layers = {4, {33, 65, 31, 10}},
                                           .activation = JOB_RELU,
                                           .loss = JOB_SOFTMAX_CROSS_ENTROPY};
const struct job_model mlp_medium = {.settings = &medium};

void mlp_fixture_fill(float *values, size_t count, float bound, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = ((float)(seed >> 8) * 0x1p-23f - 1) * bound;
    }
}

float *mlp_fixture_allocate(struct mlp_fixture *fixture, size_t elements) {
    return fixture->ops->allocate(fixture->device, elements * sizeof(float));
}

void mlp_fixture_open(struct mlp_fixture *fixture,
                      const struct job_model *model) {
    struct batch_spec spec;
    fixture->settings = *(const struct mlp_settings *)model->settings;
    fixture->ops = ops_cpu();
    assert_int_equal(ops_cpu_open(&fixture->device, 1, NULL), STATUS_OK);
    assert_int_equal(model_mlp.open(&fixture->mlp, model, NULL, fixture->ops,
                                    fixture->device, MLP_BATCH, NULL),
                     STATUS_OK);
    fixture->num_parameters =
        model_mlp.parameters(model, NULL, fixture->parameters);
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        size_t elements = fixture->parameters[p].elements;
        fixture->weights[p] = mlp_fixture_allocate(fixture, elements);
        fixture->gradients[p] = mlp_fixture_allocate(fixture, elements);
        mlp_fixture_fill(fixture->weights[p], elements,
                         fixture->parameters[p].init_bound, p);
    }
    model_mlp.inputs(model, NULL, &spec);
    fixture->inputs = mlp_fixture_allocate(fixture, MLP_BATCH * MLP_WIDTH);
    mlp_fixture_fill(fixture->inputs, MLP_BATCH * MLP_WIDTH, 1, 99);
    for (uint32_t i = 0; i < MLP_BATCH; i++)
        fixture->labels[i] = i % spec.columns[MLP_LABELS].num_classes;
}

void mlp_fixture_close(struct mlp_fixture *fixture) {
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        fixture->ops->release(fixture->device, fixture->weights[p]);
        fixture->ops->release(fixture->device, fixture->gradients[p]);
    }
    fixture->ops->release(fixture->device, fixture->inputs);
    model_mlp.close(&fixture->mlp);
    assert_null(fixture->mlp);
    ops_cpu_close(&fixture->device);
}

struct batch mlp_fixture_samples(const struct mlp_fixture *fixture,
                                 uint32_t first, uint32_t count) {
    return (struct batch){
        .count = count,
        .columns = {[MLP_INPUTS] = fixture->inputs +
                                   first * fixture->settings.layers.items[0],
                    [MLP_LABELS] = (uint32_t *)fixture->labels + first}};
}

void mlp_eager_need(void *context, uint32_t first, uint32_t count) {
    struct mlp_eager *eager = context;
    for (uint32_t p = first; p < first + count; p++) {
        eager->needed[eager->num_needed++] = p;
        memcpy(eager->fixture->weights[p], eager->weights[p],
               eager->fixture->parameters[p].elements * sizeof(float));
    }
}

void mlp_eager_done(void *context, uint32_t parameter) {
    struct mlp_eager *eager = context;
    struct mlp_fixture *fixture = eager->fixture;
    uint64_t elements = fixture->parameters[parameter].elements;
    eager->done[eager->num_done++] = parameter;
    memcpy(eager->taken[parameter], fixture->gradients[parameter],
           elements * sizeof(float));
    for (uint64_t e = 0; e < elements; e++)
        fixture->weights[parameter][e] = NAN;
}

void mlp_eager_open(struct mlp_eager *eager, struct mlp_fixture *fixture) {
    eager->fixture = fixture;
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        size_t elements = fixture->parameters[p].elements;
        eager->weights[p] = malloc(elements * sizeof(float));
        eager->taken[p] = malloc(elements * sizeof(float));
        memcpy(eager->weights[p], fixture->weights[p],
               elements * sizeof(float));
        for (size_t e = 0; e < elements; e++)
            fixture->weights[p][e] = NAN;
    }
}

void mlp_eager_close(struct mlp_eager *eager) {
    for (uint32_t p = 0; p < eager->fixture->num_parameters; p++) {
        free(eager->weights[p]);
        free(eager->taken[p]);
    }
}
