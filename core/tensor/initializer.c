/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/initializer.h"

#include "core/tensor/philox.h"

#include <math.h>
#include <string.h>

/* The standard normal distribution at -2. */
#define BELOW_MINUS_2 0.022750131948179207

/* Standard deviation of a normal number that is truncated at 2. */
#define TRUNCATED_DEVIATION 0.87962566103423978

#define SQRT_HALF 0.70710678118654752
#define LOG_2 0.69314718055994531

struct initializer initializer_of_job(const struct job_init *init,
                                      uint32_t fan_in, uint32_t fan_out) {
    double in = fan_in, both = in + fan_out;
    switch (init->kind) {
    case JOB_INIT_ONES:
        return (struct initializer){.shift = 1};
    case JOB_INIT_CONSTANT:
        return (struct initializer){.shift = (float)init->a};
    case JOB_INIT_UNIFORM:
        return (struct initializer){INITIALIZER_UNIFORM,
                                    (float)((init->a + init->b) / 2),
                                    (float)((init->b - init->a) / 2)};
    case JOB_INIT_NORMAL:
        return (struct initializer){INITIALIZER_NORMAL, (float)init->a,
                                    (float)init->b};
    case JOB_INIT_TRUNCATED_NORMAL:
        return (struct initializer){INITIALIZER_TRUNCATED_NORMAL,
                                    (float)init->a, (float)init->b};
    case JOB_INIT_XAVIER_UNIFORM:
    case JOB_INIT_GLOROT_UNIFORM:
        return (struct initializer){INITIALIZER_UNIFORM, 0,
                                    (float)sqrt(6 / both)};
    case JOB_INIT_XAVIER_NORMAL:
        return (struct initializer){INITIALIZER_NORMAL, 0,
                                    (float)sqrt(2 / both)};
    case JOB_INIT_GLOROT_NORMAL:
        return (struct initializer){
            INITIALIZER_TRUNCATED_NORMAL, 0,
            (float)(sqrt(2 / both) / TRUNCATED_DEVIATION)};
    case JOB_INIT_KAIMING_UNIFORM:
    case JOB_INIT_HE_UNIFORM:
        return (struct initializer){INITIALIZER_UNIFORM, 0,
                                    (float)sqrt(6 / in)};
    case JOB_INIT_KAIMING_NORMAL:
        return (struct initializer){INITIALIZER_NORMAL, 0, (float)sqrt(2 / in)};
    case JOB_INIT_HE_NORMAL:
        return (struct initializer){
            INITIALIZER_TRUNCATED_NORMAL, 0,
            (float)(sqrt(2 / in) / TRUNCATED_DEVIATION)};
    default:
        return (struct initializer){0};
    }
}

bool initializer_is_valid(const struct initializer *initializer) {
    return initializer->kind < INITIALIZER_KINDS &&
           isfinite(initializer->shift) && isfinite(initializer->bound) &&
           initializer->bound >= 0;
}

/* The natural logarithm of X, normal and above 0: x = 2^e m with m in
 * [sqrt(1/2), sqrt(2)), and log m = 2 artanh s for s = (m - 1) / (m + 1), whose
 * series is cut below 2^-53 as |s| < 0.172. The C library's differs between its
 * versions. */
static double exact_log(double x) {
    enum { TERMS = 11 };
    int exponent;
    double m = frexp(x, &exponent);
    if (m < SQRT_HALF) {
        m *= 2;
        exponent--;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int term = TERMS; term > 0; term--)
        sum = sum * square + 1.0 / (2 * term - 1);
    return exponent * LOG_2 + 2 * s * sum;
}

/* (c0 + c1 x + ... + c7 x^7) / (d0 + ...). */
static double ratio_at(const double c[8], const double d[8], double x) {
    double above = c[7], below = d[7];
    for (int i = 6; i >= 0; i--) {
        above = above * x + c[i];
        below = below * x + d[i];
    }
    return above / below;
}

/* The argument where the standard normal distribution is P, in [2^-33, 1 -
 * 2^-33]: Wichura 1988, The Percentage Points of the Normal Distribution,
 * algorithm AS 241, PPND16, of which these P need two of three ranges. */
static double inverse_normal(double p) {
    static const double a[] = {
        3.3871328727963666080e0, 1.3314166789178437745e2,
        1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double b[] = {1,
                               4.2313330701600911252e1,
                               6.8718700749205790830e2,
                               5.3941960214247511077e3,
                               2.1213794301586595867e4,
                               3.9307895800092710610e4,
                               2.8729085735721942674e4,
                               5.2264952788528545610e3};
    static const double c[] = {
        1.42343711074968357734e0,  4.63033784615654529590e0,
        5.76949722146069140550e0,  3.64784832476320460504e0,
        1.27045825245236838258e0,  2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[] = {1,
                               2.05319162663775882187e0,
                               1.67638483018380384940e0,
                               6.89767334985100004550e-1,
                               1.48103976427480074590e-1,
                               1.51986665636164571966e-2,
                               5.47593808499534494600e-4,
                               1.05075007164441684324e-9};
    double q = p - 0.5;
    if (fabs(q) <= 0.425)
        return q * ratio_at(a, b, 0.180625 - q * q);
    double tail = sqrt(-exact_log(q < 0 ? p : 1 - p));
    double z = ratio_at(c, d, tail - 1.6);
    return q < 0 ? -z : z;
}

/* The number that WORD, 32 random bits, draws. */
static double initializer_draw(uint32_t kind, uint32_t word) {
    double p = (word + 0.5) * 0x1p-32;
    if (kind == INITIALIZER_UNIFORM)
        return ((int32_t)(word >> 8) - (1 << 23)) * 0x1p-23;
    if (kind == INITIALIZER_TRUNCATED_NORMAL)
        p = BELOW_MINUS_2 + p * (1 - 2 * BELOW_MINUS_2);
    return inverse_normal(p);
}

void initializer_fill(const struct initializer *initializer, uint64_t key,
                      uint64_t stream, uint64_t first, float *values,
                      size_t count) {
    double shift = (double)initializer->shift;
    double bound = (double)initializer->bound;
    uint32_t kind = initializer->kind, words[4];
    if (bound == 0) { /* a product would give zeros of both signs */
        for (size_t i = 0; i < count; i++)
            values[i] = initializer->shift;
    } else if (kind == INITIALIZER_UNIFORM && shift == 0) {
        philox_uniform(key, stream, first, initializer->bound, values, count);
    } else {
        for (size_t i = 0; i < count; i++) {
            uint64_t e = first + i;
            if (i == 0 || e % 4 == 0)
                philox(key, stream, e / 4, words);
            values[i] =
                (float)(shift + bound * initializer_draw(kind, words[e % 4]));
        }
    }
}
