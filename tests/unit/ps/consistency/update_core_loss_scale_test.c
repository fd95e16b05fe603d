/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that are scaled: pushes of gradients that were not finite, the rounds
 * they void, and the scale that each version of a block tells. */
#include "ps/consistency/update_core.h"

#include "tests/lib/test.h"
#include "tests/lib/update_core_fixture.h"

FIXTURE(NULL, update_core_fixture_teardown);

TEST(one_overflowed_push_skips_only_its_round) {
    update_core_fixture_scaled(1, 3, 0, false);
    update_core_fixture_push(0, 0, 1, 1);
    assert_int_equal(update_core_fixture_push_overflowed(0, 1, 1, 1, 256),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture.count, 0);
    update_core_fixture_push(0, 2, 1, 1);
    assert_true(update_core_fixture_single_update().overflowed);
    assert_int_equal(update_core_fixture_single_update().version, 1);
    assert_int_equal(update_core_fixture_single_update().scaler.skipped, 1);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 3);
    for (uint32_t r = 0; r < 3; r++)
        update_core_fixture_push(0, r, 2, 2);
    assert_false(update_core_fixture_single_update().overflowed);
    assert_int_equal(update_core_fixture_single_update().version, 2);
    assert_int_equal(update_core_fixture_single_update().step, 1);
}

/* A snapshot of a version is taken when the next one may be there. */
TEST(the_scaler_of_the_version_before_is_known) {
    update_core_fixture_scaled(1, 1, 0, false);
    struct update_core *core = update_core_fixture.update_core;
    update_core_fixture_push_overflowed(0, 0, 1, 1, 256);
    assert_int_equal(update_core_scaler(core, 0, 0).skipped, 0);
    assert_int_equal(update_core_scaler(core, 0, 1).skipped, 1);
    update_core_fixture_push_overflowed(0, 0, 2, 2, 256);
    assert_int_equal(update_core_scaler(core, 0, 1).skipped, 1);
    assert_int_equal(update_core_scaler(core, 0, 2).skipped, 2);
}

TEST(overflowed_pushes_count_once) {
    update_core_fixture_scaled(1, 2, 0, false);
    assert_int_equal(update_core_fixture_push_overflowed(0, 0, 2, 1, 256),
                     UPDATE_CORE_REFUSED);
    assert_int_equal(update_core_fixture_push_overflowed(0, 0, 1, 1, 256),
                     UPDATE_CORE_ACCEPTED);
    assert_int_equal(update_core_fixture_push_overflowed(0, 0, 1, 2, 256),
                     UPDATE_CORE_DUPLICATE);
    assert_true(update_core_query(update_core_fixture.update_core, 0, 0, 1, 3));
    update_core_fixture_push(0, 1, 1, 1);
    assert_int_equal(update_core_fixture_single_update().scaler.skipped, 1);
    assert_int_equal(update_core_fixture_push_overflowed(0, 0, 1, 4, 256),
                     UPDATE_CORE_DUPLICATE);
    update_core_fixture_push(0, 0, 2, 5);
    update_core_fixture_push(0, 1, 2, 5);
    assert_false(update_core_fixture_single_update().overflowed);
}

TEST(an_overflowed_push_of_a_dead_trainer_still_skips_the_round) {
    update_core_fixture_scaled(1, 2, 0, false);
    update_core_fixture_push_overflowed(0, 0, 1, 1, 256);
    update_core_fixture.slots[0].live = false;
    update_core_fixture_set_view();
    update_core_fixture_push(0, 1, 1, 1);
    assert_true(update_core_fixture_single_update().overflowed);
}

TEST(with_staleness_an_overflowed_push_skips_only_its_update) {
    update_core_fixture_scaled(1, 2, 1, false);
    update_core_fixture_push(0, 0, 1, 1);
    assert_false(update_core_fixture_single_update().overflowed);
    update_core_fixture_push_overflowed(0, 1, 1, 1, 256);
    assert_true(update_core_fixture_single_update().overflowed);
    assert_int_equal(update_core_fixture_single_update().version, 2);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_REPLY, NULL), 1);
    update_core_fixture_push(0, 0, 2, 2);
    assert_false(update_core_fixture_single_update().overflowed);
    assert_int_equal(update_core_fixture_single_update().version, 3);
    assert_int_equal(update_core_fixture_single_update().step, 2);
}

TEST(an_overflowed_round_sums_to_zero_and_waits_for_the_norm) {
    struct update_core_action sum = {0};
    update_core_fixture_scaled(1, 1, 0, true);
    update_core_fixture_push_overflowed(0, 0, 1, 1, 256);
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_SUM, &sum), 1);
    assert_true(sum.overflowed);
    update_core_set_norm(update_core_fixture.update_core, 1);
    update_core_fixture_collect();
    assert_true(update_core_fixture_single_update().overflowed);
}

TEST(the_loss_scaler_belongs_to_the_version) {
    update_core_fixture_scaled(1, 1, 0, false);
    update_core_fixture_push(0, 0, 1, 1);
    update_core_fixture_push_overflowed(0, 0, 2, 2, 256);
    struct loss_scaler now =
        update_core_scaler(update_core_fixture.update_core, 0, 2);
    struct loss_scaler before =
        update_core_scaler(update_core_fixture.update_core, 0, 1);
    assert_int_equal(now.skipped, 1);
    assert_int_equal(now.hysteresis, 1);
    assert_int_equal(before.skipped, 0);
    assert_int_equal(before.hysteresis, 2);
    update_core_fixture_push_overflowed(0, 0, 3, 3, 256);
    assert_true(
        update_core_scaler(update_core_fixture.update_core, 0, 3).scale == 128);
}

TEST(a_resumed_loss_scaler_continues) {
    struct update_core_settings settings = {
        .num_blocks = 1,
        .num_ranks = 1,
        .start = 500,
        .fp16 = update_core_fixture_fp16,
        .scaler = {.scale = 32, .good = 2, .hysteresis = 1, .skipped = 40}};
    update_core_fixture_open(&settings);
    update_core_fixture_push(0, 0, 501, 1);
    assert_int_equal(update_core_fixture_single_update().step, 461);
    assert_true(update_core_fixture_single_update().scaler.scale == 64);
}
