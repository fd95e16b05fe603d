/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/activation_oracle.h"

#include <math.h>

double activation_oracle(enum job_activation activation, double x) {
    switch (activation) {
    case JOB_RELU:
        return x < 0 ? 0 : x;
    case JOB_TANH:
        return tanh(x);
    case JOB_SIGMOID:
        return 1 / (1 + exp(-x));
    case JOB_IDENTITY:
        return x;
    }
    return NAN;
}
