#include "chief/measures.h"

#include "proto/base/time.h"
#include "tests/measures_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

static void shows(struct measures_fixture *measured, double seconds,
                  double loss) {
    measures_show(&measured->run, (int64_t)(seconds * (double)TIME_S));
    assert_true(fabs(measured->run.shown_loss - loss) <= 1e-12);
    assert_true(fabs(measured->run.shown_rate - 2) <= 1e-12);
}

/* After the beat of STEPS and LOSS_SUM it shows LOSS at SECONDS. */
static void beats_and_shows(struct measures_fixture *measured, uint64_t steps,
                            double loss_sum, double seconds, double loss) {
    measures_fixture_beat(measured, steps, loss_sum);
    shows(measured, seconds, loss);
}

static void the_loss_shown_reaches_to_the_newest_beat(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    beats_and_shows(*state, 200, 250, 10.5, 1.25);
    beats_and_shows(*state, 300, 280, 10.9, 280.0 / 300);
}

static void what_was_shown_a_second_ago_counts_no_more(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    beats_and_shows(*state, 200, 250, 11, 0.5);
    beats_and_shows(*state, 300, 280, 11.5, 0.4);
    shows(*state, 12, 0.3);
}

static void without_a_new_sample_the_last_loss_stays(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    shows(*state, 11, 2);
    shows(*state, 12, 2);
    beats_and_shows(*state, 200, 250, 12.1, 0.5);
}

#define MEASURED(f)                                                            \
    cmocka_unit_test_setup_teardown(f, measures_fixture_setup,                 \
                                    measures_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        MEASURED(the_loss_shown_reaches_to_the_newest_beat),
        MEASURED(what_was_shown_a_second_ago_counts_no_more),
        MEASURED(without_a_new_sample_the_last_loss_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
