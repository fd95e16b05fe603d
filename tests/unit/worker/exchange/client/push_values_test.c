/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/client/push_values.h"

#include "proto/plan/optimizer_group.h"
#include "tests/lib/test.h"

/* Sets the first value of group 0 at CLOCK. */
static void set(struct push_values *values, uint64_t clock, double value) {
    double all[OPTIMIZER_VALUES] = {value};
    push_values_set(values, clock, 0, all);
}

/* A header of CLOCK has VALUE; 0: none. */
static void expect(struct push_values *values, uint64_t clock, double value) {
    Capstan__GroupValues **list;
    push_values_begin(values, clock);
    push_values_add(values, 0);
    push_values_add(values, 0);
    assert_int_equal(push_values_list(values, &list), value > 0);
    if (value > 0)
        assert_true(list[0]->values[0] == value);
}

TEST(each_of_three_clocks_keeps_its_values) {
    struct push_values *values = push_values_open(1);
    assert_non_null(values);
    expect(values, 4, 0);
    set(values, 5, 0.5);
    expect(values, 3, 0);
    expect(values, 4, 0);
    expect(values, 6, 0.5);
    set(values, 6, 0.6);
    set(values, 7, 0.7);
    expect(values, 5, 0.5);
    expect(values, 6, 0.6);
    expect(values, 7, 0.7);
    set(values, 9, 0.9); /* not set at 8 */
    expect(values, 7, 0.7);
    expect(values, 8, 0.7);
    expect(values, 9, 0.9);
    set(values, 99, 1);
    expect(values, 97, 0.9);
    expect(values, 98, 0.9);
    push_values_close(&values);
}
