/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/evaluations.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

static const struct evaluation_split_result some = {
    .loss_sum = 1.5, .correct = 2, .count = 3};

TEST(each_live_trainer_gets_one_split) {
    const uint64_t living[] = {7, 8};
    struct evaluation_split parts;
    uint32_t part, to;
    assert_true(evaluation_split_open(&parts, 2));
    assert_true(evaluation_split_assign(&parts, living, 2, &part, &to));
    assert_true(part == 0 && to == 0);
    assert_true(evaluation_split_assign(&parts, living, 2, &part, &to));
    assert_true(part == 1 && to == 1);
    assert_false(evaluation_split_assign(&parts, living, 2, &part, &to));
    assert_true(evaluation_split_is_pending(&parts, living, 2));
    evaluation_split_close(&parts);
}

TEST(a_dead_trainers_split_goes_to_a_finished_trainer) {
    const uint64_t both[] = {7, 8}, left[] = {8};
    struct evaluation_split parts;
    uint32_t part, to;
    assert_true(evaluation_split_open(&parts, 2));
    while (evaluation_split_assign(&parts, both, 2, &part, &to))
        ;
    assert_false(
        evaluation_split_assign(&parts, left, 1, &part, &to)); /* 8 is busy */
    assert_true(evaluation_split_receive(&parts, 1, 8, &some));
    assert_true(evaluation_split_assign(&parts, left, 1, &part, &to));
    assert_true(part == 0 && to == 0);
    assert_false(
        evaluation_split_receive(&parts, 0, 7, &some)); /* not its any more */
    assert_true(evaluation_split_receive(&parts, 0, 8, &some));
    assert_true(evaluation_split_is_complete(&parts));
    assert_int_equal(evaluation_split_sum(&parts).count, 6);
    evaluation_split_close(&parts);
}

TEST(a_rejoined_trainer_gets_its_split_again) {
    const uint64_t before[] = {7}, after[] = {9};
    struct evaluation_split parts;
    uint32_t part, to;
    assert_true(evaluation_split_open(&parts, 1));
    assert_true(evaluation_split_assign(&parts, before, 1, &part, &to));
    assert_false(evaluation_split_is_pending(&parts, after, 1));
    assert_true(evaluation_split_assign(&parts, after, 1, &part, &to));
    assert_true(evaluation_split_is_pending(&parts, after, 1));
    evaluation_split_close(&parts);
}

TEST(a_result_counts_once_and_only_from_its_trainer) {
    const uint64_t living[] = {7};
    struct evaluation_split parts;
    uint32_t part, to;
    assert_true(evaluation_split_open(&parts, 1));
    assert_false(evaluation_split_receive(&parts, 0, 7, &some));
    assert_true(evaluation_split_assign(&parts, living, 1, &part, &to));
    assert_false(
        evaluation_split_receive(&parts, 1, 7, &some)); /* no such part */
    assert_true(evaluation_split_receive(&parts, 0, 7, &some));
    assert_false(evaluation_split_receive(&parts, 0, 7, &some));
    assert_int_equal(evaluation_split_sum(&parts).count, 3);
    evaluation_split_close(&parts);
}

TEST(missing_splits_are_not_in_the_sum) {
    const uint64_t living[] = {7, 8};
    struct evaluation_split parts;
    uint32_t part, to;
    assert_true(evaluation_split_open(&parts, 2));
    while (evaluation_split_assign(&parts, living, 2, &part, &to))
        ;
    assert_true(evaluation_split_receive(&parts, 1, 8, &some));
    assert_false(evaluation_split_is_complete(&parts));
    assert_false(evaluation_split_is_pending(&parts, &living[1], 1));
    assert_int_equal(evaluation_split_sum(&parts).count, some.count);
    assert_int_equal(evaluation_split_sum(&parts).correct, some.correct);
    evaluation_split_close(&parts);
}

enum { MAXIMUM = 5 };

/* One event: who holds a part reports it, or somebody dies, or comes back as
 * another. */
static void apply_event(struct evaluation_split *parts, uint64_t *living,
                        uint32_t *count, uint64_t *next,
                        struct philox_sequence *random) {
    uint32_t i = philox_below(random, MAXIMUM), part, to;
    while (evaluation_split_assign(parts, living, *count, &part, &to)) {
        assert_true(to < *count && !parts->part[part].done);
        for (uint32_t p = 0; p < parts->count; p++)
            assert_true(p == part || parts->part[p].done ||
                        parts->part[p].trainer != living[to]);
    }
    if (i < *count && philox_below(random, 3) == 0)
        living[i] = living[--*count];
    else if (*count < MAXIMUM && philox_below(random, 3) == 0)
        living[(*count)++] = ++*next;
    for (uint32_t p = 0; p < parts->count && *count; p++)
        if (philox_below(random, 4) == 0)
            evaluation_split_receive(
                parts, p, living[philox_below(random, *count)], &some);
}

TEST(every_split_is_counted_once_under_any_deaths) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++) {
        uint64_t living[MAXIMUM] = {1}, next = 1;
        uint32_t count = 1, turns = 0;
        struct evaluation_split parts;
        assert_true(
            evaluation_split_open(&parts, 1 + philox_below(&random, MAXIMUM)));
        while (!evaluation_split_is_complete(&parts) && turns++ < 10000)
            apply_event(&parts, living, &count, &next, &random);
        assert_true(evaluation_split_is_complete(&parts));
        assert_int_equal(evaluation_split_sum(&parts).count, 3 * parts.count);
        evaluation_split_close(&parts);
    }
}
