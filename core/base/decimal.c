/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/decimal.h"

#include <stddef.h>

bool decimal_parse(const char *text, uint64_t *value) {
    uint64_t sum = 0;
    size_t i = 0;
    for (; text[i] >= '0' && text[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        sum = sum > (UINT64_MAX - digit) / 10 ? UINT64_MAX : sum * 10 + digit;
    }
    *value = sum;
    return i > 0 && text[i] == '\0';
}
