/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/bound.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* 784-512-512-10 in float32. */
static const double DEMO = 669706 * 4.0;

static void expect(struct bound_case given, double steps) {
    double found = bound_steps_per_second(&given);
    if (!(found >= steps - 0.05 && found <= steps + 0.05))
        fail_msg("%u ps, %u trainers: %.3f steps/s, not %.1f", given.num_ps,
                 given.num_trainers, found, steps);
}

/* M = 2.68 MB, 1 Gbit/s: a round of 2 and 2 takes 22.4 ms. */
static void the_bound_of_four_hosts_is_the_designs(void **state) {
    (void)state;
    expect((struct bound_case){2, 2, DEMO, 1, true, false, false}, 44.6);
    expect((struct bound_case){3, 1, DEMO, 1, true, false, false}, 44.63 / 3);
    expect((struct bound_case){1, 3, DEMO, 1, true, false, false}, 44.6);
    expect((struct bound_case){2, 2, DEMO, 10, true, false, false}, 446.3);
}

static void a_ring_passes_all_but_its_own_share_twice(void **state) {
    (void)state;
    expect((struct bound_case){.num_trainers = 4,
                               .bytes = DEMO,
                               .link_gbits = 1,
                               .synchronous = true,
                               .allreduce = true},
           44.63 / 1.5);
    expect((struct bound_case){.num_trainers = 2,
                               .bytes = DEMO,
                               .link_gbits = 1,
                               .synchronous = true,
                               .allreduce = true},
           44.63);
    expect((struct bound_case){.num_trainers = 1,
                               .bytes = DEMO,
                               .link_gbits = 1,
                               .synchronous = true,
                               .allreduce = true},
           0);
}

static void without_rounds_every_trainers_pushes_count(void **state) {
    (void)state;
    expect((struct bound_case){2, 2, DEMO, 1, false, false, false}, 89.3);
    expect((struct bound_case){3, 1, DEMO, 1, false, false, false}, 44.6);
    expect((struct bound_case){1, 3, DEMO, 1, false, false, false}, 44.6);
}

static void clipping_and_half_the_bytes_double_and_halve(void **state) {
    (void)state;
    expect((struct bound_case){2, 2, DEMO, 1, true, true, false}, 22.3);
    expect((struct bound_case){2, 2, DEMO / 2, 1, true, false, false}, 89.3);
}

static void what_is_not_known_has_no_bound(void **state) {
    (void)state;
    expect((struct bound_case){2, 2, DEMO, 0, true, false, false}, 0);
    expect((struct bound_case){2, 2, 0, 1, true, false, false}, 0);
    expect((struct bound_case){2, 0, DEMO, 1, true, false, false}, 0);
}

static void a_links_payload_and_its_rate_are_each_others_inverse(void **state) {
    (void)state;
    double payload = bound_payload(1);
    assert_true(payload > 119.5e6 && payload < 119.6e6);
    double back = bound_link_gbits(payload);
    assert_true(back > 0.999999 && back < 1.000001);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_of_four_hosts_is_the_designs),
        cmocka_unit_test(a_ring_passes_all_but_its_own_share_twice),
        cmocka_unit_test(without_rounds_every_trainers_pushes_count),
        cmocka_unit_test(clipping_and_half_the_bytes_double_and_halve),
        cmocka_unit_test(what_is_not_known_has_no_bound),
        cmocka_unit_test(a_links_payload_and_its_rate_are_each_others_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
