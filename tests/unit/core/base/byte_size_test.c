/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/byte_size.h"

#include "tests/lib/test.h"

TEST(text_uses_the_largest_unit_that_fits) {
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
