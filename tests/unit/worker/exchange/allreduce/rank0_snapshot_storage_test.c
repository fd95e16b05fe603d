/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 writes, and when: rounds that were planned or asked for, and
 * those for which the disk is too slow. */
#define STATE struct rank0_snapshot_agent_fixture *fixture

#include "worker/exchange/allreduce/rank0_snapshot_agent.h"

#include "tests/lib/rank0_snapshot_agent_fixture.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

FIXTURE(rank0_snapshot_agent_fixture_setup,
        rank0_snapshot_agent_fixture_teardown);

TEST(a_planned_round_is_written_and_reported) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_hand_over(fixture, 30);
    rank0_snapshot_agent_fixture_await_messages(fixture, 1);
    assert_int_equal(rank0_agent_seen.id[0], 30);
    assert_true(rank0_agent_seen.written[0]);
}

/* Round 21 is under way when the chief asks: 22 is the first that can be told
 * to all ranks. */
TEST(a_requested_round_is_the_next_not_yet_started) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    assert_int_equal(rank0_agent_seen.kind[0],
                     CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED);
    assert_int_equal(rank0_agent_seen.number[0], 21);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 22, true);
    assert_int_equal(rank0_agent_seen.save_round, 22);
    fixture->calls->pause(fixture->calls->context, 21);
    rank0_snapshot_agent_fixture_hand_over(fixture, 22);
    rank0_agent_seen.round = 25; /* the rounds go on before it is told */
    rank0_snapshot_agent_fixture_await_messages(fixture, 3);
    assert_int_equal(rank0_agent_seen.id[1], RANK0_AGENT_REQUESTED);
    assert_int_equal(rank0_agent_seen.number[1], 22);
    assert_false(rank0_agent_seen.written[1] ||
                 rank0_agent_seen.failed[1]); /* held */
    assert_int_equal(rank0_agent_seen.id[2], RANK0_AGENT_REQUESTED);
    assert_true(rank0_agent_seen.written[2]);
}

TEST(the_reported_round_is_the_highest_possible_one) {
    rank0_snapshot_agent_fixture_open(fixture);
    fixture->calls->pause(fixture->calls->context, 21);
    rank0_snapshot_agent_fixture_ask(fixture);
    assert_int_equal(rank0_agent_seen.number[0], 22);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 23, true);
    fixture->calls->pause(fixture->calls->context, RANK0_AGENT_ROUNDS);
    rank0_snapshot_agent_fixture_ask(fixture); /* no round follows */
    assert_int_equal(rank0_agent_seen.number[1], RANK0_AGENT_ROUNDS);
}

TEST(a_planned_round_before_the_requested_one_has_its_own_id) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 22, true);
    rank0_snapshot_agent_fixture_hand_over(fixture, 21);
    rank0_snapshot_agent_fixture_await_messages(fixture, 2);
    assert_int_equal(rank0_agent_seen.id[1], 21);
    assert_true(rank0_agent_seen.written[1]);
}

TEST(a_round_that_is_only_read_is_not_saved) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 22, false);
    assert_int_equal(rank0_agent_seen.save_round, 0);
}

TEST(without_a_directory_nothing_is_saved) {
    fixture->plan.checkpoint_dir = NULL;
    rank0_snapshot_agent_fixture_open(fixture);
    assert_true(rank0_agent_seen.shares);
    rank0_snapshot_agent_fixture_hand_over(fixture, 30);
    zmq_pollitem_t items[RANK0_SNAPSHOT_AGENT_POLL_ITEMS];
    rank0_snapshot_agent_poll_items(fixture->rank0_snapshot_agent, items);
    assert_int_equal(zmq_poll(items, RANK0_SNAPSHOT_AGENT_POLL_ITEMS, 50), 0);
}

static void *begin_round(void *argument) {
    const struct rank0_snapshot_agent_fixture *fixture = argument;
    fixture->calls->pause(fixture->calls->context, 21);
    return NULL;
}

/* WORK on THREAD does not come back in a while. */
static void expect_blocked(struct rank0_snapshot_agent_fixture *fixture,
                           pthread_t *thread, void *(*work)(void *)) {
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
    until.tv_sec += RANK0_AGENT_DEADLINE / TIME_S;
    assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

TEST(the_next_round_waits_until_the_save_is_reported) {
    pthread_t thread;
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    expect_blocked(fixture, &thread, begin_round);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 22, true);
    expect_through(thread);
}

TEST(a_waiting_round_ends_with_the_run) {
    pthread_t thread;
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    expect_blocked(fixture, &thread, begin_round);
    rank0_snapshot_agent_cancel(fixture->rank0_snapshot_agent);
    expect_through(thread);
}

/* The file of round 30 lacks its last blocks when round 31 is due. */
TEST(a_round_due_during_a_write_is_skipped_and_reported) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_save(fixture, 30, 0);
    rank0_snapshot_agent_fixture_hand_over(fixture, 31);
    rank0_snapshot_agent_fixture_await_messages(fixture, 1);
    assert_int_equal(rank0_agent_seen.id[0], 31);
    assert_true(rank0_agent_seen.failed[0]);
}

/* Nothing is being written then: to say so would be a lie. */
TEST(rounds_after_the_end_are_not_reported_as_skipped) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_cancel(fixture->rank0_snapshot_agent);
    rank0_snapshot_agent_fixture_hand_over(fixture, 30);
    rank0_snapshot_agent_step(fixture->rank0_snapshot_agent);
    assert_int_equal(rank0_agent_seen.num_sent, 0);
}

/* The run's last, and one that was asked for: they wait for the disk. The file
 * of round 30 lacks all blocks but the first until they have been handed
 * over. */
TEST(required_rounds_are_never_skipped) {
    for (unsigned asked = 0; asked < 2; asked++) {
        uint64_t id = asked ? RANK0_AGENT_REQUESTED : RANK0_AGENT_ROUNDS;
        rank0_agent_seen.num_sent = 0;
        rank0_snapshot_agent_fixture_open(fixture);
        rank0_snapshot_agent_fixture_save(fixture, 30, 0);
        if (asked)
            rank0_snapshot_agent_fixture_cut(fixture, id, 31, true);
        rank0_snapshot_agent_fixture_hand_over(fixture, asked ? 31 : id);
        for (uint32_t b = 1; b < fixture->plan.layout->num_blocks; b++)
            rank0_snapshot_agent_fixture_save(fixture, 30, b);
        rank0_snapshot_agent_fixture_await_messages(fixture, 2 + asked);
        for (unsigned i = asked; i < 2 + asked; i++) {
            assert_int_equal(rank0_agent_seen.id[i], i == asked ? 30 : id);
            assert_true(rank0_agent_seen.written[i]);
        }
        rank0_snapshot_agent_close(&fixture->rank0_snapshot_agent);
    }
}

static void *hand_over_last(void *argument) {
    rank0_snapshot_agent_fixture_hand_over(argument, RANK0_AGENT_ROUNDS);
    return NULL;
}

/* The copies of a round are more than the limit of 1 MiB, and none of the last
 * round's is written while the file of round 30 lacks its smallest block, for
 * which there is room. */
TEST(a_round_waits_for_the_disk_at_the_copy_limit) {
    const struct layout *layout = fixture->plan.layout;
    uint32_t smallest = 0;
    pthread_t thread;
    fixture->job.checkpoint.copy_mb = 1;
    rank0_snapshot_agent_fixture_open(fixture);
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        if (layout->blocks[b].elements < layout->blocks[smallest].elements)
            smallest = b;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        if (b != smallest)
            rank0_snapshot_agent_fixture_save(fixture, 30, b);
    expect_blocked(fixture, &thread, hand_over_last);
    rank0_snapshot_agent_fixture_save(fixture, 30, smallest);
    expect_through(thread);
    rank0_snapshot_agent_fixture_await_messages(fixture, 2);
    assert_int_equal(rank0_agent_seen.id[1], RANK0_AGENT_ROUNDS);
    assert_true(rank0_agent_seen.written[1]);
}

TEST(a_wait_at_the_copy_limit_ends_with_the_run) {
    pthread_t thread;
    fixture->job.checkpoint.copy_mb = 1;
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_save(fixture, 30, 0);
    expect_blocked(fixture, &thread, hand_over_last);
    rank0_snapshot_agent_cancel(fixture->rank0_snapshot_agent);
    expect_through(thread);
}

/* The chief says so by the planned round's id. */
TEST(a_requested_round_that_is_planned_is_saved_once) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_snapshot_agent_fixture_ask(fixture);
    rank0_snapshot_agent_fixture_cut(fixture, 22, 0, false);
    fixture->calls->pause(fixture->calls->context, 21);
    assert_int_equal(rank0_agent_seen.save_round, 0);
    rank0_snapshot_agent_fixture_hand_over(fixture, 22);
    rank0_snapshot_agent_fixture_await_messages(fixture, 2);
    assert_int_equal(rank0_agent_seen.id[1], 22);
    assert_true(rank0_agent_seen.written[1]);
}

TEST(without_training_all_ranks_hand_over_at_once) {
    rank0_snapshot_agent_fixture_open(fixture);
    rank0_agent_seen.round = RANK0_AGENT_ROUNDS;
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 0, false);
    rank0_snapshot_agent_fixture_await_messages(fixture, 1);
    assert_int_equal(rank0_agent_seen.number[0], RANK0_AGENT_ROUNDS);
    assert_false(rank0_agent_seen.saved_now);
    rank0_snapshot_agent_fixture_cut(fixture, RANK0_AGENT_REQUESTED, 0, true);
    assert_true(rank0_agent_seen.saved_now);
    rank0_snapshot_agent_fixture_hand_over(fixture, RANK0_AGENT_ROUNDS);
    rank0_snapshot_agent_fixture_await_messages(fixture, 2);
    assert_int_equal(rank0_agent_seen.id[1], RANK0_AGENT_REQUESTED);
    assert_true(rank0_agent_seen.written[1]);
}
