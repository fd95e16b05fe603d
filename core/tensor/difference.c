/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/difference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A and B differ at PLACE, which has their values, by BY. */
static void count_difference(struct difference *out, double by,
                             const struct difference_place *place) {
    bool finite = isfinite(by);
    out->different++;
    if (finite) {
        out->squares += by * by;
        if (out->different - out->not_finite == 1 || by > out->most) {
            out->most = by;
            out->largest = *place;
        }
    } else if (!out->not_finite++) {
        out->first_not_finite = *place;
    }
}

void difference_add_floats(struct difference *out, const float *a,
                           const float *b, uint64_t count,
                           struct difference_place place) {
    out->elements += count;
    if (!memcmp(a, b, count * sizeof *a))
        return;
    for (uint64_t i = 0; i < count; i++, place.at++) {
        if (!memcmp(a + i, b + i, sizeof *a))
            continue;
        place.a = (double)a[i];
        place.b = (double)b[i];
        count_difference(out, fabs(place.a - place.b), &place);
    }
}

void difference_add_integers(struct difference *out, const float *a,
                             const float *b, uint64_t count,
                             struct difference_place place) {
    place.at /= 2;
    out->elements += count / 2;
    for (uint64_t i = 0; i < count; i += 2, place.at++) {
        int64_t x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (x == y)
            continue;
        place.a = (double)x;
        place.b = (double)y;
        uint64_t by =
            x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x;
        count_difference(out, (double)by, &place);
    }
}
