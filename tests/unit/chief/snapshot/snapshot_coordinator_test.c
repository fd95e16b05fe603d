/* SPDX-License-Identifier: Apache-2.0 */
/* Requested snapshots of two holders, with staleness: each holds its part when
 * the order arrives, and the order to write follows. */
#include "chief/snapshot/snapshot_coordinator.h"

#include "chief/snapshot/checkpoint_policy.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

#include <unistd.h>

enum { HOLDERS = 2 };

static char folder[PATH_MAX];

static int setup(void **state) {
    run_fixture_setup(state, 1 + HOLDERS);
    struct run_fixture *fixture = *state;
    struct roster *roster = &fixture->run.roster;
    roster->num_ranks = 1;
    roster->num_ps = HOLDERS;
    for (uint32_t i = 0; i < HOLDERS; i++) {
        roster_ps(roster, i)->role = CLUSTER_PS;
        roster_ps(roster, i)->rank = ROSTER_NO_RANK;
    }
    checkpoint_fixture_folder(folder);
    fixture->job.staleness = 1;
    fixture->job.checkpoint.dir = folder;
    fixture->run.plan.num_holders = HOLDERS;
    roster->peer_limit = 60 * TIME_S;
    return checkpoint_policy_open(&fixture->run, &failure);
}

static int teardown(void **state) {
    struct run *run = &((struct run_fixture *)*state)->run;
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        free(run->snapshots.items[i].files);
    free(run->snapshots.items);
    checkpoint_policy_close(run);
    checkpoint_fixture_remove(folder);
    return run_fixture_teardown(state);
}

FIXTURE(setup, teardown);

static uint64_t request(struct run *run, struct snapshot_reason reason) {
    assert_true(snapshot_coordinator_request(run, reason, false));
    return run->snapshots.items[run->snapshots.count - 1].id;
}

static void report(struct run *run, uint32_t holder, uint64_t id,
                   Capstan__SnapshotReport__Outcome outcome) {
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    message.id = id;
    message.outcome = outcome;
    message.error = "no memory for a snapshot";
    snapshot_coordinator_receive_report(run, roster_ps(&run->roster, holder),
                                        &message);
}

TEST(a_snapshot_that_one_holder_lacks_is_given_up) {
    struct run *run = &((struct run_fixture *)*state)->run;
    uint64_t id =
        request(run, (struct snapshot_reason){
                         .save = true, .evaluate = true, .export = true});
    report(run, 0, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    assert_true(snapshot_coordinator_is_evaluating(run));
    report(run, 1, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD);
    assert_false(snapshot_coordinator_is_pending(run));
    assert_contains(run->checkpoints.last_problem, "no memory for a snapshot");
    assert_contains(run->export_problem, "no memory for a snapshot");
    report(run, 0, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN);
    assert_false(snapshot_coordinator_is_pending(run));
}

TEST(a_held_snapshot_that_is_not_written_is_still_read) {
    struct run *run = &((struct run_fixture *)*state)->run;
    uint64_t read, step,
        id = request(run,
                     (struct snapshot_reason){.save = true, .evaluate = true});
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        report(run, holder, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    report(run, 0, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    assert_true(snapshot_coordinator_take_evaluation(run, &read, &step));
    assert_int_equal(read, id);
    report(run, 1, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN);
    assert_contains(run->checkpoints.last_problem, "no memory for a snapshot");
    assert_false(snapshot_coordinator_is_saving(run));
    assert_true(snapshot_coordinator_is_pending(run));
    snapshot_coordinator_release(run, id);
    assert_false(snapshot_coordinator_is_pending(run));
}

TEST(a_file_outside_the_folder_fails_the_checkpoint) {
    struct run *run = &((struct run_fixture *)*state)->run;
    uint64_t id = request(run, (struct snapshot_reason){.save = true});
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        report(run, holder, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    message.id = id;
    message.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    message.name = "../../shard.mdb";
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        snapshot_coordinator_receive_report(
            run, roster_ps(&run->roster, holder), &message);
    assert_contains(run->checkpoints.last_problem, "outside");
    assert_null(snapshot_coordinator_next_complete(run));
}

/* A ps without blocks, of which there may be some, has no part: neither a round
 * nor a file of it counts. */
TEST(what_holds_nothing_reports_nothing) {
    struct run *run = &((struct run_fixture *)*state)->run;
    run->plan.num_holders = 1;
    uint64_t id = request(run, (struct snapshot_reason){.save = true});
    report(run, 1, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    assert_int_equal(snapshot_coordinator_find(run, id)->progress.held, 0);
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    message.id = id;
    message.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    message.name = "shard.mdb";
    snapshot_coordinator_receive_report(run, roster_ps(&run->roster, 1),
                                        &message);
    assert_null(snapshot_coordinator_next_complete(run));
    message.id = 5; /* a planned round, before there is a plan */
    run->plan.num_holders = 0;
    snapshot_coordinator_receive_report(run, roster_ps(&run->roster, 0),
                                        &message);
    assert_null(snapshot_coordinator_find(run, 5));
}

/* Both parts of ROUND are not written; is its folder there still? */
static bool keeps_folder(struct run *run, uint64_t round, bool skipped) {
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    char path[PATH_MAX];
    message.id = round;
    message.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN;
    message.error = "an earlier one was still being written";
    message.skipped = skipped;
    assert_ok(checkpoint_make_folder(folder, round, &failure));
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        snapshot_coordinator_receive_report(
            run, roster_ps(&run->roster, holder), &message);
    assert_null(snapshot_coordinator_find(run, round));
    checkpoint_folder(folder, round, path, sizeof path);
    return !access(path, F_OK);
}

/* They write it once, and the last checkpoint may be of the same step. */
TEST(what_trainers_keep_with_a_step_that_is_left_out_stays) {
    struct run *run = &((struct run_fixture *)*state)->run;
    run->job->staleness = 0;
    assert_false(keeps_folder(run, 4, true));
    run->trainers[0].keeps = true;
    assert_true(keeps_folder(run, 8, true));
    assert_false(keeps_folder(run, 12, false));
}

/* The chief before had the other part of 4. */
TEST(a_planned_round_whose_parts_do_not_come_ends_with_the_next) {
    struct run *run = &((struct run_fixture *)*state)->run;
    report(run, 0, 4, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    report(run, 0, 8, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    snapshot_coordinator_drop_before(run, 8);
    assert_null(snapshot_coordinator_find(run, 4));
    assert_non_null(snapshot_coordinator_find(run, 8));
    assert_contains(run->checkpoints.last_problem, "was not reported");
}

static void tables(struct run *run) {
    struct parameter parameter = {.name = "w", .num_dims = 1, .dims = {8}};
    struct table of[] = {{.name = "e1", .dim = 2}, {.name = "e2", .dim = 2}};
    assert_ok(layout_build(&run->plan.layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(run->plan.layout, of, 2, 4, &failure));
}

/* HOLDER's file is written, with COUNT numbers of ROWS; as a delta if it is
 * holder 1 of a snapshot that is ordered so. */
static void report_rows(struct run *run, uint32_t holder, uint64_t id,
                        uint64_t *rows, size_t count) {
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    message.id = id;
    message.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    message.name = "shard.mdb";
    message.n_rows = count;
    message.rows = rows;
    message.delta = holder && snapshot_coordinator_find(run, id)->form ==
                                  CAPSTAN__SNAPSHOT__FORM__DELTA;
    snapshot_coordinator_receive_report(run, roster_ps(&run->roster, holder),
                                        &message);
}

TEST(the_rows_of_all_holders_are_added_up) {
    struct run *run = &((struct run_fixture *)*state)->run;
    tables(run);
    uint64_t id = request(run, (struct snapshot_reason){.save = true});
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        report(run, holder, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
    report_rows(run, 0, id, (uint64_t[]){5, 3, 7, 7}, 4);
    report_rows(run, 1, id, (uint64_t[]){1, 1, 0, 0}, 4);
    const struct run_snapshot *snapshot =
        snapshot_coordinator_next_complete(run);
    assert_non_null(snapshot);
    assert_int_equal(snapshot->counts[0].rows, 6);
    assert_int_equal(snapshot->counts[0].admitted, 4);
    assert_int_equal(snapshot->counts[1].rows, 7);
    assert_int_equal(snapshot->counts[1].admitted, 7);
}

/* With staleness, a step late: the full one has precedence. */
TEST(a_delta_is_due_between_full_checkpoints) {
    struct run *run = &((struct run_fixture *)*state)->run;
    static const struct {
        uint64_t step;
        Capstan__Snapshot__Form form;
    } due[] = {{4, CAPSTAN__SNAPSHOT__FORM__UNSAVED},
               {6, CAPSTAN__SNAPSHOT__FORM__DELTA},
               {9, CAPSTAN__SNAPSHOT__FORM__UNSAVED},
               {11, CAPSTAN__SNAPSHOT__FORM__FULL},
               {14, CAPSTAN__SNAPSHOT__FORM__UNSAVED},
               {16, CAPSTAN__SNAPSHOT__FORM__DELTA}};
    tables(run);
    run->phase = RUN_TRAINING;
    run->membership.view_sent = run->metrics.began = true;
    run->plan.schedule = (struct run_schedule){.total = UINT64_MAX,
                                               .accumulation = 1,
                                               .epoch_batches = UINT64_MAX,
                                               .checkpoints = true,
                                               .every_steps = 10,
                                               .delta_every_steps = 5};
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++) {
        bool full = due[i].form == CAPSTAN__SNAPSHOT__FORM__FULL;
        run->metrics.reported = due[i].step;
        run->checkpoints.saved_at = 1;
        snapshot_coordinator_step(run, time_now());
        assert_int_equal(run->checkpoints.saved_at != 1, full);
        assert_int_equal(snapshot_coordinator_is_requesting(run),
                         due[i].form != CAPSTAN__SNAPSHOT__FORM__UNSAVED);
        if (!snapshot_coordinator_is_requesting(run))
            continue;
        struct run_snapshot *snapshot = &run->snapshots.items[0];
        assert_int_equal(snapshot->form, due[i].form);
        for (uint32_t holder = 0; holder < HOLDERS; holder++)
            report(run, holder, snapshot->id,
                   CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
        report_rows(run, 0, snapshot->id, (uint64_t[]){5, 3, 7, 7}, 4);
        report_rows(run, 1, snapshot->id, (uint64_t[]){1, 1, 0, 0}, 4);
        assert_int_equal(snapshot->delta,
                         due[i].form == CAPSTAN__SNAPSHOT__FORM__DELTA);
        snapshot_coordinator_saved(run, snapshot);
    }
}

TEST(impossible_numbers_of_rows_fail_the_checkpoint) {
    static const struct {
        uint64_t rows[6];
        size_t count;
    } cases[] = {{{5, 6, 0, 0}, 4}, /* more admitted than there are */
                 {{UINT64_MAX, 0, 0, 0}, 4},
                 {{1, 1}, 2},
                 {{0}, 0},
                 {{0}, 6}};
    struct run *run = &((struct run_fixture *)*state)->run;
    tables(run);
    for (int i = 0; i < 5; i++) {
        uint64_t id = request(run, (struct snapshot_reason){.save = true});
        uint64_t rows[6];
        memcpy(rows, cases[i].rows, sizeof rows);
        for (uint32_t holder = 0; holder < HOLDERS; holder++)
            report(run, holder, id, CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD);
        run->checkpoints.last_problem[0] = '\0';
        report_rows(run, 0, id, (uint64_t[]){1, 0, 1, 0}, 4);
        report_rows(run, 1, id, rows, cases[i].count);
        assert_contains(run->checkpoints.last_problem, "rows");
        assert_null(snapshot_coordinator_next_complete(run));
    }
}

/* It would freeze the rounds again and again. */
TEST(a_snapshot_that_was_given_up_is_not_requested_at_once) {
    struct run *run = &((struct run_fixture *)*state)->run;
    run->phase = RUN_TRAINING;
    run->membership.view_sent = run->metrics.began = true;
    run->plan.schedule = (struct run_schedule){
        .total = UINT64_MAX, .accumulation = 1, .epoch_batches = 1};
    run->checkpoints.requested = true;
    snapshot_coordinator_step(run, time_now());
    assert_int_equal(run->snapshots.count, 1);
    report(run, 0, run->snapshots.items[0].id,
           CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD);
    run->checkpoints.requested = true;
    snapshot_coordinator_step(run, time_now());
    assert_false(snapshot_coordinator_is_requesting(run));
    snapshot_coordinator_step(run, time_now() + 10 * TIME_S);
    assert_true(snapshot_coordinator_is_requesting(run));
}

/* Both holders have closed rounds up to HIGHEST. */
static void answer_query(struct run *run, uint64_t id, uint64_t highest) {
    Capstan__SnapshotPrepared prepared = CAPSTAN__SNAPSHOT_PREPARED__INIT;
    prepared.id = id;
    prepared.highest = highest;
    for (uint32_t holder = 0; holder < HOLDERS; holder++)
        snapshot_coordinator_receive_round(run, roster_ps(&run->roster, holder),
                                           &prepared);
}

/* The holders have gone on by themselves. */
TEST(answers_that_a_chief_reads_too_late_are_asked_for_again) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.staleness = 0;
    run->plan.schedule.total = 1000;
    uint64_t id = request(run, (struct snapshot_reason){.save = true});
    struct run_snapshot *snapshot = &run->snapshots.items[0];
    snapshot->began -= run->roster.peer_limit;
    answer_query(run, id, 9);
    assert_int_equal(snapshot->progress.stage, SNAPSHOT_ROUND_QUERYING);
    assert_true(snapshot->save && snapshot->id > id);
    answer_query(run, snapshot->id, 14);
    assert_int_equal(snapshot->progress.stage, SNAPSHOT_ROUND_TAKING);
    assert_int_equal(snapshot->progress.round, 15);
}

/* A signal's checkpoint may be agreed for a planned round that the leaving
 * trainers never close. */
TEST(a_request_at_a_planned_round_can_be_abandoned) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.staleness = 0;
    run->plan.schedule = (struct run_schedule){.total = 1000,
                                               .accumulation = 1,
                                               .epoch_batches = 1,
                                               .checkpoints = true,
                                               .every_steps = 10};
    answer_query(run, request(run, (struct snapshot_reason){.save = true}), 9);
    assert_true(snapshot_coordinator_is_saving(run));
    assert_int_equal(run->snapshots.items[0].step, 10);
    snapshot_coordinator_expect_planned(run, 10); /* the request replaces it */
    assert_int_equal(run->snapshots.count, 1);
    assert_true(snapshot_coordinator_abandon(run));
    assert_false(snapshot_coordinator_is_pending(run));
}
