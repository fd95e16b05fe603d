/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/local_group_fixture.h"
#include "tests/lib/test.h"

enum { MICRO = 3, ACCUMULATION = 2 };

static void fill_data(struct local_group_fixture *fixture) {
    struct batch_spec spec;
    uint32_t seed = 5;
    model_mlp.inputs(&fixture->job.model, NULL, &spec);
    uint32_t features = spec.columns[MLP_INPUTS].width;
    uint32_t classes = spec.columns[MLP_LABELS].num_classes;
    uint8_t *images = malloc((size_t)LOCAL_GROUP_FIXTURE_SAMPLES * features);
    float *labels = malloc(LOCAL_GROUP_FIXTURE_SAMPLES * sizeof *labels);
    assert_true(images && labels);
    for (size_t i = 0; i < (size_t)LOCAL_GROUP_FIXTURE_SAMPLES * features;
         i++) {
        seed = seed * 1664525 + 1013904223;
        images[i] = (uint8_t)(seed >> 24);
    }
    for (uint32_t i = 0; i < LOCAL_GROUP_FIXTURE_SAMPLES; i++)
        labels[i] = (float)(i * 7 % classes);
    fixture->data =
        (struct idx_dataset){.dataset = {.table = &idx_dataset_table,
                                         .count = LOCAL_GROUP_FIXTURE_SAMPLES,
                                         .features = features,
                                         .labels = labels,
                                         .num_classes = classes},
                             .type = IDX_FILE_UBYTE,
                             .images = images};
}

void local_group_fixture_open(struct local_group_fixture *fixture,
                              const uint32_t *widths) {
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    *fixture = (struct local_group_fixture){0};
    fixture->job = (struct job){
        .micro_batch = MICRO,
        .accumulation = ACCUMULATION,
        .threads = 1,
        .data = {.num_workers = 1, .prefetch_factor = 1},
    };
    struct job_model *model = &fixture->job.model;
    struct job_widths *layers = &fixture->model.layers;
    model->settings = &fixture->model;
    for (; widths[layers->count]; layers->count++)
        layers->items[layers->count] = widths[layers->count];
    fill_data(fixture);
    if (model_layout(&fixture->layout, model, NULL, &failure) ||
        arena_open(&fixture->arena, fixture->layout, false, &failure))
        fail_msg("%s", failure.text);
    for (uint32_t b = 0; b < fixture->layout->num_blocks; b++) {
        const struct block *block = &fixture->layout->blocks[b];
        layout_init_block(fixture->layout, b, 1,
                          fixture->arena.weight_of[block->parameter] +
                              block->offset);
    }
}

void local_group_fixture_close(struct local_group_fixture *fixture) {
    local_group_close(&fixture->local_group);
    arena_close(&fixture->arena);
    layout_free(&fixture->layout);
    free((void *)fixture->data.images);
    free(fixture->data.dataset.labels);
}

enum status local_group_fixture_begin(struct local_group_fixture *fixture,
                                      const struct fake_device_settings *gpus,
                                      const struct collective_ops *nccl,
                                      uint32_t count, struct failure *why) {
    struct local_device_request request = {.kind = gpus ? JOB_DEVICE_CUDA
                                                        : JOB_DEVICE_CPU,
                                           .threads = 1,
                                           .cuda = fake_device_ops(),
                                           .timeout = 60};
    if (gpus)
        fake_device_configure(gpus);
    struct local_group_search search = {
        .request = &request, .alone = true, .nccl = nccl};
    struct local_group_model model = {.count = count,
                                      .job = &fixture->job,
                                      .layout = fixture->layout,
                                      .arena = &fixture->arena,
                                      .evaluates = true};
    enum status status = local_group_find(&fixture->local_group, &search, why);
    return status ? status
                  : local_group_open(&fixture->local_group, &model, why);
}

void local_group_fixture_load(struct local_group_fixture *fixture,
                              uint32_t rank, uint32_t ranks) {
    struct sampler_options samples = {.num_samples =
                                          LOCAL_GROUP_FIXTURE_SAMPLES,
                                      .rank = rank,
                                      .num_ranks = ranks,
                                      .micro_batch = MICRO,
                                      .seed = 2,
                                      .shuffle = true};
    assert_ok(local_group_load(&fixture->local_group, &fixture->data.dataset,
                               samples, 0, &fixture->job.data, &failure));
}

static bool need(void *context, uint32_t parameter) {
    const struct local_group_fixture *fixture = context;
    return !fixture->missing_from || parameter < fixture->missing_from;
}

static void hear(void *context, uint32_t parameter) {
    struct local_group_fixture *fixture = context;
    fixture->said[fixture->num_announced++] = parameter;
}

static bool should_continue(void *context) {
    const struct local_group_fixture *fixture = context;
    return !fixture->aborted;
}

enum status local_group_fixture_compute(struct local_group_fixture *fixture,
                                        struct device_replica_result *result,
                                        struct failure *why) {
    struct device_replica_step step = {.job = &fixture->job,
                                       .factor = 1,
                                       .early = true,
                                       .context = fixture,
                                       .need = need,
                                       .done = hear,
                                       .should_continue = should_continue};
    fixture->num_announced = 0;
    return local_group_compute(&fixture->local_group, &step, result, why);
}

enum status local_group_fixture_gather(struct local_group_fixture *fixture,
                                       bool wanted, struct failure *why) {
    return local_group_gather(&fixture->local_group, wanted, hear, fixture,
                              why);
}

void local_group_fixture_gradients(const struct local_group_fixture *fixture,
                                   float *out) {
    const struct layout *layout = fixture->layout;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        uint64_t elements = layout->parameters[p].elements;
        memcpy(out, fixture->arena.gradient_of[p], elements * sizeof *out);
        out += elements;
    }
}

static void add_result(struct device_replica_result *sum,
                       const struct device_replica_result *one) {
    sum->loss += one->loss;
    sum->finite_loss_sum += one->finite_loss_sum;
    sum->samples += one->samples;
    sum->correct += one->correct;
    sum->last_loss += one->last_loss;
    sum->last_samples += one->last_samples;
}

void local_group_fixture_expect(const uint32_t *widths, uint32_t ranks,
                                uint32_t steps, float *sum,
                                struct device_replica_result *result) {
    *result = (struct device_replica_result){0};
    for (uint32_t r = 0; r < ranks; r++) {
        struct local_group_fixture alone;
        struct device_replica_result one;
        local_group_fixture_open(&alone, widths);
        assert_ok(local_group_fixture_begin(&alone, NULL, NULL, 1, &failure));
        local_group_fixture_load(&alone, r, ranks);
        for (uint32_t s = 0; s < steps; s++)
            if (local_group_fixture_compute(&alone, &one, &failure) ||
                local_group_fixture_gather(&alone, true, &failure))
                fail_msg("%s", failure.text);
        uint64_t count = alone.layout->elements;
        float *own = malloc(count * sizeof *own);
        assert_non_null(own);
        local_group_fixture_gradients(&alone, own);
        for (uint64_t i = 0; i < count; i++)
            sum[i] = r ? sum[i] + own[i] : own[i];
        free(own);
        add_result(result, &one);
        local_group_fixture_close(&alone);
    }
}
