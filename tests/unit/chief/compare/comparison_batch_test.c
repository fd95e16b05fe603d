/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static enum status find(struct job job, uint32_t trainers, bool here,
                        struct comparison_batch *batch) {
    struct failure why;
    return comparison_batch_find(batch, &job, trainers, here, &why);
}

static void a_batch_is_solved_before_if_no_device_changes_it(void **state) {
    struct job whole = {.train_batch_size = 96, .accumulation = 2},
               micro = {.micro_batch = 16, .accumulation = 2};
    struct comparison_batch batch;
    (void)state;
    assert_int_equal(find(micro, 3, false, &batch), STATUS_OK);
    assert_int_equal(batch.micro, 16);
    assert_int_equal(find(whole, 3, false, &batch), STATUS_OK);
    assert_int_equal(batch.micro, 0);
    assert_int_equal(find(whole, 3, true, &batch), STATUS_OK);
    assert_int_equal(batch.micro, 16); /* a device each */
    assert_int_equal(batch.accumulation, 2);
    assert_int_equal(find(whole, 1, true, &batch), STATUS_OK);
    assert_int_equal(batch.micro, 0);
    whole.devices = 1;
    assert_int_equal(find(whole, 1, true, &batch), STATUS_OK);
    assert_int_equal(batch.micro, 48);
}

static void what_no_number_of_devices_divides_is_refused(void **state) {
    struct job uneven = {.train_batch_size = 97, .micro_batch = 16};
    struct comparison_batch batch;
    (void)state;
    assert_int_equal(find(uneven, 3, false, &batch), STATUS_CONFIG);
    assert_int_equal(find(uneven, 3, true, &batch), STATUS_CONFIG);
}

static void the_first_run_that_tells_is_believed(void **state) {
    struct comparison_batch batch = {0};
    json_t *nothing = json_pack("{s:n, s:n}", "micro_batch", "accumulation");
    json_t *run = json_pack("{s:i, s:i}", "micro_batch", 8, "accumulation", 3);
    json_t *other =
        json_pack("{s:i, s:i}", "micro_batch", 4, "accumulation", 1);
    (void)state;
    comparison_batch_learn(&batch, nothing);
    assert_int_equal(batch.micro, 0);
    comparison_batch_learn(&batch, run);
    comparison_batch_learn(&batch, other);
    assert_int_equal(batch.micro, 8);
    assert_int_equal(batch.accumulation, 3);
    assert_true(comparison_batch_samples(&batch) == 24);
    json_decref(nothing);
    json_decref(run);
    json_decref(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_solved_before_if_no_device_changes_it),
        cmocka_unit_test(what_no_number_of_devices_divides_is_refused),
        cmocka_unit_test(the_first_run_that_tells_is_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
