/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes of a launch end: by the chief, by a signal, by their own
 * fault, or because whoever launched them is gone. */
#define STATE struct launch_fixture *set

#include "commands/launch/launch.h"

#include "core/base/time.h"
#include "tests/lib/launch_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

FIXTURE(launch_fixture_setup, launch_fixture_teardown);

/* A shell misses a signal that comes just before its `read` blocks. */
#define AWAIT_SIGNAL "sleep 600 & wait"

TEST(the_exit_code_is_the_chiefs) {
    launch_fixture_set_program(set, "[ $me = chief ] && exit 7; exit 0");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 7);
    assert_string_equal(set->log, "");
}

TEST(a_killed_chief_is_named_with_its_signal) {
    launch_fixture_set_program(set, "[ $me = chief ] && kill -9 $$; exit 0");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 128 + SIGKILL);
    launch_fixture_expect_log(set, "the chief was killed by signal 9 (Killed)");
}

/* A command without a handler, because a ps has found its job wrong. */
TEST(a_leader_that_dies_with_the_others_is_not_reported) {
    launch_fixture_set_program(set, "[ $me = chief ] && exec sleep 60; exit 2");
    assert_int_equal(launch_fixture_run(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_CONFIG);
    launch_fixture_expect_log(set, "ps 0 ended the run");
    assert_null(strstr(set->log, "the chief"));
}

TEST(what_a_process_leaves_behind_is_killed) {
    char path[128], byte;
    snprintf(path, sizeof path, "%s/first", set->dir);
    struct pollfd left = {open(path, O_RDONLY | O_NONBLOCK), POLLIN, 0};
    launch_fixture_set_program(set, "exec 9> first; sleep 60 & exit 0");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(poll(&left, 1, 30000), 1);
    assert_int_equal(read(left.fd, &byte, 1), 0); /* no writer is left */
    close(left.fd);
}

/* The server ends on SIGTERM, the worker does not. */
TEST(a_process_that_outlives_the_chief_is_terminated_then_killed) {
    launch_fixture_set_program(
        set, "case $me in\n"
             "chief) read x < first; exit 0 ;;\n"
             "ps) exec sleep 60 ;;\n"
             "worker) trap '' TERM; echo > first; exec sleep 60 ;;\n"
             "esac");
    assert_int_equal(launch_fixture_run(set, 1, 1, 0.2), STATUS_OK);
    assert_int_equal(set->exit_code, 0);
    launch_fixture_expect_log(set, "warning: ps 0 (pid ");
    launch_fixture_expect_log(
        set, ") still runs 0.2 s (timeouts.stop) after the chief");
    char *killed = strstr(set->log, "does not end on SIGTERM: killed");
    assert_non_null(killed);
    assert_null(strstr(killed + 1, "does not end"));
    while (killed > set->log && killed[-1] != '\n')
        killed--;
    assert_memory_equal(strstr(killed, "worker 0"), "worker 0", 8);
}

TEST(a_failed_chief_is_not_waited_for_long) {
    int64_t began = time_now();
    launch_fixture_set_program(set,
                               "[ $me = chief ] && exit 138\nexec sleep 60");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 138);
    assert_true(time_now() - began < 20 * TIME_S);
    launch_fixture_expect_log(set,
                              "chief ended the run: its own lines say why\n");
    assert_null(strstr(set->log, "still runs"));
}

/* The chief signals its launcher once the worker waits for the chief's end. */
static void forward(struct launch_fixture *set, const char *name, int code) {
    launch_fixture_set_program(
        set,
        textf("case $me in\n"
              "chief) trap 'exit %d' %s; exec 3> first\n"
              "    kill -%s $PPID; " AWAIT_SIGNAL " ;;\n"
              "worker) trap ': > told; exit 0' TERM INT; read x < first ;;\n"
              "esac\n"
              "exit 0",
              code, name, name));
    assert_int_equal(launch_fixture_run(set, 0, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, code);
    assert_int_equal(launch_fixture_count(set, "told"), 0);
}

TEST(sigterm_is_forwarded_only_to_the_chief) {
    forward(set, "TERM", 143);
}

TEST(sigint_is_forwarded_only_to_the_chief) {
    forward(set, "INT", 130);
}

TEST(a_chief_that_ignores_the_signal_is_killed) {
    launch_fixture_set_program(set,
                               "[ $me = chief ] || exit 0\n"
                               "trap '' TERM; kill -TERM $PPID; exec sleep 60");
    assert_int_equal(launch_fixture_run(set, 0, 1, 0.1), STATUS_OK);
    assert_int_equal(set->exit_code, 128 + SIGKILL);
    launch_fixture_expect_log(set,
                              "timeouts.grace + timeouts.stop (0.2 s): killed");
}

/* A process writes its place in a run here (launch_record.h): it has joined. */
#define JOIN "echo > /proc/self/fd/${CAPSTAN_MEMBER_RECORD%:*}; "

TEST(an_early_death_is_named_and_the_run_continues) {
    launch_fixture_set_program(
        set, "case $me in\n"
             "chief) read pid < first\n"
             "    while kill -0 $pid 2> /dev/null; do :; done; exit 5 ;;\n"
             "worker) " JOIN "echo $$ > first; kill -9 $$ ;;\n"
             "esac");
    assert_int_equal(launch_fixture_run(set, 0, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 5);
    launch_fixture_expect_log(
        set, "worker 0 was killed by signal 9 (Killed) while the "
             "chief still runs");
}

/* The chief would wait for it, and nobody starts it again. */
TEST(a_death_before_the_join_ends_the_run) {
    launch_fixture_set_program(
        set, "[ $me = chief ] || { read x < first; kill -9 $$; }\n"
             "trap 'exit 143' TERM; echo > first; " AWAIT_SIGNAL);
    assert_int_equal(launch_fixture_run(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_RETRY);
    launch_fixture_expect_log(set,
                              "ps 0 ended the run: before it had joined it "
                              "was killed by signal 9 (Killed)\n");
}

TEST(a_chief_that_fails_after_a_childs_death_is_the_cause) {
    launch_fixture_set_program(
        set, "[ $me = chief ] || { read x < first; exit 138; }\n"
             "trap 'exit 1' TERM; echo > first; " AWAIT_SIGNAL);
    assert_int_equal(launch_fixture_run(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_FAILED);
    assert_null(strstr(set->log, "ps 0 ended the run"));
}

TEST(a_configuration_error_of_one_process_ends_the_run) {
    launch_fixture_set_program(set, "[ $me = chief ] || exit 2\n"
                                    "trap 'exit 143' TERM; " AWAIT_SIGNAL);
    assert_int_equal(launch_fixture_run(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_CONFIG);
    assert_contains(set->log, "ps 0 ended the run: its own lines");
}

/* Its end with the code of the run is noticed before the chief's. */
TEST(a_process_informed_of_a_configuration_error_is_not_its_cause) {
    launch_fixture_set_program(
        set, "[ $me = chief ] || { read x < first; exit 2; }\n"
             "trap 'exit 2' TERM; echo > first; " AWAIT_SIGNAL);
    assert_int_equal(launch_fixture_run(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_CONFIG);
    assert_null(strstr(set->log, "ps 0 ended the run"));
    launch_fixture_expect_log(set,
                              "chief ended the run: its own lines say why\n");
}

/* Each process holds the pipe open: its end is theirs. */
TEST(no_process_outlives_a_killed_launcher) {
    char path[128], byte;
    snprintf(path, sizeof path, "%s/first", set->dir);
    launch_fixture_set_program(set, "exec 3> first; echo >&3; exec sleep 60");
    int first = open(path, O_RDONLY | O_NONBLOCK);
    pid_t launcher = fork();
    if (launcher == 0)
        _exit(launch_fixture_run(set, 1, 1, 60));
    struct pollfd waited = {.fd = first, .events = POLLIN};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(poll(&waited, 1, 60000), 1);
        if (read(first, &byte, 1) != 1)
            i--; /* a hang-up between two of them */
    }
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    assert_int_equal(poll(&waited, 1, 60000), 1);
    assert_int_equal(read(first, &byte, 1), 0);
    close(first);
}

TEST(a_missing_program_is_named) {
    assert_fails(launch_fixture_run(set, 1, 1, 1), &set->why,
                 FAILURE_PROGRAM_MISSING);
    assert_contains(set->why.text, set->program);
}

TEST(signal_handlers_are_restored) {
    sigset_t before, after;
    struct sigaction ignored = {.sa_handler = SIG_IGN}, child;
    sigaction(SIGCHLD, &ignored, NULL);
    sigprocmask(SIG_SETMASK, NULL, &before);
    launch_fixture_set_program(
        set, "[ $me = chief ] || exit 0\n"
             "trap '' TERM; kill -TERM $PPID; kill -TERM $PPID; exit 3");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 3);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < SIGRTMIN; number++)
        assert_int_equal(sigismember(&before, number),
                         sigismember(&after, number));
    sigaction(SIGCHLD, NULL, &child);
    assert_ptr_equal(child.sa_handler, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
}
