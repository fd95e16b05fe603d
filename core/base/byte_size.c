/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/byte_size.h"

#include <stdio.h>

static const char units[] = "BKMG";

void byte_size_text(uint64_t bytes, char *text, size_t size) {
    int power = 0;
    while (power < 3 && bytes >> 10 * (power + 1))
        power++;
    double value = (double)bytes / (double)(UINT64_C(1) << 10 * power);
    snprintf(text, size,
             value < 100 && value != (double)(uint64_t)value ? "%.1f %c%s"
                                                             : "%.0f %c%s",
             value, units[power], power ? "B" : "");
}
