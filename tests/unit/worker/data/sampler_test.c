/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_dataset.h"

#include "tests/lib/test.h"

enum { MAX_BATCH = 64 };

static struct sampler *open_sampler(const struct sampler_options *options) {
    struct sampler *sampler = NULL;
    assert_ok(sampler_open(&sampler, options, &failure));
    return sampler;
}

/* Micro batches of an epoch of one rank. */
static uint64_t batches_of(const struct sampler_options *options) {
    uint32_t ranks = options->num_ranks, size = options->micro_batch;
    uint32_t share = (options->num_samples + ranks - 1) / ranks;
    return (options->drop_last ? share : share + size - 1) / size;
}

/* This rank's samples of EPOCH, in order; returns how many. */
static uint32_t read_epoch(const struct sampler_options *options,
                           uint64_t epoch, uint32_t *indices) {
    struct sampler *sampler = open_sampler(options);
    uint64_t batches = batches_of(options);
    uint32_t count = 0;
    for (uint64_t b = 0; b < batches; b++)
        count += sampler_batch(sampler, epoch * batches + b, indices + count);
    sampler_close(&sampler);
    assert_null(sampler);
    return count;
}

/* torch.utils.data.DistributedSampler with shuffle=False on 11 samples and 4
 * replicas: the indices are padded by their beginning to a multiple of 4. */
TEST(file_order_is_distributed_as_in_torch) {
    static const uint32_t expected[4][3] = {
        {0, 4, 8}, {1, 5, 9}, {2, 6, 10}, {3, 7, 0}};
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct sampler_options options = {
            .num_samples = 11, .rank = rank, .num_ranks = 4, .micro_batch = 2};
        uint32_t indices[MAX_BATCH];
        assert_int_equal(read_epoch(&options, 5, indices), 3);
        assert_memory_equal(indices, expected[rank], sizeof expected[rank]);
    }
}

TEST(more_ranks_than_samples_wrap_more_than_once) {
    for (uint32_t rank = 0; rank < 7; rank++) {
        struct sampler_options options = {
            .num_samples = 3, .rank = rank, .num_ranks = 7, .micro_batch = 4};
        uint32_t indices[MAX_BATCH];
        assert_int_equal(read_epoch(&options, 0, indices), 1);
        assert_int_equal(indices[0], rank % 3);
    }
}

static void count_reads(const struct sampler_options *base, uint64_t epoch,
                        uint32_t *reads) {
    uint32_t share =
        (base->num_samples + base->num_ranks - 1) / base->num_ranks;
    uint32_t *indices = calloc(share, sizeof *indices);
    for (uint32_t rank = 0; rank < base->num_ranks; rank++) {
        struct sampler_options options = *base;
        options.rank = rank;
        uint32_t count = read_epoch(&options, epoch, indices);
        assert_int_equal(count, share);
        for (uint32_t i = 0; i < count; i++)
            reads[indices[i]]++;
    }
    free(indices);
}

TEST(all_ranks_together_read_every_sample) {
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint32_t samples = ranks; samples <= 100; samples += 9) {
            struct sampler_options options = {.num_samples = samples,
                                              .num_ranks = ranks,
                                              .micro_batch = 5,
                                              .seed = samples,
                                              .shuffle = true};
            uint32_t reads[128] = {0}, twice = 0;
            count_reads(&options, 3, reads);
            for (uint32_t i = 0; i < samples; i++) {
                assert_in_range(reads[i], 1, 2);
                twice += reads[i] == 2;
            }
            assert_int_equal(twice, (ranks - samples % ranks) % ranks);
        }
    }
}

TEST(the_short_last_batch_is_kept_or_dropped) {
    struct sampler_options options = {
        .num_samples = 23, .num_ranks = 2, .micro_batch = 5};
    uint32_t indices[MAX_BATCH];
    struct sampler *sampler = open_sampler(&options);
    assert_int_equal(batches_of(&options), 3);
    assert_int_equal(sampler_batch(sampler, 0, indices), 5);
    assert_int_equal(sampler_batch(sampler, 2, indices), 2);
    assert_int_equal(sampler_batch(sampler, 5, indices), 2);
    sampler_close(&sampler);
    options.drop_last = true;
    sampler = open_sampler(&options);
    assert_int_equal(batches_of(&options), 2);
    assert_int_equal(sampler_batch(sampler, 1, indices), 5);
    assert_int_equal(sampler_batch(sampler, 2, indices), 5);
    assert_int_equal(indices[0], 0);
    sampler_close(&sampler);
}

TEST(an_empty_dataset_is_refused) {
    struct sampler_options options = {
        .num_samples = 7, .num_ranks = 2, .micro_batch = 5, .drop_last = true};
    struct sampler *sampler = NULL;
    assert_error(sampler_open(&sampler, &options, &failure),
                 FAILURE_DATA_TOO_SMALL);
    assert_contains(failure.text, "share is 4 samples");
    options = (struct sampler_options){.num_ranks = 1, .micro_batch = 5};
    assert_error(sampler_open(&sampler, &options, &failure),
                 FAILURE_DATA_TOO_SMALL);
    options = (struct sampler_options){
        .num_samples = 5, .num_ranks = 2, .rank = 2, .micro_batch = 1};
    assert_error(sampler_open(&sampler, &options, &failure),
                 FAILURE_DATA_TOO_SMALL);
    assert_null(sampler);
}

/* A batch is a function of its number: whoever starts anywhere, or goes back
 * and forth, reads what who read all in order has read. */
TEST(results_do_not_depend_on_the_order_of_calls) {
    struct sampler_options options = {.num_samples = 50,
                                      .rank = 1,
                                      .num_ranks = 3,
                                      .micro_batch = 4,
                                      .seed = 7,
                                      .shuffle = true};
    enum { BATCHES = 25 }; /* five epochs */
    uint32_t all[BATCHES][4] = {0}, again[4];
    struct sampler *sampler = open_sampler(&options);
    for (uint32_t b = 0; b < BATCHES; b++)
        sampler_batch(sampler, b, all[b]);
    for (uint32_t step = 0; step < 4 * BATCHES; step++) {
        uint32_t b = step * 7 % BATCHES;
        uint32_t count = sampler_batch(sampler, b, again);
        assert_memory_equal(again, all[b], count * sizeof *again);
    }
    sampler_close(&sampler);
    for (uint32_t b = 0; b < BATCHES; b++) {
        sampler = open_sampler(&options);
        uint32_t count = sampler_batch(sampler, b, again);
        assert_memory_equal(again, all[b], count * sizeof *again);
        sampler_close(&sampler);
    }
}

TEST(orders_differ_by_seed_and_by_epoch) {
    struct sampler_options options = {.num_samples = 60,
                                      .num_ranks = 1,
                                      .micro_batch = 60,
                                      .seed = 1,
                                      .shuffle = true};
    uint32_t first[MAX_BATCH], other[MAX_BATCH];
    read_epoch(&options, 0, first);
    read_epoch(&options, 1, other);
    assert_memory_not_equal(first, other, 60 * sizeof *first);
    options.seed = 2;
    read_epoch(&options, 0, other);
    assert_memory_not_equal(first, other, 60 * sizeof *first);
    options.seed = 1;
    read_epoch(&options, 0, other);
    assert_memory_equal(first, other, 60 * sizeof *first);
}

/* Over 24000 epochs of 4 samples each of the 24 orders comes 1000 times, give
 * or take: chi-square with 23 degrees of freedom is below 49.7 but for one
 * seed in a thousand. */
TEST(every_permutation_is_equally_likely) {
    struct sampler_options options = {.num_samples = 4,
                                      .num_ranks = 1,
                                      .micro_batch = 4,
                                      .seed = 5,
                                      .shuffle = true};
    uint32_t seen[256] = {0}, order[4];
    struct sampler *sampler = open_sampler(&options);
    for (uint64_t epoch = 0; epoch < 24000; epoch++) {
        sampler_batch(sampler, epoch, order);
        seen[order[0] << 6 | order[1] << 4 | order[2] << 2 | order[3]]++;
    }
    sampler_close(&sampler);
    double chi_square = 0;
    uint32_t orders = 0;
    for (uint32_t i = 0; i < 256; i++) {
        double off = seen[i] - 1000.0;
        orders += seen[i] > 0;
        chi_square += seen[i] ? off * off / 1000 : 0;
    }
    assert_int_equal(orders, 24);
    assert_true(chi_square < 49.7);
}
