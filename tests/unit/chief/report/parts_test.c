/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/parts.h"

#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct part_result some = {1.5, 2, 3};

static void each_of_the_living_is_handed_one_part(void **state) {
    (void)state;
    const uint64_t living[] = {7, 8};
    struct parts parts;
    uint32_t part, to;
    assert_true(parts_open(&parts, 2));
    assert_true(parts_hand(&parts, living, 2, &part, &to));
    assert_true(part == 0 && to == 0);
    assert_true(parts_hand(&parts, living, 2, &part, &to));
    assert_true(part == 1 && to == 1);
    assert_false(parts_hand(&parts, living, 2, &part, &to));
    assert_true(parts_awaited(&parts, living, 2));
    parts_close(&parts);
}

static void a_dead_ones_part_is_handed_to_who_has_done_its_own(void **state) {
    (void)state;
    const uint64_t both[] = {7, 8}, left[] = {8};
    struct parts parts;
    uint32_t part, to;
    assert_true(parts_open(&parts, 2));
    while (parts_hand(&parts, both, 2, &part, &to))
        ;
    assert_false(parts_hand(&parts, left, 1, &part, &to)); /* 8 is busy */
    assert_true(parts_take(&parts, 1, 8, &some));
    assert_true(parts_hand(&parts, left, 1, &part, &to));
    assert_true(part == 0 && to == 0);
    assert_false(parts_take(&parts, 0, 7, &some)); /* not its any more */
    assert_true(parts_take(&parts, 0, 8, &some));
    assert_true(parts_whole(&parts));
    assert_int_equal(parts_sum(&parts).count, 6);
    parts_close(&parts);
}

static void who_came_back_is_another_and_is_handed_its_part_anew(void **state) {
    (void)state;
    const uint64_t before[] = {7}, after[] = {9};
    struct parts parts;
    uint32_t part, to;
    assert_true(parts_open(&parts, 1));
    assert_true(parts_hand(&parts, before, 1, &part, &to));
    assert_false(parts_awaited(&parts, after, 1));
    assert_true(parts_hand(&parts, after, 1, &part, &to));
    assert_true(parts_awaited(&parts, after, 1));
    parts_close(&parts);
}

static void a_report_counts_once_and_from_the_holder_only(void **state) {
    (void)state;
    const uint64_t living[] = {7};
    struct parts parts;
    uint32_t part, to;
    assert_true(parts_open(&parts, 1));
    assert_false(parts_take(&parts, 0, 7, &some));
    assert_true(parts_hand(&parts, living, 1, &part, &to));
    assert_false(parts_take(&parts, 1, 7, &some)); /* no such part */
    assert_true(parts_take(&parts, 0, 7, &some));
    assert_false(parts_take(&parts, 0, 7, &some));
    assert_int_equal(parts_sum(&parts).count, 3);
    parts_close(&parts);
}

static void parts_that_are_missing_are_not_in_the_sum(void **state) {
    (void)state;
    const uint64_t living[] = {7, 8};
    struct parts parts;
    uint32_t part, to;
    assert_true(parts_open(&parts, 2));
    while (parts_hand(&parts, living, 2, &part, &to))
        ;
    assert_true(parts_take(&parts, 1, 8, &some));
    assert_false(parts_whole(&parts));
    assert_false(parts_awaited(&parts, &living[1], 1));
    assert_int_equal(parts_sum(&parts).count, some.count);
    assert_int_equal(parts_sum(&parts).correct, some.correct);
    parts_close(&parts);
}

enum { MOST = 5 };

/* One event: who holds a part reports it, or somebody dies, or comes back as
 * another. */
static void happen(struct parts *parts, uint64_t *living, uint32_t *count,
                   uint64_t *next, struct philox_sequence *random) {
    uint32_t i = philox_below(random, MOST), part, to;
    while (parts_hand(parts, living, *count, &part, &to)) {
        assert_true(to < *count && !parts->part[part].done);
        for (uint32_t p = 0; p < parts->count; p++)
            assert_true(p == part || parts->part[p].done ||
                        parts->part[p].holder != living[to]);
    }
    if (i < *count && philox_below(random, 3) == 0)
        living[i] = living[--*count];
    else if (*count < MOST && philox_below(random, 3) == 0)
        living[(*count)++] = ++*next;
    for (uint32_t p = 0; p < parts->count && *count; p++)
        if (philox_below(random, 4) == 0)
            parts_take(parts, p, living[philox_below(random, *count)], &some);
}

static void whoever_dies_every_part_is_counted_once(void **state) {
    (void)state;
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++) {
        uint64_t living[MOST] = {1}, next = 1;
        uint32_t count = 1, turns = 0;
        struct parts parts;
        assert_true(parts_open(&parts, 1 + philox_below(&random, MOST)));
        while (!parts_whole(&parts) && turns++ < 10000)
            happen(&parts, living, &count, &next, &random);
        assert_true(parts_whole(&parts));
        assert_int_equal(parts_sum(&parts).count, 3 * parts.count);
        parts_close(&parts);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_of_the_living_is_handed_one_part),
        cmocka_unit_test(a_dead_ones_part_is_handed_to_who_has_done_its_own),
        cmocka_unit_test(who_came_back_is_another_and_is_handed_its_part_anew),
        cmocka_unit_test(a_report_counts_once_and_from_the_holder_only),
        cmocka_unit_test(parts_that_are_missing_are_not_in_the_sum),
        cmocka_unit_test(whoever_dies_every_part_is_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
