/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/diagnostics_nearest.h"

#include <ctype.h>
#include <string.h>

enum { MAX_LENGTH = 63 };

static unsigned diagnostics_nearest_smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
}

static int lower(char c) {
    return tolower((unsigned char)c);
}

unsigned diagnostics_nearest_distance(const char *a, const char *b) {
    size_t m = strlen(a), n = strlen(b);
    if (m > MAX_LENGTH || n > MAX_LENGTH)
        return (unsigned)(m > n ? m : n);
    /* d[i][j]: distance between the first i letters of a and the first j of
     * b. */
    unsigned char d[MAX_LENGTH + 1][MAX_LENGTH + 1];
    for (size_t i = 0; i <= m; i++)
        d[i][0] = (unsigned char)i;
    for (size_t j = 0; j <= n; j++)
        d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= m; i++)
        for (size_t j = 1; j <= n; j++) {
            unsigned change = lower(a[i - 1]) != lower(b[j - 1]);
            unsigned best =
                diagnostics_nearest_smaller(d[i - 1][j] + 1u, d[i][j - 1] + 1u);
            best = diagnostics_nearest_smaller(best, d[i - 1][j - 1] + change);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                best = diagnostics_nearest_smaller(best, d[i - 2][j - 2] + 1u);
            d[i][j] = (unsigned char)best;
        }
    return d[m][n];
}

unsigned diagnostics_nearest_limit(const char *word) {
    return 1 + (unsigned)strlen(word) / 4;
}
