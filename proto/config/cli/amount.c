/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/amount.h"

#include "proto/config/decimal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool amount_set_real(const struct amount *amount, void *options,
                     const char *text, char *problem, size_t size) {
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value >= amount->least) ||
        value > amount->most) {
        snprintf(problem, size, "--%s takes a number from %g to %g, not '%s'",
                 amount->flag, amount->least, amount->most, text);
        return false;
    }
    memcpy((char *)options + amount->at, &value, sizeof value);
    return true;
}

bool amount_set_count(const struct amount *amount, void *options,
                      const char *text, char *problem, size_t size) {
    uint64_t value;
    if (!decimal_parse(text, &value) || (double)value < amount->least ||
        (double)value > amount->most) {
        snprintf(problem, size,
                 "--%s takes a whole number from %.0f to %.0f, not '%s'",
                 amount->flag, amount->least, amount->most, text);
        return false;
    }
    memcpy((char *)options + amount->at, &value, sizeof value);
    return true;
}
