/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that are scaled: pushes of gradients that were not finite, the rounds
 * they void, and the scale that each version of a block tells. */
#include "ps/consistency/exchange.h"

#include "tests/lib/exchange_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void one_void_push_voids_the_round_and_no_other(void **state) {
    (void)state;
    exchange_fixture_scaled(1, 3, 0, false);
    exchange_fixture_push(0, 0, 1, 1);
    assert_int_equal(exchange_fixture_void(0, 1, 1, 1, 256), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture.count, 0);
    exchange_fixture_push(0, 2, 1, 1);
    assert_true(exchange_fixture_updated().voided);
    assert_int_equal(exchange_fixture_updated().version, 1);
    assert_int_equal(exchange_fixture_updated().scaler.skipped, 1);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 3);
    for (uint32_t r = 0; r < 3; r++)
        exchange_fixture_push(0, r, 2, 2);
    assert_false(exchange_fixture_updated().voided);
    assert_int_equal(exchange_fixture_updated().version, 2);
    assert_int_equal(exchange_fixture_updated().step, 1);
}

static void void_pushes_are_taken_once_as_all_are(void **state) {
    (void)state;
    exchange_fixture_scaled(1, 2, 0, false);
    assert_int_equal(exchange_fixture_void(0, 0, 2, 1, 256), EXCHANGE_REFUSED);
    assert_int_equal(exchange_fixture_void(0, 0, 1, 1, 256), EXCHANGE_TAKEN);
    assert_int_equal(exchange_fixture_void(0, 0, 1, 2, 256), EXCHANGE_KNOWN);
    assert_true(exchange_ask(exchange_fixture.exchange, 0, 0, 1, 3));
    exchange_fixture_push(0, 1, 1, 1);
    assert_int_equal(exchange_fixture_updated().scaler.skipped, 1);
    assert_int_equal(exchange_fixture_void(0, 0, 1, 4, 256), EXCHANGE_KNOWN);
    exchange_fixture_push(0, 0, 2, 5);
    exchange_fixture_push(0, 1, 2, 5);
    assert_false(exchange_fixture_updated().voided);
}

static void a_void_push_of_the_dead_still_voids(void **state) {
    (void)state;
    exchange_fixture_scaled(1, 2, 0, false);
    exchange_fixture_void(0, 0, 1, 1, 256);
    exchange_fixture.slots[0].live = false;
    exchange_fixture_see();
    exchange_fixture_push(0, 1, 1, 1);
    assert_true(exchange_fixture_updated().voided);
}

static void with_staleness_a_void_push_is_its_own_alone(void **state) {
    (void)state;
    exchange_fixture_scaled(1, 2, 1, false);
    exchange_fixture_push(0, 0, 1, 1);
    assert_false(exchange_fixture_updated().voided);
    exchange_fixture_void(0, 1, 1, 1, 256);
    assert_true(exchange_fixture_updated().voided);
    assert_int_equal(exchange_fixture_updated().version, 2);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_REPLY, NULL), 1);
    exchange_fixture_push(0, 0, 2, 2);
    assert_false(exchange_fixture_updated().voided);
    assert_int_equal(exchange_fixture_updated().version, 3);
    assert_int_equal(exchange_fixture_updated().step, 2);
}

static void a_void_round_is_summed_as_nothing_and_waits_for_the_norm(
    void **state) {
    (void)state;
    struct exchange_action sum = {0};
    exchange_fixture_scaled(1, 1, 0, true);
    exchange_fixture_void(0, 0, 1, 1, 256);
    assert_int_equal(exchange_fixture_acted(EXCHANGE_SUM, &sum), 1);
    assert_true(sum.voided);
    exchange_norm(exchange_fixture.exchange, 1);
    exchange_fixture_settle();
    assert_true(exchange_fixture_updated().voided);
}

static void the_scaler_is_that_of_the_version(void **state) {
    (void)state;
    exchange_fixture_scaled(1, 1, 0, false);
    exchange_fixture_push(0, 0, 1, 1);
    exchange_fixture_void(0, 0, 2, 2, 256);
    struct loss_scaler now = exchange_scaler(exchange_fixture.exchange, 0, 2);
    struct loss_scaler before =
        exchange_scaler(exchange_fixture.exchange, 0, 1);
    assert_int_equal(now.skipped, 1);
    assert_int_equal(now.hysteresis, 1);
    assert_int_equal(before.skipped, 0);
    assert_int_equal(before.hysteresis, 2);
    exchange_fixture_void(0, 0, 3, 3, 256);
    assert_true(exchange_scaler(exchange_fixture.exchange, 0, 3).scale == 128);
}

static void a_resumed_scaler_counts_on(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1,
        .num_ranks = 1,
        .start = 500,
        .fp16 = exchange_fixture_fp16,
        .scaler = {.scale = 32, .good = 2, .hysteresis = 1, .skipped = 40}};
    exchange_fixture_open(&settings);
    exchange_fixture_push(0, 0, 501, 1);
    assert_int_equal(exchange_fixture_updated().step, 461);
    assert_true(exchange_fixture_updated().scaler.scale == 64);
}

#define EXCHANGE_TEST(f) cmocka_unit_test_teardown(f, exchange_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        EXCHANGE_TEST(one_void_push_voids_the_round_and_no_other),
        EXCHANGE_TEST(void_pushes_are_taken_once_as_all_are),
        EXCHANGE_TEST(a_void_push_of_the_dead_still_voids),
        EXCHANGE_TEST(with_staleness_a_void_push_is_its_own_alone),
        EXCHANGE_TEST(a_void_round_is_summed_as_nothing_and_waits_for_the_norm),
        EXCHANGE_TEST(the_scaler_is_that_of_the_version),
        EXCHANGE_TEST(a_resumed_scaler_counts_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
