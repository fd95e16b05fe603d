/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/byte_size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void units_are_powers_of_1024(void **state) {
    (void)state;
    const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},
                 {"64", 64},
                 {"64B", 64},
                 {"4K", 4096},
                 {"4kb", 4096},
                 {"4KiB", 4096},
                 {"16M", 16 << 20},
                 {"8G", UINT64_C(8) << 30},
                 {"17179869183G", UINT64_C(17179869183) << 30}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes;
        assert_true(byte_size_parse(cases[i].text, &bytes));
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void anything_else_is_refused(void **state) {
    (void)state;
    static const char *const cases[] = {
        "",    "K",   "4X", "-4",           "4.5K",
        "4 K", "4KK", " 4", "17179869184G", "99999999999999999999999999"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes;
        if (byte_size_parse(cases[i], &bytes))
            fail_msg("'%s' is taken", cases[i]);
    }
}

static void text_uses_the_largest_unit_that_fits(void **state) {
    (void)state;
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {64, "64 B"},
                 {1023, "1023 B"},
                 {4096, "4 KB"},
                 {3 << 19, "1.5 MB"},
                 {64 << 20, "64 MB"},
                 {UINT64_C(8) << 30, "8 GB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16];
        byte_size_text(cases[i].bytes, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_powers_of_1024),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(text_uses_the_largest_unit_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
