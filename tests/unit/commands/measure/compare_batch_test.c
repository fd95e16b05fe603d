/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_arguments.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

static enum status find(struct job job, uint32_t trainers, bool local,
                        struct compare_batch *batch) {
    return compare_batch_find(batch, &job, trainers, local, &failure);
}

TEST(a_batch_independent_of_devices_is_solved_beforehand) {
    struct job whole = {.train_batch_size = 96, .accumulation = 2},
               micro = {.micro_batch = 16, .accumulation = 2};
    struct compare_batch batch;
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

TEST(a_batch_that_no_device_count_divides_is_refused) {
    struct job uneven = {.train_batch_size = 97, .micro_batch = 16};
    struct compare_batch batch;
    assert_int_equal(find(uneven, 3, false, &batch), STATUS_CONFIG);
    assert_int_equal(find(uneven, 3, true, &batch), STATUS_CONFIG);
}

TEST(the_first_run_that_reports_the_batch_decides) {
    struct compare_batch batch = {0};
    json_t *nothing = json_pack("{s:n, s:n}", "micro_batch", "accumulation");
    json_t *run = json_pack("{s:i, s:i}", "micro_batch", 8, "accumulation", 3);
    json_t *other =
        json_pack("{s:i, s:i}", "micro_batch", 4, "accumulation", 1);
    compare_batch_update(&batch, nothing);
    assert_int_equal(batch.micro, 0);
    compare_batch_update(&batch, run);
    compare_batch_update(&batch, other);
    assert_int_equal(batch.micro, 8);
    assert_int_equal(batch.accumulation, 3);
    assert_true(compare_batch_samples(&batch) == 24);
    json_decref(nothing);
    json_decref(run);
    json_decref(other);
}
