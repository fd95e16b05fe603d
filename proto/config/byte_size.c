/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/byte_size.h"

#include "proto/config/decimal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char units[] = "BKMG";

/* The power of 1024 that the unit TEXT stands for, or -1. */
static int power_of(const char *text) {
    static const char *const names[][3] = {{"", "B", "B"},
                                           {"K", "KB", "KiB"},
                                           {"M", "MB", "MiB"},
                                           {"G", "GB", "GiB"}};
    for (int power = 0; power < 4; power++)
        for (int i = 0; i < 3; i++)
            if (!strcasecmp(text, names[power][i]))
                return power;
    return -1;
}

bool byte_size_parse(const char *text, uint64_t *bytes) {
    size_t digits = strspn(text, "0123456789");
    char number[24];
    int power = power_of(text + digits);
    uint64_t value;
    if (digits >= sizeof number || power < 0)
        return false;
    memcpy(number, text, digits);
    number[digits] = 0;
    if (!decimal_parse(number, &value) || value > UINT64_MAX >> 10 * power)
        return false;
    *bytes = value << 10 * power;
    return true;
}

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
