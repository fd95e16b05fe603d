/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/amount.h"

#include "tests/lib/test.h"

#include <inttypes.h>

static const struct amount parameters = {AMOUNT_PARAMETERS, 1,
                                         UINT64_C(10000000000000), 1},
                           bytes = {AMOUNT_BYTES, 0, UINT64_MAX - 1024, 1},
                           floats = {AMOUNT_BYTES, 4, UINT64_C(8) << 30, 4};

struct reading {
    const struct amount *amount;
    const char *text;
    uint64_t value;
};

static void expect(const struct reading *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 0;
        if (!amount_parse(cases[i].amount, cases[i].text, &value) ||
            value != cases[i].value)
            fail_msg("'%s' is read as %" PRIu64, cases[i].text, value);
    }
}

TEST(parameters_are_counted_in_powers_of_1000) {
    const struct reading cases[] = {{&parameters, "669706", 669706},
                                    {&parameters, "25.6M", 25600000},
                                    {&parameters, "102.4M", 102400000},
                                    {&parameters, "2k", 2000},
                                    {&parameters, "1e6", 1000000},
                                    {&parameters, "1.5", 2},
                                    {&parameters, "1.5G", 1500000000},
                                    {&parameters, "175B", 175000000000},
                                    {&parameters, "10t", 10000000000000}};
    expect(cases, sizeof cases / sizeof *cases);
}

TEST(bytes_are_counted_in_powers_of_1024) {
    const struct reading cases[] = {
        {&bytes, "0", 0},
        {&bytes, "64", 64},
        {&bytes, "64B", 64},
        {&bytes, "4K", 4096},
        {&bytes, "4kb", 4096},
        {&bytes, "4KiB", 4096},
        {&bytes, "16M", 16 << 20},
        {&bytes, "1.5MiB", 3 << 19},
        {&bytes, "102.4M", 107374182},
        {&bytes, "8G", UINT64_C(8) << 30},
        {&bytes, "17179869183G", UINT64_C(17179869183) << 30}};
    expect(cases, sizeof cases / sizeof *cases);
}

TEST(a_fraction_is_rounded_to_the_nearest_multiple) {
    const struct reading cases[] = {{&floats, "102.4M", 107374184},
                                    {&floats, "25.6M", 26843544},
                                    {&floats, "1.5K", 1536},
                                    {&floats, "102.4e6", 102400000}};
    expect(cases, sizeof cases / sizeof *cases);
}

TEST(anything_else_is_refused) {
    const struct reading cases[] = {{&bytes, "", 0},
                                    {&bytes, "K", 0},
                                    {&bytes, ".", 0},
                                    {&bytes, "4X", 0},
                                    {&bytes, "-4", 0},
                                    {&bytes, "4 K", 0},
                                    {&bytes, "4KK", 0},
                                    {&bytes, " 4", 0},
                                    {&bytes, "0x10", 0},
                                    {&bytes, "1T", 0},
                                    {&bytes, "17179869184G", 0},
                                    {&bytes, "99999999999999999999999999", 0},
                                    {&parameters, "0", 0},
                                    {&parameters, "11T", 0},
                                    {&parameters, "25.6MB", 0},
                                    {&parameters, "nan", 0},
                                    {&parameters, "1e400", 0},
                                    {&floats, "6", 0},
                                    {&floats, "3", 0},
                                    {&floats, "8.1G", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t value;
        if (amount_parse(cases[i].amount, cases[i].text, &value))
            fail_msg("'%s' is taken", cases[i].text);
    }
}

TEST(what_is_allowed_names_bounds_and_suffixes) {
    char text[192];
    amount_allowed(&parameters, text, sizeof text);
    assert_string_equal(text, "a number of parameters from 1 up to 10T, such "
                              "as 25.6M; K, M, G (or B) and T are powers of "
                              "1000");
    amount_allowed(&floats, text, sizeof text);
    assert_string_equal(text, "multiples of 4 bytes from 4 up to 8G, such as "
                              "102.4M; K, M and G are powers of 1024, as KiB, "
                              "MiB and GiB");
}
