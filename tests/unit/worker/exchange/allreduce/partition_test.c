/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/partition.h"

#include "tests/lib/test.h"

enum { BEGIN = 22, END = 1000 };

static const struct bucket buckets[] = {
    {0, 40, 1, 1}, {40, 47, 2, 2}, {47, 900, 3, 2}, {900, END, 3, 3}};
enum { BUCKETS = sizeof buckets / sizeof *buckets };

static const struct optimizer adagrad = {.type = OPTIMIZER_ADAGRAD,
                                         .initial_accumulator_value = 0.5};

static const struct optimizer sgd = {.type = OPTIMIZER_SGD};

static struct device *processor;

static void open_by(const struct optimizer *rule, struct partition *partition,
                    uint32_t rank, uint32_t size, bool shared) {
    struct partition_settings settings = {
        ops_cpu(), processor,        buckets, BUCKETS, BEGIN,
        rule,      rule_slots(rule), rank,    size,    shared};
    assert_ok(partition_open(partition, &settings, &failure));
}

static void open_one(struct partition *partition, uint32_t rank, uint32_t size,
                     bool shared) {
    open_by(&adagrad, partition, rank, size, shared);
}

TEST(each_element_belongs_to_one_rank) {
    for (uint32_t size = 1; size <= 7; size++) {
        unsigned owners[END] = {0};
        for (uint32_t rank = 0; rank < size; rank++) {
            struct partition one;
            open_one(&one, rank, size, true);
            for (uint32_t i = 0; i < BUCKETS; i++)
                for (uint64_t at = one.owned[i].first; at < one.owned[i].end;
                     at++)
                    owners[at]++;
            assert_true(one.elements <= (END - BEGIN) / size + 16 * BUCKETS);
            partition_close(&one);
        }
        for (unsigned at = 0; at < END; at++)
            assert_int_equal(owners[at], at >= BEGIN);
    }
}

TEST(unshared_state_is_in_arena_order) {
    struct partition one;
    open_one(&one, 2, 3, false);
    assert_int_equal(one.elements, END - BEGIN);
    for (uint32_t i = 1; i < BUCKETS; i++)
        assert_ptr_equal(partition_state(&one, i, 0),
                         one.state[0] + (buckets[i].first - BEGIN));
    for (uint64_t i = 0; i < one.elements; i++)
        assert_true(one.state[0][i] == 0.5f);
    partition_close(&one);
}

/* State is put in pieces that know nothing of buckets. */
TEST(stored_elements_are_kept_at_their_positions) {
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct partition one;
        float all[END];
        for (unsigned at = 0; at < END; at++)
            all[at] = (float)at;
        open_one(&one, rank, 3, true);
        for (uint64_t at = BEGIN; at < END; at += 33)
            partition_put(&one, 0, at, at + 33 < END ? 33 : END - at, all + at);
        for (uint32_t i = 0; i < BUCKETS; i++)
            for (uint64_t at = one.owned[i].first; at < one.owned[i].end; at++)
                assert_true(
                    partition_state(&one, i, 0)[at - one.owned[i].first] ==
                    (float)at);
        for (uint32_t i = 0; i < BUCKETS; i++) {
            uint64_t first = one.owned[i].first, end = one.owned[i].end;
            float some[END];
            for (uint64_t at = first; at < end; at++) {
                assert_true(partition_get(&one, 0, at, end - at, some));
                assert_memory_equal(some, all + at, (end - at) * sizeof *some);
            }
            assert_false(partition_get(&one, 0, first, END, some));
        }
        partition_close(&one);
    }
}

/* All have its sum, and nothing else is to be kept together with it. */
TEST(without_state_all_ranks_have_the_first_bucket) {
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct partition one;
        open_by(&sgd, &one, rank, 3, true);
        assert_false(partition_shares(&one, 0));
        assert_int_equal(one.owned[0].first, BEGIN);
        assert_int_equal(one.owned[0].end, buckets[0].end);
        for (uint32_t i = 1; i < BUCKETS; i++) {
            struct partition_range range =
                partition_range_of(&buckets[i], BEGIN, rank, 3);
            assert_true(partition_shares(&one, i));
            assert_int_equal(one.owned[i].first, range.first);
            assert_int_equal(one.owned[i].end, range.end);
        }
        partition_close(&one);
    }
}

static int open_processor(void **state) {
    (void)state;
    return ops_cpu_open(&processor, 1, NULL);
}

static int close_processor(void **state) {
    (void)state;
    ops_cpu_close(&processor);
    return 0;
}

GROUP(open_processor, close_processor);
