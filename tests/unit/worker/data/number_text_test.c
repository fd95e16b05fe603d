/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/number_text.h"

#include "tests/lib/test.h"

TEST(integers_are_read_to_their_limits) {
    uint64_t id;
    assert_true(number_text_unsigned("18446744073709551615", 20, &id));
    assert_true(id == UINT64_MAX);
    assert_false(number_text_unsigned("18446744073709551616", 20, &id));
    assert_false(number_text_unsigned("-1", 2, &id));
}

/* Random numbers in several forms are those of the C library. */
TEST(numbers_are_those_of_strtod) {
    unsigned seed = 3;
    static const char *const forms[] = {"%.0f",  "%.1f", "%.7g",
                                        "%.17g", "%e",   "%+.3f"};
    for (int i = 0; i < 100000; i++) {
        double value = (rand_r(&seed) - RAND_MAX / 2) /
                       (double)(1 + rand_r(&seed) % 100000);
        char text[400];
        float found;
        int size = snprintf(text, sizeof text, forms[i % 6],
                            i % 7 ? value : value * 1e30);
        if (!number_text_float(text, (size_t)size, &found))
            fail_msg("%s was refused", text);
        float expected = (float)strtod(text, NULL);
        if (memcmp(&found, &expected, sizeof found))
            fail_msg("%s: found %.9g, expected %.9g", text, found, expected);
    }
}

/* Of each length, and with any byte in each place. */
TEST(digits_are_read_and_no_other_byte) {
    unsigned seed = 5;
    for (int size = 1; size <= 9; size++)
        for (int i = 0; i < 256 * size; i++) {
            char text[10] = {0}, byte = (char)(i % 256);
            float found;
            for (int digit = 0; digit < size; digit++)
                text[digit] = (char)('0' + rand_r(&seed) % 10);
            assert_true(number_text_float(text, (size_t)size, &found));
            assert_true(found == strtof(text, NULL));
            text[i / 256] = byte;
            bool fits = byte && strchr("0123456789+-.eE", byte);
            bool read = number_text_float(text, (size_t)size, &found);
            if (read ? !fits || found != strtof(text, NULL)
                     : byte >= '0' && byte <= '9')
                fail_msg("\"%s\" was read as %g", text, found);
        }
}

TEST(what_is_no_number_is_refused) {
    static const char *const wrong[] = {"",    "-",     ".",   "1.2.3", "nan",
                                        "inf", "0x1p3", "1e",  "1e99",  "1,5",
                                        " 1",  "1 ",    "--1", "e5"};
    float found;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (number_text_float(wrong[i], strlen(wrong[i]), &found))
            fail_msg("\"%s\" was read as %g", wrong[i], found);
}

/* As a point in the same number, and nothing else is one then. */
TEST(a_comma_may_stand_before_the_decimals) {
    static const char *const forms[] = {"%.0f", "%.1f", "%.7g", "%e"};
    unsigned seed = 11;
    float found;
    for (int i = 0; i < 20000; i++) {
        double value = (rand_r(&seed) - RAND_MAX / 2) /
                       (double)(1 + rand_r(&seed) % 100000);
        const char *text = textf(forms[i % 4], value);
        float expected = (float)strtod(text, NULL);
        assert_true(number_text_field(text, strlen(text), false, &found));
        assert_true(found == expected);
        char *point = strchr(text, '.');
        if (!point)
            continue;
        assert_false(number_text_field(text, strlen(text), true, &found));
        *point = ',';
        assert_true(number_text_field(text, strlen(text), true, &found));
        assert_true(found == expected);
        assert_false(number_text_field(text, strlen(text), false, &found));
    }
    assert_false(number_text_field("1,5,0", 5, true, &found));
    assert_false(number_text_field("", 0, true, &found));
}

TEST(true_and_false_are_one_and_none) {
    static const char *const words[][3] = {{"False", "false", "FALSE"},
                                           {"True", "true", "TRUE"}};
    static const char *const wrong[] = {"tRue", "T", "yes", "Truer", "Tru"};
    float found;
    for (int i = 0; i < 6; i++) {
        const char *word = words[i / 3][i % 3];
        assert_true(number_text_field(word, strlen(word), i % 2, &found));
        assert_true(found == (float)(i / 3));
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(
            number_text_field(wrong[i], strlen(wrong[i]), false, &found));
}
