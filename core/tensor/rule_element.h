/* SPDX-License-Identifier: Apache-2.0 */
/* The rules' arithmetic for one element: plain float operations, in the order
 * written here on every device. A file for another device may define
 * RULE_ELEMENT as its function qualifiers before it includes this one.
 *
 * Each function takes the round's gradient (summed, not yet scaled), the weight
 * and the state slots in its row's order, updates the slots and returns the new
 * weight. Sources: torch.optim's documented algorithms;
 * tf.raw_ops.ApplyFtrl. */
#ifndef CAPSTAN_RULE_ELEMENT_H
#define CAPSTAN_RULE_ELEMENT_H

#include <math.h>
#include <stdint.h>

#ifndef RULE_ELEMENT
#define RULE_ELEMENT static inline
#endif

enum { RULE_MAX_SLOTS = 3, RULE_PIECE = 16384 };

/* Rules with the options that determine their slots: ROW(the form's enumerator,
 * NAME of its function rule_NAME below, its number of slots, their names in
 * checkpoints, as in torch's or TensorFlow's state, or NULL). The loops, the
 * kernels and the names follow from these rows. */
#define RULE_ROWS(ROW)                                                         \
    ROW(SGD, sgd, 0, NULL)                                                     \
    ROW(SGD_MOMENTUM, sgd_momentum, 1, "momentum_buffer")                      \
    ROW(ADAGRAD, adagrad, 1, "sum")                                            \
    ROW(RMSPROP, rmsprop, 1, "square_avg")                                     \
    ROW(RMSPROP_MOMENTUM, rmsprop_momentum, 2, "square_avg",                   \
        "momentum_buffer")                                                     \
    ROW(RMSPROP_CENTERED, rmsprop_centered, 2, "square_avg", "grad_avg")       \
    ROW(RMSPROP_CENTERED_MOMENTUM, rmsprop_centered_momentum, 3, "square_avg", \
        "momentum_buffer", "grad_avg")                                         \
    ROW(ADAM, adam, 2, "exp_avg", "exp_avg_sq")                                \
    ROW(ADAM_AMSGRAD, adam_amsgrad, 3, "exp_avg", "exp_avg_sq",                \
        "max_exp_avg_sq")                                                      \
    ROW(FTRL, ftrl, 2, "accum", "linear")                                      \
    ROW(FTRL_POWER, ftrl_power, 2, "accum", "linear")

#define RULE_FORM(FORM, name, slots, ...) RULE_##FORM,
enum rule_form { RULE_ROWS(RULE_FORM) RULE_FORMS };

/* Values common to all elements of one update, computed in double; without
 * padding. */
struct rule_constants {
    float scale;        /* of the sum; negative to maximise */
    float weight_decay; /* coupled: added to the gradient */
    float rate;         /* Adam: corrected by beta1's bias */
    float eps;
    float momentum, gradient_factor; /* factors of buffer and gradient */
    uint32_t nesterov;               /* 0 or 1 */
    float weight_keep;               /* AdamW: decoupled decay, else 1 */
    float first_keep, first_take;    /* average of the gradient */
    float second_keep, second_take;  /* average of its square */
    float root_scale;                /* beta2's bias: 1 / sqrt(1 - beta2^t) */
    float inverse_rate;              /* Ftrl, as the next three */
    float l1, twice_l2;
    float power; /* -learning_rate_power */
};

RULE_ELEMENT float rule_gradient(const struct rule_constants *c, float sum,
                                 float weight) {
    return c->scale * sum + c->weight_decay * weight;
}

RULE_ELEMENT float rule_sgd(const struct rule_constants *c, float sum,
                            float weight, float *slots) {
    (void)slots;
    return weight - c->rate * rule_gradient(c, sum, weight);
}

RULE_ELEMENT float rule_sgd_momentum(const struct rule_constants *c, float sum,
                                     float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    slots[0] = c->momentum * slots[0] + c->gradient_factor * gradient;
    float ahead = gradient + c->momentum * slots[0];
    return weight - c->rate * (c->nesterov ? ahead : slots[0]);
}

RULE_ELEMENT float rule_adagrad(const struct rule_constants *c, float sum,
                                float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    slots[0] += gradient * gradient;
    return weight - c->rate * (gradient / (sqrtf(slots[0]) + c->eps));
}

RULE_ELEMENT void rule_average_square(const struct rule_constants *c,
                                      float gradient, float *average) {
    *average =
        c->second_keep * *average + c->second_take * (gradient * gradient);
}

/* The gradient divided by the root of its mean square, or of its variance if
 * MEAN is not 0. Rounding may make a variance near 0 negative. */
RULE_ELEMENT float rule_normalised(const struct rule_constants *c,
                                   float gradient, float square, float mean) {
    float variance = square - mean * mean;
    variance = variance < 0 ? 0 : variance;
    return gradient / (sqrtf(variance) + c->eps);
}

RULE_ELEMENT float rule_rmsprop(const struct rule_constants *c, float sum,
                                float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    rule_average_square(c, gradient, &slots[0]);
    return weight - c->rate * rule_normalised(c, gradient, slots[0], 0);
}

RULE_ELEMENT float rule_rmsprop_momentum(const struct rule_constants *c,
                                         float sum, float weight,
                                         float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    rule_average_square(c, gradient, &slots[0]);
    slots[1] =
        c->momentum * slots[1] + rule_normalised(c, gradient, slots[0], 0);
    return weight - c->rate * slots[1];
}

RULE_ELEMENT float rule_rmsprop_centered(const struct rule_constants *c,
                                         float sum, float weight,
                                         float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    rule_average_square(c, gradient, &slots[0]);
    slots[1] = c->first_keep * slots[1] + c->first_take * gradient;
    return weight - c->rate * rule_normalised(c, gradient, slots[0], slots[1]);
}

RULE_ELEMENT float rule_rmsprop_centered_momentum(
    const struct rule_constants *c, float sum, float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    rule_average_square(c, gradient, &slots[0]);
    slots[2] = c->first_keep * slots[2] + c->first_take * gradient;
    slots[1] = c->momentum * slots[1] +
               rule_normalised(c, gradient, slots[0], slots[2]);
    return weight - c->rate * slots[1];
}

/* Adam and AdamW. */
RULE_ELEMENT float rule_adam(const struct rule_constants *c, float sum,
                             float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    slots[0] = c->first_keep * slots[0] + c->first_take * gradient;
    rule_average_square(c, gradient, &slots[1]);
    float root = sqrtf(slots[1]) * c->root_scale + c->eps;
    return weight * c->weight_keep - c->rate * (slots[0] / root);
}

RULE_ELEMENT float rule_adam_amsgrad(const struct rule_constants *c, float sum,
                                     float weight, float *slots) {
    float gradient = rule_gradient(c, sum, weight);
    slots[0] = c->first_keep * slots[0] + c->first_take * gradient;
    rule_average_square(c, gradient, &slots[1]);
    slots[2] = slots[2] > slots[1] ? slots[2] : slots[1];
    float root = sqrtf(slots[2]) * c->root_scale + c->eps;
    return weight * c->weight_keep - c->rate * (slots[0] / root);
}

/* BEFORE and AFTER: the accumulator to the power. The clamp gives ApplyFtrl's
 * weight of 0 where |linear| <= l1, and passes a NaN. */
RULE_ELEMENT float rule_ftrl_weight(const struct rule_constants *c,
                                    float gradient, float weight, float before,
                                    float after, float *linear) {
    *linear += gradient - (after - before) * c->inverse_rate * weight;
    float clamped = *linear > c->l1 ? c->l1 : *linear;
    clamped = clamped < -c->l1 ? -c->l1 : clamped;
    return (clamped - *linear) / (after * c->inverse_rate + c->twice_l2);
}

/* Ftrl with learning_rate_power -0.5, its default. */
RULE_ELEMENT float rule_ftrl(const struct rule_constants *c, float sum,
                             float weight, float *slots) {
    float gradient = c->scale * sum;
    float before = sqrtf(slots[0]);
    slots[0] += gradient * gradient;
    float after = sqrtf(slots[0]);
    return rule_ftrl_weight(c, gradient, weight, before, after, &slots[1]);
}

/* Ftrl with another power. */
RULE_ELEMENT float rule_ftrl_power(const struct rule_constants *c, float sum,
                                   float weight, float *slots) {
    float gradient = c->scale * sum;
    float before = powf(slots[0], c->power);
    slots[0] += gradient * gradient;
    float after = powf(slots[0], c->power);
    return rule_ftrl_weight(c, gradient, weight, before, after, &slots[1]);
}

#endif
