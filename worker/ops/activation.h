/* SPDX-License-Identifier: Apache-2.0 */
/* The activations' arithmetic for one element, in the order written here on
 * every device. A file for another device may define ACTIVATION_ELEMENT as its
 * own function qualifiers before it includes this one. */
#ifndef CAPSTAN_ACTIVATION_H
#define CAPSTAN_ACTIVATION_H

#include <math.h>

#ifndef ACTIVATION_ELEMENT
#define ACTIVATION_ELEMENT static inline
#endif

/* A NaN passes through, so that the loss shows it. */
ACTIVATION_ELEMENT float activation_relu(float x) {
    return x < 0 ? 0 : x;
}

ACTIVATION_ELEMENT float activation_tanh(float x) {
    return tanhf(x);
}

ACTIVATION_ELEMENT float activation_sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* Derivatives times DY, given the activation's value Y. */
ACTIVATION_ELEMENT float activation_relu_gradient(float y, float dy) {
    return y <= 0 ? 0 : dy;
}

ACTIVATION_ELEMENT float activation_tanh_gradient(float y, float dy) {
    return dy * (1 - y * y);
}

ACTIVATION_ELEMENT float activation_sigmoid_gradient(float y, float dy) {
    return dy * (y * (1 - y));
}

#endif
