/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/number_text.h"

#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An input is the text of a number: what is taken is what strtod(3) and
 * strtoull say. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text = fuzz_text(bytes, size), *end;
    const char *alone = (const char *)bytes; /* no 0 behind it */
    float number;
    uint64_t whole;
    errno = 0;
    if (number_text_float(alone, size, &number))
        fuzz_require(number == (float)strtod(text, &end) && end == text + size,
                     "a number is that of strtod");
    errno = 0;
    if (number_text_unsigned(alone, size, &whole))
        fuzz_require(whole == strtoull(text, &end, 10) && end == text + size &&
                         !errno,
                     "an unsigned integer is that of strtoull");
    free(text);
    return 0;
}
