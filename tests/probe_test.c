#include "model/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Between what no machine reaches and what none needs. */
static void expect(double seconds, double least, double most) {
    if (!(seconds >= least && seconds <= most))
        fail_msg("%g s", seconds);
}

static void costs_are_those_of_a_machine(void **state) {
    (void)state;
    struct optimizer rule = {
        .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct model_costs costs = {.step = 5};
    struct failure why = {0};
    enum status status = probe_costs(&costs, &rule, 0.1, &why);
    if (status)
        fail_msg("%s", why.text);
    expect(costs.message, 1e-8, 1e-2);
    expect(costs.send_byte, 0, 1e-7);
    expect(costs.receive_byte, 0, 1e-7);
    expect(costs.copy_byte, 1e-13, 1e-7);
    expect(costs.update_byte + costs.gradient_byte, 1e-13, 1e-7);
    assert_true(costs.step == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_those_of_a_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
