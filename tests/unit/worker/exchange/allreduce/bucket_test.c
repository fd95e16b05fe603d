/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/bucket.h"

#include "core/tensor/philox.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"
#include "worker/train/arena.h"

struct cut {
    struct layout *layout;
    struct arena arena;
    struct bucket *buckets;
    uint32_t count;
};

static void open_some(struct cut *cut, const uint32_t *elements, uint32_t count,
                      uint64_t most, bool apart) {
    struct parameter parameters[16] = {0};
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = elements[p];
    }
    if (layout_build(&cut->layout, parameters, count, &failure) ||
        arena_open(&cut->arena, cut->layout, apart, &failure) ||
        bucket_split(&cut->buckets, &cut->count, cut->layout,
                     cut->arena.offsets, most, &failure))
        fail_msg("%s", failure.text);
}

static void open_cut(struct cut *cut, const uint32_t *elements, uint32_t count,
                     uint64_t most) {
    open_some(cut, elements, count, most, false);
}

static void close_cut(struct cut *cut) {
    free(cut->buckets);
    arena_close(&cut->arena);
    layout_free(&cut->layout);
}

static void expect(const struct cut *cut, const struct bucket *expected,
                   uint32_t count) {
    assert_int_equal(cut->count, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(cut->buckets[i].first, expected[i].first);
        assert_int_equal(cut->buckets[i].end, expected[i].end);
        assert_int_equal(cut->buckets[i].started, expected[i].started);
        assert_int_equal(cut->buckets[i].completed, expected[i].completed);
    }
}

/* 16 floats of room, then 32, 16 and 48. */
TEST(the_first_bucket_ends_at_a_parameter_and_the_rest_are_even) {
    static const uint32_t elements[] = {48, 16, 32};
    static const struct bucket all[] = {{0, 112, 3, 3}},
                               two[] = {{0, 64, 2, 2}, {64, 112, 3, 3}},
                               three[] = {{0, 48, 1, 1},
                                          {48, 80, 3, 2},
                                          {80, 112, 3, 3}};
    static const struct {
        uint64_t most;
        const struct bucket *buckets;
        uint32_t count;
    } cases[] = {{UINT64_MAX, all, 1}, {96, all, 1},   {95, two, 2},
                 {48, two, 2},         {47, three, 3}, {32, three, 3}};
    struct cut cut;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_cut(&cut, elements, 3, cases[i].most);
        expect(&cut, cases[i].buckets, cases[i].count);
        close_cut(&cut);
    }
}

TEST(a_parameter_may_span_buckets) {
    static const uint32_t elements[] = {16, 100, 12};
    static const struct bucket expected[] = {
        {0, 28, 1, 1}, {28, 48, 2, 1}, {48, 96, 2, 1}, {96, 144, 3, 3}};
    struct cut cut;
    open_cut(&cut, elements, 3, 48);
    assert_int_equal(cut.arena.offsets[2], 16);
    expect(&cut, expected, 4);
    close_cut(&cut);
}

/* As it leaves first, and is summed for all, even where others share. */
TEST(the_first_bucket_is_small) {
    static const uint32_t usual[] = {401408, 512, 262144, 512, 5120, 10},
                          large[] = {1 << 20}, small[] = {40000, 1000, 10};
    struct cut cut;
    open_cut(&cut, usual, 6, 1 << 18);
    assert_int_equal(cut.count, 4);
    assert_int_equal(cut.buckets[0].completed, 3);
    for (uint32_t i = 1; i < 4; i++)
        assert_in_range(cut.buckets[i].end - cut.buckets[i].first, 221300,
                        221400);
    close_cut(&cut);
    open_cut(&cut, large, 1, 1 << 18);
    assert_int_equal(cut.count, 5);
    assert_int_equal(cut.buckets[0].end, 16 + (1 << 14));
    close_cut(&cut);
    open_cut(&cut, small, 3, 1 << 18);
    assert_int_equal(cut.count, 1);
    close_cut(&cut);
}

static bool is_end(const struct cut *cut, uint64_t at) {
    for (uint32_t p = 0; p < cut->layout->num_parameters; p++)
        if (at == cut->arena.offsets[p] + cut->layout->parameters[p].elements)
            return true;
    return false;
}

/* Parameters begun, and ended, before float AT of the arena. */
static void count_before(const struct cut *cut, uint64_t at, uint32_t *started,
                         uint32_t *completed) {
    *started = *completed = 0;
    for (uint32_t p = 0; p < cut->layout->num_parameters; p++) {
        uint64_t first = cut->arena.offsets[p];
        *started += first < at;
        *completed += first + cut->layout->parameters[p].elements <= at;
    }
}

static void check(const struct cut *cut, uint64_t most) {
    uint64_t at = 0,
             begin = cut->arena.offsets[cut->layout->num_parameters - 1];
    for (uint32_t i = 0; i < cut->count; i++) {
        const struct bucket *bucket = &cut->buckets[i];
        uint32_t started, completed;
        uint64_t first = i ? bucket->first : begin;
        count_before(cut, bucket->end, &started, &completed);
        assert_int_equal(bucket->first, at);
        assert_true(bucket->end > first);
        assert_true(bucket->end - first <= (most > 16 ? most : 16));
        assert_true(is_end(cut, bucket->end) || bucket->end % 16 == 0);
        assert_int_equal(bucket->started, started);
        assert_int_equal(bucket->completed, completed);
        assert_int_equal(bucket_at(cut->buckets, cut->count, first), i);
        assert_int_equal(bucket_at(cut->buckets, cut->count, bucket->end - 1),
                         i);
        at = bucket->end;
    }
    assert_int_equal(at, cut->arena.offsets[0] +
                             cut->layout->parameters[0].elements);
}

TEST(buckets_tile_any_model) {
    struct philox_sequence random;
    seed_open(&random);
    for (unsigned turn = 0; turn < 2000; turn++) {
        uint32_t elements[16], count = 1 + philox_next(&random) % 16;
        uint64_t most = 1 + philox_next(&random) % 300;
        struct cut cut;
        for (uint32_t p = 0; p < count; p++)
            elements[p] = 1 + philox_next(&random) %
                                  (philox_next(&random) % 2 ? 40 : 1000);
        bool apart = philox_next(&random) % 2;
        open_some(&cut, elements, count, most, apart);
        check(&cut, most);
        for (uint32_t i = 0; apart && i < cut.count; i++)
            assert_int_equal(cut.buckets[i].first % 16, 0);
        close_cut(&cut);
    }
}
