/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/histogram.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { SHIFT = 32 - 12 };

void histogram_clear(struct histogram *histogram) {
    memset(histogram, 0, sizeof *histogram);
    histogram->least = INFINITY;
    histogram->most = -INFINITY;
}

void histogram_add(struct histogram *histogram, const float *floats,
                   size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, floats + i, sizeof bits);
        histogram->counts[bits >> SHIFT]++;
    }
    float least = histogram->least, most = histogram->most;
    for (size_t i = 0; i < count; i++) {
        float value = floats[i];
        bool finite = fabsf(value) <= FLT_MAX;
        double kept = finite ? (double)value : 0;
        histogram->sums[i % HISTOGRAM_LANES] += kept;
        histogram->squares[i % HISTOGRAM_LANES] += kept * kept;
        least = finite && value < least ? value : least;
        most = finite && value > most ? value : most;
    }
    histogram->least = least;
    histogram->most = most;
    histogram->elements += count;
}

static double sum_of(const double *lanes) {
    double sum = 0;
    for (int lane = 0; lane < HISTOGRAM_LANES; lane++)
        sum += lanes[lane];
    return sum;
}

double histogram_sum(const struct histogram *histogram) {
    return sum_of(histogram->sums);
}

double histogram_squares(const struct histogram *histogram) {
    return sum_of(histogram->squares);
}

/* The magnitude at which the bin of BITS begins. */
static double begin_of(uint32_t bits) {
    float value;
    uint32_t whole = bits << SHIFT;
    if (bits >= 255u << 3)
        return ldexp(1, 128);
    memcpy(&value, &whole, sizeof value);
    return value;
}

double histogram_limit(uint32_t place) {
    const uint32_t half = HISTOGRAM_BINS / 2;
    return place >= half ? begin_of(place - half + 1)
                         : -begin_of(half - 1 - place);
}
