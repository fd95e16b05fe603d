/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/snapshot_report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_written_shard_is_reported_with_its_manifest_fields(void **state) {
    const struct shard_info file = {
        .name = "ps-0-of-2-1.mdb", .size = 7, .hash = {8, 9}};
    (void)state;
    Capstan__SnapshotReport report =
        snapshot_report_written(5, &file, "here", 1.5);
    assert_int_equal(report.id, 5);
    assert_int_equal(report.outcome,
                     CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN);
    assert_string_equal(report.name, "ps-0-of-2-1.mdb");
    assert_int_equal(report.size, 7);
    assert_int_equal(report.hash_low, 8);
    assert_int_equal(report.hash_high, 9);
    assert_string_equal(report.host, "here");
    assert_true(report.seconds == 1.5);
    assert_string_equal(report.error, "");
    assert_false(report.has_step);
}

static void a_held_snapshot_reports_the_step_of_the_first_block_and_no_file(
    void **state) {
    (void)state;
    assert_false(snapshot_report_held(5, false, 30).has_step);
    Capstan__SnapshotReport report = snapshot_report_held(5, true, 30);
    assert_int_equal(report.id, 5);
    assert_true(report.has_step);
    assert_int_equal(report.step, 30);
    assert_int_equal(report.outcome, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    assert_string_equal(report.error, "");
}

static void a_snapshot_that_is_not_written_reports_why(void **state) {
    (void)state;
    Capstan__SnapshotReport report =
        snapshot_report_not_written(5, "the disk is full");
    assert_int_equal(report.id, 5);
    assert_string_equal(report.error, "the disk is full");
    assert_int_equal(report.outcome,
                     CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    assert_false(report.has_step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_shard_is_reported_with_its_manifest_fields),
        cmocka_unit_test(
            a_held_snapshot_reports_the_step_of_the_first_block_and_no_file),
        cmocka_unit_test(a_snapshot_that_is_not_written_reports_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
