/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/amount.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct suffix {
    const char *names[3]; /* the first is that of messages */
    double scale;
};

enum { SUFFIXES = 5 };

static const struct suffix suffixes[][SUFFIXES] = {
    [AMOUNT_PARAMETERS] = {{{""}, 1},
                           {{"K"}, 1e3},
                           {{"M"}, 1e6},
                           {{"G", "B"}, 1e9},
                           {{"T"}, 1e12}},
    [AMOUNT_BYTES] = {{{"", "B"}, 1},
                      {{"K", "KB", "KiB"}, 1 << 10},
                      {{"M", "MB", "MiB"}, 1 << 20},
                      {{"G", "GB", "GiB"}, 1 << 30}},
};

/* The factor of the suffix NAME, 0: there is none of that name. */
static double suffix_scale(enum amount_unit unit, const char *name) {
    for (int i = 0; i < SUFFIXES; i++)
        for (int n = 0; n < 3 && suffixes[unit][i].names[n]; n++)
            if (!strcasecmp(suffixes[unit][i].names[n], name))
                return suffixes[unit][i].scale;
    return 0;
}

bool amount_parse(const struct amount *amount, const char *text,
                  uint64_t *value) {
    char *end;
    if ((!isdigit((unsigned char)*text) && *text != '.') ||
        strpbrk(text, "xX")) /* strtod takes blanks, signs, nan, and 0x10 */
        return false;
    double number = strtod(text, &end), scale = suffix_scale(amount->unit, end);
    if (end == text || scale == 0)
        return false;
    number *= scale;
    if (number != rint(number))
        number =
            rint(number / (double)amount->multiple) * (double)amount->multiple;
    if (number < (double)amount->min || number > (double)amount->max ||
        (uint64_t)number % amount->multiple != 0)
        return false;
    *value = (uint64_t)number;
    return true;
}

/* VALUE with the largest suffix that leaves a whole number, into TEXT. */
static void amount_text(enum amount_unit unit, uint64_t value, char *text,
                        size_t size) {
    const struct suffix *best = &suffixes[unit][0];
    for (int i = 1; i < SUFFIXES && suffixes[unit][i].names[0]; i++)
        if (value && value % (uint64_t)suffixes[unit][i].scale == 0)
            best = &suffixes[unit][i];
    snprintf(text, size, "%.0f%s", (double)value / best->scale, best->names[0]);
}

void amount_allowed(const struct amount *amount, char *text, size_t size) {
    char min[24], max[24];
    amount_text(amount->unit, amount->min, min, sizeof min);
    amount_text(amount->unit, amount->max, max, sizeof max);
    if (amount->unit == AMOUNT_PARAMETERS)
        snprintf(text, size,
                 "a number of parameters from %s up to %s, such as 25.6M; K, "
                 "M, G (or B) and T are powers of 1000",
                 min, max);
    else
        snprintf(text, size,
                 "multiples of %" PRIu64 " bytes from %s up to %s, such as "
                 "102.4M; K, M and G are powers of 1024, as KiB, MiB and GiB",
                 amount->multiple, min, max);
}
