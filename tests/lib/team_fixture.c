/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/team_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO = 3, ACCUMULATION = 2 };

static void fill_data(struct team_fixture *fixture) {
    uint32_t features = fixture->job.model.layers[0], seed = 5;
    uint32_t classes =
        fixture->job.model.layers[fixture->job.model.num_layers - 1];
    uint8_t *images = malloc((size_t)TEAM_FIXTURE_SAMPLES * features);
    uint8_t *labels = malloc(TEAM_FIXTURE_SAMPLES);
    assert_true(images && labels);
    for (size_t i = 0; i < (size_t)TEAM_FIXTURE_SAMPLES * features; i++) {
        seed = seed * 1664525 + 1013904223;
        images[i] = (uint8_t)(seed >> 24);
    }
    for (uint32_t i = 0; i < TEAM_FIXTURE_SAMPLES; i++)
        labels[i] = (uint8_t)(i * 7 % classes);
    fixture->data = (struct dataset){TEAM_FIXTURE_SAMPLES, features, classes,
                                     images, labels};
}

void team_fixture_open(struct team_fixture *fixture, const uint32_t *widths) {
    struct parameter parameters[2 * JOB_MAX_LAYERS];
    struct failure why;
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    *fixture = (struct team_fixture){0};
    fixture->job = (struct job){
        .micro_batch = MICRO,
        .accumulation = ACCUMULATION,
        .threads = 1,
        .data = {.num_workers = 1, .prefetch_factor = 1},
    };
    struct job_model *model = &fixture->job.model;
    while (widths[model->num_layers]) {
        model->layers[model->num_layers] = widths[model->num_layers];
        model->num_layers++;
    }
    fill_data(fixture);
    uint32_t count = mlp_parameters(model, parameters);
    if (layout_build(&fixture->layout, parameters, count, &why) ||
        arena_open(&fixture->arena, fixture->layout, false, &why))
        fail_msg("%s", why.text);
    for (uint32_t b = 0; b < fixture->layout->num_blocks; b++) {
        const struct block *block = &fixture->layout->blocks[b];
        layout_init_block(fixture->layout, b, 1,
                          fixture->arena.weight_of[block->parameter] +
                              block->offset);
    }
}

void team_fixture_close(struct team_fixture *fixture) {
    team_close(&fixture->team);
    arena_close(&fixture->arena);
    layout_free(&fixture->layout);
    free((void *)fixture->data.images);
    free((void *)fixture->data.labels);
}

enum status team_fixture_begin(struct team_fixture *fixture,
                               const struct fake_device_plan *gpus,
                               const struct collective_ops *nccl,
                               uint32_t count, struct failure *why) {
    struct device_wish wish = {.kind = gpus ? JOB_DEVICE_CUDA : JOB_DEVICE_CPU,
                               .threads = 1,
                               .cuda = fake_device_ops(),
                               .timeout = 60};
    if (gpus)
        fake_device_arrange(gpus);
    struct team_search search = {.wish = &wish, .alone = true, .nccl = nccl};
    struct team_model model = {.count = count,
                               .job = &fixture->job,
                               .layout = fixture->layout,
                               .arena = &fixture->arena,
                               .evaluates = true};
    enum status status = team_find(&fixture->team, &search, why);
    return status ? status : team_open(&fixture->team, &model, why);
}

void team_fixture_load(struct team_fixture *fixture, uint32_t rank,
                       uint32_t ranks) {
    struct sampler_options samples = {.num_samples = TEAM_FIXTURE_SAMPLES,
                                      .rank = rank,
                                      .num_ranks = ranks,
                                      .micro_batch = MICRO,
                                      .seed = 2,
                                      .shuffle = true};
    struct failure why;
    if (team_load(&fixture->team, &fixture->data, samples, 0,
                  &fixture->job.data, &why))
        fail_msg("%s", why.text);
}

static bool need(void *context, uint32_t parameter) {
    const struct team_fixture *fixture = context;
    return !fixture->withholds || parameter < fixture->withholds;
}

static void hear(void *context, uint32_t parameter) {
    struct team_fixture *fixture = context;
    fixture->said[fixture->num_said++] = parameter;
}

static bool goes_on(void *context) {
    const struct team_fixture *fixture = context;
    return !fixture->stops;
}

enum status team_fixture_compute(struct team_fixture *fixture,
                                 struct replica_result *result,
                                 struct failure *why) {
    struct replica_step step = {.job = &fixture->job,
                                .factor = 1,
                                .early = true,
                                .context = fixture,
                                .need = need,
                                .done = hear,
                                .goes_on = goes_on};
    fixture->num_said = 0;
    return team_compute(&fixture->team, &step, result, why);
}

enum status team_fixture_gather(struct team_fixture *fixture, bool wanted,
                                struct failure *why) {
    return team_gather(&fixture->team, wanted, hear, fixture, why);
}

void team_fixture_gradients(const struct team_fixture *fixture, float *out) {
    const struct layout *layout = fixture->layout;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        uint64_t elements = layout->parameters[p].elements;
        memcpy(out, fixture->arena.gradient_of[p], elements * sizeof *out);
        out += elements;
    }
}

static void add_result(struct replica_result *sum,
                       const struct replica_result *one) {
    sum->loss += one->loss;
    sum->finite += one->finite;
    sum->samples += one->samples;
    sum->correct += one->correct;
    sum->last_loss += one->last_loss;
    sum->last_samples += one->last_samples;
}

void team_fixture_expect(const uint32_t *widths, uint32_t ranks, uint32_t steps,
                         float *sum, struct replica_result *result) {
    *result = (struct replica_result){0};
    for (uint32_t r = 0; r < ranks; r++) {
        struct team_fixture alone;
        struct replica_result one;
        struct failure why;
        team_fixture_open(&alone, widths);
        if (team_fixture_begin(&alone, NULL, NULL, 1, &why))
            fail_msg("%s", why.text);
        team_fixture_load(&alone, r, ranks);
        for (uint32_t s = 0; s < steps; s++)
            if (team_fixture_compute(&alone, &one, &why) ||
                team_fixture_gather(&alone, true, &why))
                fail_msg("%s", why.text);
        uint64_t count = alone.layout->elements;
        float *own = malloc(count * sizeof *own);
        assert_non_null(own);
        team_fixture_gradients(&alone, own);
        for (uint64_t i = 0; i < count; i++)
            sum[i] = r ? sum[i] + own[i] : own[i];
        free(own);
        add_result(result, &one);
        team_fixture_close(&alone);
    }
}
