#include "proto/base/wait.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct wait sample = {"ps 1 at b:2223", "timeouts.step",
                                   5 * TIME_S, 35 * TIME_S};

static void a_wait_is_told_with_its_end(void **state) {
    (void)state;
    char text[128];
    wait_text(&sample, 17 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 since 12 s, gives up "
                              "in 18 s (timeouts.step)");
    wait_text(&sample, 50 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 since 45 s, gives up "
                              "in 0 s (timeouts.step)");
}

static void a_wait_is_over_at_its_end(void **state) {
    (void)state;
    assert_false(wait_over(&sample, 35 * TIME_S - 1));
    assert_true(wait_over(&sample, 35 * TIME_S));
    struct wait none = {.until = TIME_NEVER};
    assert_false(wait_over(&none, INT64_MAX));
    struct wait endless = wait_for("ps 0", "timeouts.step", 5, TIME_NEVER);
    assert_false(wait_over(&endless, INT64_MAX - 2));
    assert_true(endless.until < TIME_NEVER);
}

static void a_silence_is_told_long_before_it_counts(void **state) {
    (void)state;
    assert_int_equal(wait_silence(30 * TIME_S), 5 * TIME_S);
    assert_int_equal(wait_silence(TIME_S), 3 * TIME_S);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_is_told_with_its_end),
        cmocka_unit_test(a_wait_is_over_at_its_end),
        cmocka_unit_test(a_silence_is_told_long_before_it_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
