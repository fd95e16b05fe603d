/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/metric.h"

#include "tests/lib/test.h"

static void expect_name(enum metric metric, const char *expected) {
    char name[64];
    metric_prometheus_name(metric, name, sizeof name);
    assert_string_equal(name, expected);
}

TEST(the_name_in_prometheus_has_unit_and_kind) {
    expect_name(METRIC_TRAIN_LOSS, "capstan_train_loss");
    expect_name(METRIC_STEPS, "capstan_steps_total");
    expect_name(METRIC_INPUT_TIME, "capstan_input_time_seconds_total");
    expect_name(METRIC_SENT, "capstan_sent_bytes_total");
    expect_name(METRIC_MEMORY, "capstan_memory_bytes");
    expect_name(METRIC_ROW_BYTES, "capstan_row_bytes");
    expect_name(METRIC_CHECKPOINT_AGE, "capstan_checkpoint_age_seconds");
}

/* promtool's rules: lower case; "_total" is for counters. */
TEST(names_are_their_own_and_of_small_letters) {
    char names[METRIC_COUNT][64];
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct metric_row *row = &metric_rows[m];
        assert_true(strlen(row->name) < 32 && *row->help && row->sources);
        assert_int_equal(strspn(row->name, "abcdefghijklmnopqrstuvwxyz_"),
                         strlen(row->name));
        metric_prometheus_name(m, names[m], sizeof names[m]);
        for (int other = 0; other < m; other++)
            assert_string_not_equal(names[other], names[m]);
    }
}
