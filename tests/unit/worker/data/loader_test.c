/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/data/loader.h"

#include "tests/lib/test.h"
#include "worker/data/idx_dataset.h"

enum { SAMPLES = 37, FEATURES = 19, BATCH = 4 };

/* Sample i has label i; its pixels differ from every other's. */
struct fixture {
    uint8_t images[SAMPLES * FEATURES];
    float labels[SAMPLES];
    struct idx_dataset data;
};

static int setup(void **state) {
    static struct fixture fixture;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        fixture.labels[i] = (float)i;
        for (uint32_t j = 0; j < FEATURES; j++)
            fixture.images[i * FEATURES + j] = (uint8_t)(i * 5 + j * 3);
    }
    fixture.data = (struct idx_dataset){.dataset = {.table = &idx_dataset_table,
                                                    .count = SAMPLES,
                                                    .features = FEATURES,
                                                    .labels = fixture.labels,
                                                    .num_classes = SAMPLES},
                                        .type = IDX_FILE_UBYTE,
                                        .images = fixture.images};
    *state = &fixture;
    return 0;
}

static const struct sampler_options options = {.num_samples = SAMPLES,
                                               .rank = 1,
                                               .num_ranks = 2,
                                               .micro_batch = BATCH,
                                               .seed = 3,
                                               .shuffle = true};

static const struct batch_spec spec = {
    .num_columns = 2,
    .columns = {{BATCH_FLOATS, .width = FEATURES},
                {BATCH_CLASSES, .width = 1, .num_classes = SAMPLES}}};

static struct loader *open_loader(struct fixture *fixture, uint64_t first,
                                  uint32_t readers, uint32_t depth) {
    struct loader *loader = NULL;
    struct loader_prefetch ahead = {readers, depth};
    assert_ok(loader_open(&loader, &fixture->data.dataset, &spec, &options,
                          first, ahead, &failure));
    return loader;
}

static const struct batch *next(struct loader *loader) {
    const struct batch *batch;
    assert_int_equal(loader_next(loader, &batch, NULL), STATUS_OK);
    return batch;
}

static void assert_batch(struct fixture *fixture, struct sampler *sampler,
                         const struct batch *batch, uint64_t number) {
    uint32_t indices[BATCH];
    uint32_t count = sampler_batch(sampler, number, indices);
    const float *inputs = batch->columns[0];
    const uint32_t *labels = batch->columns[1];
    assert_int_equal(batch->number, number);
    assert_int_equal(batch->count, count);
    for (uint32_t i = 0; i < count; i++) {
        float pixels[FEATURES];
        float label = idx_dataset_sample(&fixture->data, indices[i], pixels);
        assert_true((float)labels[i] == label);
        assert_memory_equal(inputs + i * FEATURES, pixels, sizeof pixels);
    }
}

GROUP(setup, NULL);

TEST(batches_do_not_depend_on_readers_or_queue_depth) {
    static const uint32_t depths[] = {1, 2, 3, 8, 100};
    static const uint64_t firsts[] = {0, 1, 4, 5, 1234567};
    struct sampler *sampler = NULL;
    assert_int_equal(sampler_open(&sampler, &options, NULL), STATUS_OK);
    for (uint32_t readers = 0; readers < 6; readers++)
        for (uint32_t d = 0; d < 5; d++) {
            uint64_t first = firsts[d];
            struct loader *loader =
                open_loader(fixture, first, readers, depths[d]);
            for (uint64_t b = 0; b < 40; b++)
                assert_batch(fixture, sampler, next(loader), first + b);
            loader_close(&loader);
            assert_null(loader);
        }
    sampler_close(&sampler);
}

/* The batch on view outlives all that the reader can do in the meantime: it
 * reads only ahead of the view. */
TEST(a_batch_stays_until_the_next_call) {
    float inputs[BATCH * FEATURES];
    for (uint32_t readers = 0; readers < 4; readers++) {
        struct loader *loader = open_loader(fixture, 0, readers, 1);
        for (uint64_t b = 0; b < 200; b++) {
            const struct batch *batch = next(loader);
            size_t bytes = batch->count * FEATURES * sizeof(float);
            memcpy(inputs, batch->columns[0], bytes);
            for (int look = 0; look < 50; look++)
                assert_memory_equal(batch->columns[0], inputs, bytes);
            assert_int_equal(batch->number, b);
        }
        loader_close(&loader);
    }
}

TEST(a_loader_can_close_at_any_moment) {
    for (uint32_t taken = 0; taken < 60; taken++) {
        struct loader *loader =
            open_loader(fixture, 0, taken % 4, 1 + taken % 5);
        for (uint32_t b = 0; b < taken; b++)
            (void)next(loader);
        loader_close(&loader);
    }
    struct loader *none = NULL;
    loader_close(&none);
    loader_close(NULL);
}

TEST(a_failed_open_leaves_nothing_open) {
    struct sampler_options bad = options;
    bad.rank = bad.num_ranks;
    struct loader *loader = NULL;
    struct loader_prefetch ahead = {3, 2};
    assert_error(loader_open(&loader, &fixture->data.dataset, &spec, &bad, 0,
                             ahead, &failure),
                 FAILURE_DATA_TOO_SMALL);
    assert_null(loader);
}
