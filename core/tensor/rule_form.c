/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/rule_form.h"

#include "core/tensor/rule.h"

static enum rule_form rmsprop_form(const struct optimizer *rule) {
    bool momentum = rule->momentum > 0 || rule->keeps_momentum;
    if (rule->centered)
        return momentum ? RULE_RMSPROP_CENTERED_MOMENTUM
                        : RULE_RMSPROP_CENTERED;
    return momentum ? RULE_RMSPROP_MOMENTUM : RULE_RMSPROP;
}

enum rule_form rule_form_of(const struct optimizer *rule) {
    switch (rule->type) {
    case OPTIMIZER_SGD:
        return rule->momentum != 0 || rule->keeps_momentum ? RULE_SGD_MOMENTUM
                                                           : RULE_SGD;
    case OPTIMIZER_ADAGRAD:
        return RULE_ADAGRAD;
    case OPTIMIZER_RMSPROP:
        return rmsprop_form(rule);
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        return rule->amsgrad ? RULE_ADAM_AMSGRAD : RULE_ADAM;
    case OPTIMIZER_FTRL:
        return rule->learning_rate_power == -0.5 ? RULE_FTRL : RULE_FTRL_POWER;
    case OPTIMIZER_NONE:
        break;
    }
    return RULE_SGD;
}

/* As in torch, the first update's buffer is the gradient itself, without
 * dampening; and there is neither dampening nor Nesterov without momentum. */
static void sgd_constants(struct rule_constants *c,
                          const struct optimizer *rule, uint64_t step) {
    c->momentum = (float)rule->momentum;
    bool momentum = rule->momentum != 0;
    c->gradient_factor =
        step <= 1 || !momentum ? 1 : (float)(1 - rule->dampening);
    c->nesterov = rule->nesterov && momentum;
}

static void rmsprop_constants(struct rule_constants *c,
                              const struct optimizer *rule) {
    c->momentum = (float)rule->momentum;
    c->first_keep = c->second_keep = (float)rule->alpha;
    c->first_take = c->second_take = (float)(1 - rule->alpha);
}

static void adam_constants(struct rule_constants *c,
                           const struct optimizer *rule, double rate,
                           uint64_t step) {
    double bias_1 = 1 - pow(rule->beta1, (double)step);
    double bias_2 = 1 - pow(rule->beta2, (double)step);
    c->first_keep = (float)rule->beta1;
    c->first_take = (float)(1 - rule->beta1);
    c->second_keep = (float)rule->beta2;
    c->second_take = (float)(1 - rule->beta2);
    c->rate = (float)(rate / bias_1);
    c->root_scale = (float)(1 / sqrt(bias_2));
    if (rule->type == OPTIMIZER_ADAMW) {
        c->weight_decay = 0;
        c->weight_keep = (float)(1 - rate * rule->weight_decay);
    }
}

static void ftrl_constants(struct rule_constants *c,
                           const struct optimizer *rule, double rate) {
    c->inverse_rate = (float)(1 / rate);
    c->l1 = (float)rule->l1;
    c->twice_l2 = (float)(2 * rule->l2);
    c->power = (float)-rule->learning_rate_power;
}

struct rule_constants rule_form_constants(const struct optimizer *rule,
                                          const struct rule_update *update) {
    struct rule_constants c = {
        .scale = rule->maximize ? -update->scale : update->scale,
        .weight_decay = (float)rule->weight_decay,
        .rate = (float)update->rate,
        .eps = (float)rule->eps,
        .weight_keep = 1,
    };
    switch (rule->type) {
    case OPTIMIZER_SGD:
        sgd_constants(&c, rule, update->step);
        break;
    case OPTIMIZER_ADAGRAD:
        c.rate = (float)(update->rate /
                         (1 + (double)(update->step - 1) * rule->lr_decay));
        break;
    case OPTIMIZER_RMSPROP:
        rmsprop_constants(&c, rule);
        break;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW:
        adam_constants(&c, rule, update->rate, update->step);
        break;
    case OPTIMIZER_FTRL:
        ftrl_constants(&c, rule, update->rate);
        break;
    case OPTIMIZER_NONE:
        break;
    }
    return c;
}
