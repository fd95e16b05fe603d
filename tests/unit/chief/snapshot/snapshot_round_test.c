/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/snapshot_round.h"

#include "tests/lib/test.h"

TEST(a_snapshot_is_one_above_the_highest_round_of_all) {
    struct snapshot_round snapshot;
    snapshot_round_query(&snapshot, 3);
    assert_false(snapshot_round_receive_highest(&snapshot, 4, 100));
    assert_false(snapshot_round_receive_highest(&snapshot, 6, 100));
    assert_int_equal(snapshot.stage, SNAPSHOT_ROUND_QUERYING);
    assert_true(snapshot_round_receive_highest(&snapshot, 5, 100));
    assert_int_equal(snapshot.round, 7);
    assert_int_equal(snapshot.stage, SNAPSHOT_ROUND_TAKING);
}

TEST(no_snapshot_is_after_the_last_round) {
    struct snapshot_round snapshot;
    snapshot_round_query(&snapshot, 2);
    assert_false(snapshot_round_receive_highest(&snapshot, 10, 10));
    assert_true(snapshot_round_receive_highest(&snapshot, 9, 10));
    assert_int_equal(snapshot.round, 10);
}

TEST(late_answers_for_an_agreed_snapshot_are_ignored) {
    struct snapshot_round snapshot;
    snapshot_round_query(&snapshot, 1);
    assert_true(snapshot_round_receive_highest(&snapshot, 3, 10));
    assert_false(snapshot_round_receive_highest(&snapshot, 8, 10));
    assert_int_equal(snapshot.round, 4);
}

TEST(a_snapshot_is_held_and_written_once_all_ps_have) {
    struct snapshot_round snapshot;
    snapshot_round_start(&snapshot, 2);
    assert_false(snapshot_round_receive_held(&snapshot));
    assert_false(snapshot_round_receive_written(
        &snapshot)); /* quick disk, slow neighbour */
    assert_true(snapshot_round_receive_held(&snapshot));
    assert_int_equal(snapshot.stage, SNAPSHOT_ROUND_HELD);
    assert_true(snapshot_round_receive_written(&snapshot));
}
