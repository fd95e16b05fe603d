/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/optimizer_group.h"

#include "tests/lib/test.h"

enum {
    SGD = 1 << OPTIMIZER_SGD,
    ADAGRAD = 1 << OPTIMIZER_ADAGRAD,
    RMSPROP = 1 << OPTIMIZER_RMSPROP,
    ADAM = 1 << OPTIMIZER_ADAM | 1 << OPTIMIZER_ADAMW,
    FTRL = 1 << OPTIMIZER_FTRL,
    TORCH = SGD | ADAGRAD | RMSPROP | ADAM
};

TEST(a_group_takes_the_values_that_its_rule_has) {
    static const struct {
        const char *key;
        unsigned rules;
    } all[] = {
        {"lr", TORCH | FTRL},
        {"momentum", SGD | RMSPROP},
        {"dampening", SGD},
        {"weight_decay", TORCH},
        {"beta1", ADAM},
        {"beta2", ADAM},
        {"eps", ADAGRAD | RMSPROP | ADAM},
        {"alpha", RMSPROP},
        {"lr_decay", ADAGRAD},
        {"initial_accumulator_value", ADAGRAD | FTRL},
        {"learning_rate_power", FTRL},
        {"l1_regularization_strength", FTRL},
        {"l2_regularization_strength", FTRL},
        {"nesterov", SGD},
        {"maximize", TORCH},
        {"centered", RMSPROP},
        {"amsgrad", ADAM},
        {"betas", 0},
        {"type", 0},
        {"", 0},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int type = 0; type < OPTIMIZER_TYPES; type++) {
            struct optimizer_group group = {.optimizer.type =
                                                (enum optimizer_type)type};
            enum status status =
                optimizer_group_set(&group, all[k].key, 0, &failure);
            assert_int_equal(!status, all[k].rules >> type & 1);
            assert_true(!status ||
                        strstr(failure.text, "the optimizer has no"));
        }
}

/* Messages of every release carry them. */
TEST(the_numbers_of_rules_stay) {
    assert_int_equal(OPTIMIZER_SGD, 0);
    assert_int_equal(OPTIMIZER_FTRL, 5);
    assert_int_equal(OPTIMIZER_NONE, 6);
}
