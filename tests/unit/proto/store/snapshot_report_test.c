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
    Capstan__SnapshotDone done = snapshot_report_written(5, &file, "here", 1.5);
    assert_int_equal(done.id, 5);
    assert_true(done.written);
    assert_string_equal(done.name, "ps-0-of-2-1.mdb");
    assert_int_equal(done.size, 7);
    assert_int_equal(done.hash_low, 8);
    assert_int_equal(done.hash_high, 9);
    assert_string_equal(done.holder, "here");
    assert_true(done.seconds == 1.5);
    assert_string_equal(done.error, "");
    assert_false(done.has_step);
}

static void a_held_snapshot_reports_the_step_of_the_first_block_and_no_file(
    void **state) {
    (void)state;
    assert_false(snapshot_report_captured(5, false, 30).has_step);
    Capstan__SnapshotDone done = snapshot_report_captured(5, true, 30);
    assert_int_equal(done.id, 5);
    assert_true(done.has_step);
    assert_int_equal(done.step, 30);
    assert_false(done.written);
    assert_string_equal(done.error, "");
}

static void a_failed_snapshot_reports_why(void **state) {
    (void)state;
    Capstan__SnapshotDone done = snapshot_report_failed(5, "the disk is full");
    assert_int_equal(done.id, 5);
    assert_string_equal(done.error, "the disk is full");
    assert_false(done.written || done.has_step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_shard_is_reported_with_its_manifest_fields),
        cmocka_unit_test(
            a_held_snapshot_reports_the_step_of_the_first_block_and_no_file),
        cmocka_unit_test(a_failed_snapshot_reports_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
