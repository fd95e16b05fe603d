/* SPDX-License-Identifier: Apache-2.0 */
/* Every update rule for one element in double precision, as the papers and
 * torch.optim's pages write them. */
#ifndef CAPSTAN_RULE_ORACLE_H
#define CAPSTAN_RULE_ORACLE_H

#include "core/tensor/optimizer.h"

#include <stdint.h>

/* An element: all that a rule may remember. `sum` starts with the optimiser's
 * initial_accumulator_value, all but the weight with 0. */
struct rule_oracle {
    double weight, buffer, sum, square, mean, largest, linear;
};

/* Update number STEP, from 1, with the mean gradient G. */
void rule_oracle_step(const struct optimizer *rule, double rate, uint64_t step,
                      double g, struct rule_oracle *x);

#endif
