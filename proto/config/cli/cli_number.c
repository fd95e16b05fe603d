/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_number.h"

#include "proto/config/decimal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_number_set_real(const struct cli_number *cli_number, void *options,
                         const char *text, char *problem, size_t size) {
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value >= cli_number->min) ||
        value > cli_number->max) {
        snprintf(problem, size, "--%s takes a number from %g to %g, not '%s'",
                 cli_number->flag, cli_number->min, cli_number->max, text);
        return false;
    }
    memcpy((char *)options + cli_number->offset, &value, sizeof value);
    return true;
}

bool cli_number_set_count(const struct cli_number *cli_number, void *options,
                          const char *text, char *problem, size_t size) {
    uint64_t value;
    if (!decimal_parse(text, &value) || (double)value < cli_number->min ||
        (double)value > cli_number->max) {
        snprintf(problem, size,
                 "--%s takes a whole number from %.0f to %.0f, not '%s'",
                 cli_number->flag, cli_number->min, cli_number->max, text);
        return false;
    }
    memcpy((char *)options + cli_number->offset, &value, sizeof value);
    return true;
}

bool cli_number_set_amount(const struct cli_amount *flag, void *options,
                           const char *text, char *problem, size_t size) {
    uint64_t value;
    char allowed[192];
    if (!amount_parse(&flag->amount, text, &value)) {
        amount_allowed(&flag->amount, allowed, sizeof allowed);
        snprintf(problem, size, "--%s takes %s; not '%.32s'", flag->flag,
                 allowed, text);
        return false;
    }
    memcpy((char *)options + flag->offset, &value, sizeof value);
    return true;
}
