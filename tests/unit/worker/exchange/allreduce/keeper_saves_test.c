/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 writes, and when: rounds that were planned or asked for, and
 * those for which the disk is too slow. */
#include "worker/exchange/allreduce/keeper.h"

#include "tests/lib/keeper_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

static void a_planned_round_is_written_and_told(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_hand_over(fixture, 30);
    keeper_fixture_told(fixture, 1);
    assert_int_equal(keeper_seen.id[0], 30);
    assert_true(keeper_seen.written[0]);
}

/* Round 21 is under way when the chief asks: 22 is the first that can be told
 * to all ranks. */
static void an_asked_round_is_the_next_that_has_not_begun(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    assert_int_equal(keeper_seen.kind[0], CAPSTAN__CONTROL__BODY_CUT_MARK);
    assert_int_equal(keeper_seen.number[0], 21);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 22, true);
    assert_int_equal(keeper_seen.save_round, 22);
    fixture->calls->pause(fixture->calls->context, 21);
    keeper_fixture_hand_over(fixture, 22);
    keeper_seen.round = 25; /* the rounds go on before it is told */
    keeper_fixture_told(fixture, 3);
    assert_int_equal(keeper_seen.id[1], KEEPER_ASKED);
    assert_int_equal(keeper_seen.number[1], 22);
    assert_false(keeper_seen.written[1] || keeper_seen.failed[1]); /* held */
    assert_int_equal(keeper_seen.id[2], KEEPER_ASKED);
    assert_true(keeper_seen.written[2]);
}

static void what_is_under_way_is_the_highest_there_may_be(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    fixture->calls->pause(fixture->calls->context, 21);
    keeper_fixture_ask(fixture);
    assert_int_equal(keeper_seen.number[0], 22);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 23, true);
    fixture->calls->pause(fixture->calls->context, KEEPER_ROUNDS);
    keeper_fixture_ask(fixture); /* no round follows */
    assert_int_equal(keeper_seen.number[1], KEEPER_ROUNDS);
}

static void a_planned_round_before_the_asked_one_has_its_own_id(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 22, true);
    keeper_fixture_hand_over(fixture, 21);
    keeper_fixture_told(fixture, 2);
    assert_int_equal(keeper_seen.id[1], 21);
    assert_true(keeper_seen.written[1]);
}

static void a_round_that_is_only_read_is_not_saved(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 22, false);
    assert_int_equal(keeper_seen.save_round, 0);
}

static void without_a_directory_nothing_is_saved(void **state) {
    struct keeper_fixture *fixture = *state;
    fixture->plan.checkpoint_dir = NULL;
    keeper_fixture_open(fixture);
    assert_true(keeper_seen.shares);
    keeper_fixture_hand_over(fixture, 30);
    zmq_pollitem_t items[KEEPER_POLL_ITEMS];
    keeper_poll_items(fixture->keeper, items);
    assert_int_equal(zmq_poll(items, KEEPER_POLL_ITEMS, 50), 0);
}

static void *enter_round(void *argument) {
    const struct keeper_fixture *fixture = argument;
    fixture->calls->pause(fixture->calls->context, 21);
    return NULL;
}

/* WORK on THREAD does not come back in a while. */
static void expect_held_back(struct keeper_fixture *fixture, pthread_t *thread,
                             void *(*work)(void *)) {
    struct timespec until;
    assert_int_equal(pthread_create(thread, NULL, work, fixture), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50 * TIME_MS;
    until.tv_sec += until.tv_nsec / TIME_S;
    until.tv_nsec %= TIME_S;
    assert_int_equal(pthread_timedjoin_np(*thread, NULL, &until), ETIMEDOUT);
}

/* Within the deadline. */
static void expect_through(pthread_t thread) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += KEEPER_LIMIT / TIME_S;
    assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

static void until_it_is_told_the_next_round_waits(void **state) {
    struct keeper_fixture *fixture = *state;
    pthread_t thread;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    expect_held_back(fixture, &thread, enter_round);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 22, true);
    expect_through(thread);
}

static void a_round_that_waits_ends_with_the_run(void **state) {
    struct keeper_fixture *fixture = *state;
    pthread_t thread;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    expect_held_back(fixture, &thread, enter_round);
    keeper_cancel(fixture->keeper);
    expect_through(thread);
}

/* The file of round 30 lacks its last blocks when round 31 is due. */
static void what_is_due_while_another_is_written_is_left_out_and_told(
    void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_save(fixture, 30, 0);
    keeper_fixture_hand_over(fixture, 31);
    keeper_fixture_told(fixture, 1);
    assert_int_equal(keeper_seen.id[0], 31);
    assert_true(keeper_seen.failed[0]);
}

/* Nothing is being written then: to say so would be a lie. */
static void what_comes_after_the_end_is_not_said_to_be_left_out(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_cancel(fixture->keeper);
    keeper_fixture_hand_over(fixture, 30);
    keeper_step(fixture->keeper);
    assert_int_equal(keeper_seen.told, 0);
}

static void *save_due(void *argument) {
    struct keeper_fixture *fixture = argument;
    keeper_fixture_save(fixture, fixture->due, 0);
    return NULL;
}

/* The run's last, and one that was asked for: they wait for the disk. */
static void some_are_never_left_out(void **state) {
    struct keeper_fixture *fixture = *state;
    for (int asked = 0; asked < 2; asked++) {
        pthread_t thread;
        keeper_fixture_open(fixture);
        keeper_fixture_save(fixture, 30, 0);
        fixture->due = asked ? 31 : KEEPER_ROUNDS;
        if (asked)
            keeper_fixture_cut(fixture, KEEPER_ASKED, 31, true);
        expect_held_back(fixture, &thread, save_due);
        keeper_cancel(fixture->keeper);
        expect_through(thread);
        keeper_close(&fixture->keeper);
    }
}

/* The chief says so by the planned round's id. */
static void an_asked_round_that_stands_in_the_plan_only_goes_on(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_fixture_ask(fixture);
    keeper_fixture_cut(fixture, 22, 22, false);
    fixture->calls->pause(fixture->calls->context, 21);
    assert_int_equal(keeper_seen.save_round, 0);
    keeper_fixture_hand_over(fixture, 22);
    keeper_fixture_told(fixture, 2);
    assert_int_equal(keeper_seen.id[1], 22);
    assert_true(keeper_seen.written[1]);
}

static void with_nobody_training_all_ranks_hand_over_at_once(void **state) {
    struct keeper_fixture *fixture = *state;
    keeper_fixture_open(fixture);
    keeper_seen.round = KEEPER_ROUNDS;
    keeper_fixture_cut(fixture, KEEPER_ASKED, 0, false);
    assert_int_equal(keeper_seen.told, 1);
    assert_int_equal(keeper_seen.number[0], KEEPER_ROUNDS);
    assert_false(keeper_seen.saved_now);
    keeper_fixture_cut(fixture, KEEPER_ASKED, 0, true);
    assert_true(keeper_seen.saved_now);
    keeper_fixture_hand_over(fixture, KEEPER_ROUNDS);
    keeper_fixture_told(fixture, 2);
    assert_int_equal(keeper_seen.id[1], KEEPER_ASKED);
    assert_true(keeper_seen.written[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        KEEPER_TEST(a_planned_round_is_written_and_told),
        KEEPER_TEST(an_asked_round_is_the_next_that_has_not_begun),
        KEEPER_TEST(until_it_is_told_the_next_round_waits),
        KEEPER_TEST(a_round_that_waits_ends_with_the_run),
        KEEPER_TEST(what_is_under_way_is_the_highest_there_may_be),
        KEEPER_TEST(a_planned_round_before_the_asked_one_has_its_own_id),
        KEEPER_TEST(a_round_that_is_only_read_is_not_saved),
        KEEPER_TEST(without_a_directory_nothing_is_saved),
        KEEPER_TEST(what_comes_after_the_end_is_not_said_to_be_left_out),
        KEEPER_TEST(some_are_never_left_out),
        KEEPER_TEST(what_is_due_while_another_is_written_is_left_out_and_told),
        KEEPER_TEST(an_asked_round_that_stands_in_the_plan_only_goes_on),
        KEEPER_TEST(with_nobody_training_all_ranks_hand_over_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
