/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/rule_oracle.h"

#include <math.h>

static void exact_sgd(const struct optimizer *rule, double rate, uint64_t step,
                      double g, struct rule_oracle *x) {
    g += rule->weight_decay * x->weight;
    if (rule->momentum != 0) {
        if (step == 1)
            x->buffer = g;
        else
            x->buffer = rule->momentum * x->buffer + (1 - rule->dampening) * g;
        g = rule->nesterov ? g + rule->momentum * x->buffer : x->buffer;
    }
    x->weight -= rate * g;
}

static void exact_adagrad(const struct optimizer *rule, double rate,
                          uint64_t step, double g, struct rule_oracle *x) {
    g += rule->weight_decay * x->weight;
    rate /= 1 + (double)(step - 1) * rule->lr_decay;
    x->sum += g * g;
    x->weight -= rate * g / (sqrt(x->sum) + rule->eps);
}

static void exact_rmsprop(const struct optimizer *rule, double rate, double g,
                          struct rule_oracle *x) {
    g += rule->weight_decay * x->weight;
    x->square = rule->alpha * x->square + (1 - rule->alpha) * g * g;
    double variance = x->square;
    if (rule->centered) {
        x->mean = rule->alpha * x->mean + (1 - rule->alpha) * g;
        variance -= x->mean * x->mean;
    }
    double move = g / (sqrt(variance) + rule->eps);
    if (rule->momentum > 0)
        move = x->buffer = rule->momentum * x->buffer + move;
    x->weight -= rate * move;
}

static void exact_adam(const struct optimizer *rule, double rate, uint64_t step,
                       double g, struct rule_oracle *x) {
    if (rule->type == OPTIMIZER_ADAMW)
        x->weight -= rate * rule->weight_decay * x->weight;
    else
        g += rule->weight_decay * x->weight;
    x->mean = rule->beta1 * x->mean + (1 - rule->beta1) * g;
    x->square = rule->beta2 * x->square + (1 - rule->beta2) * g * g;
    x->largest = fmax(x->largest, x->square);
    double mean = x->mean / (1 - pow(rule->beta1, (double)step));
    double square = (rule->amsgrad ? x->largest : x->square) /
                    (1 - pow(rule->beta2, (double)step));
    x->weight -= rate * mean / (sqrt(square) + rule->eps);
}

static void exact_ftrl(const struct optimizer *rule, double rate, double g,
                       struct rule_oracle *x) {
    double power = -rule->learning_rate_power;
    double sum = x->sum + g * g;
    double sigma = (pow(sum, power) - pow(x->sum, power)) / rate;
    x->linear += g - sigma * x->weight;
    x->sum = sum;
    double quadratic = pow(sum, power) / rate + 2 * rule->l2;
    if (fabs(x->linear) > rule->l1)
        x->weight = (copysign(rule->l1, x->linear) - x->linear) / quadratic;
    else
        x->weight = 0;
}

void rule_oracle_step(const struct optimizer *rule, double rate, uint64_t step,
                      double g, struct rule_oracle *x) {
    if (rule->maximize)
        g = -g;
    switch (rule->type) {
    case OPTIMIZER_SGD:
        exact_sgd(rule, rate, step, g, x);
        break;
    case OPTIMIZER_ADAGRAD:
        exact_adagrad(rule, rate, step, g, x);
        break;
    case OPTIMIZER_RMSPROP:
        exact_rmsprop(rule, rate, g, x);
        break;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        exact_adam(rule, rate, step, g, x);
        break;
    case OPTIMIZER_FTRL:
        exact_ftrl(rule, rate, g, x);
        break;
    case OPTIMIZER_NONE:
        break;
    }
}
