#include "worker/unscaling.h"

#include <string.h>

/* By the exponent, which is all ones in infinities and NaN alone: a loop
 * without branches. */
static bool are_finite(const float *floats, uint64_t count) {
    const uint32_t exponent = 0x7f800000;
    uint32_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &floats[i], sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return !found;
}

bool unscaling_apply(const struct layout *layout, float *const *gradients,
                     double scale) {
    float inverse = (float)(1 / scale);
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        float *restrict floats = gradients[p];
        uint64_t count = layout->parameters[p].elements;
        if (!are_finite(floats, count))
            return false;
        for (uint64_t i = 0; scale != 1 && i < count; i++)
            floats[i] *= inverse;
    }
    return true;
}
