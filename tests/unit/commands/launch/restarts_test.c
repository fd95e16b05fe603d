/* SPDX-License-Identifier: Apache-2.0 */
/* Which process is started again, when, and how often. */
#include "commands/launch/restarts.h"

#include "core/base/time.h"
#include "proto/messages/launch_record.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum { EXIT = 256 /* a wait status is this times the exit code */ };

static const struct restarts first_life;

static int record_in_run(void) {
    struct launch_record record = {
        .chief = "127.0.0.1:1", .run = 1, .incarnation = 2, .key = 3};
    int file = launch_record_open(1);
    launch_record_write(file, &record);
    return file;
}

TEST(only_a_process_that_is_lost_to_its_run_is_started_again) {
    static const struct {
        int wait_status;
        bool again;
    } cases[] = {
        {SIGKILL, true},     {SIGSEGV, true},     {138 * EXIT, true},
        {SIGTERM, false},    {SIGINT, false},     {SIGHUP, false},
        {0, false},          {1 * EXIT, false},   {2 * EXIT, false},
        {129 * EXIT, false}, {130 * EXIT, false}, {143 * EXIT, false},
    };
    int file = record_in_run();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            restarts_apply(&first_life, file, cases[i].wait_status),
            cases[i].again);
    launch_record_write_deaths(file, LAUNCH_RECORD_OWN);
    assert_false(restarts_apply(&first_life, file, SIGKILL));
    launch_record_write_deaths(file, 0);
    launch_record_write(file, &(struct launch_record){0}); /* has left it */
    assert_false(restarts_apply(&first_life, file, SIGKILL));
    close(file);
}

TEST(a_leader_that_is_killed_once_its_run_is_complete_has_not_failed) {
    int file = record_in_run();
    assert_int_equal(restarts_exit_code(file, SIGKILL, "chief", NULL), 137);
    launch_record_write_deaths(file, LAUNCH_RECORD_DONE);
    assert_int_equal(restarts_exit_code(file, SIGKILL, "chief", NULL), 0);
    assert_int_equal(restarts_exit_code(file, 3 * EXIT, "chief", NULL), 3);
    assert_false(restarts_apply(&first_life, file, SIGKILL));
    close(file);
}

TEST(one_that_was_started_again_may_die_before_it_joins) {
    struct restarts restarts = first_life;
    int file = launch_record_open(1);
    assert_false(restarts_apply(&restarts, file, SIGKILL));
    restarts.follows = true;
    assert_true(restarts_apply(&restarts, file, SIGKILL));
    close(file);
}

TEST(restarts_wait_longer_each_time_and_are_bounded) {
    static const double waits[] = {0, 0.5, 1, 2, 4, 8, 10, 10};
    enum { MOST = sizeof waits / sizeof *waits };
    struct restarts restarts = first_life;
    restarts_begin(&restarts);
    for (unsigned i = 0; i < MOST; i++) {
        int64_t now = time_now();
        assert_true(restarts_next(&restarts, "ps 0", SIGKILL, MOST, NULL));
        double wait = time_to_seconds(restarts.at - now);
        assert_true(wait >= waits[i] && wait < waits[i] + 0.4);
    }
    assert_false(restarts_next(&restarts, "ps 0", SIGKILL, MOST, NULL));
    restarts_now(&restarts, "ps 0", NULL); /* does not count */
    assert_true(restarts.at <= time_now());
    restarts.started_at -= 61 * TIME_S;
    assert_true(restarts_next(&restarts, "ps 0", SIGKILL, MOST, NULL));
    assert_int_equal(restarts.count, 1);
}
