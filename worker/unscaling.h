/* Gradients of a loss that was multiplied by the loss scale, made those of the
 * loss itself, and whether they are numbers at all. */
#ifndef CAPSTAN_UNSCALING_H
#define CAPSTAN_UNSCALING_H

#include "proto/math/layout.h"

#include <stdbool.h>

/* Divides GRADIENTS (a pointer a parameter of LAYOUT) by SCALE, as a product
 * with its inverse: exact for powers of two. False, and some are left as they
 * were, when one of them is infinite or no number. */
bool unscaling_apply(const struct layout *layout, float *const *gradients,
                     double scale);

#endif
