/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/data_share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void shares_are_equal_and_hold_all_samples(void **state) {
    (void)state;
    assert_int_equal(data_share_samples(60000, 4), 15000);
    assert_int_equal(data_share_samples(60001, 4), 15001);
    assert_int_equal(data_share_samples(3, 7), 1);
    assert_int_equal(data_share_samples(5, 1), 5);
}

static void a_short_last_batch_is_kept_or_dropped(void **state) {
    (void)state;
    assert_int_equal(data_share_batches(23, 2, 5, false), 3);
    assert_int_equal(data_share_batches(23, 2, 5, true), 2);
    assert_int_equal(data_share_batches(20, 2, 5, false), 2);
    assert_int_equal(data_share_batches(20, 2, 5, true), 2);
}

static void less_than_a_batch_is_empty_when_dropped(void **state) {
    (void)state;
    assert_int_equal(data_share_batches(7, 2, 5, true), 0);
    assert_int_equal(data_share_batches(7, 2, 5, false), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_equal_and_hold_all_samples),
        cmocka_unit_test(a_short_last_batch_is_kept_or_dropped),
        cmocka_unit_test(less_than_a_batch_is_empty_when_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
