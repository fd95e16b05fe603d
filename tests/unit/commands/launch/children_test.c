/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/children.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <sys/wait.h>

static const int64_t LIMIT = 60 * TIME_S;

static void set_variable(void *context) {
    setenv("TOLD", context, 1);
}

static int end_of(struct children *children, const char *script) {
    const char *arguments[] = {"sh", "-c", script, NULL};
    struct children_command start = {.name = "child",
                                     .program = "sh",
                                     .arguments = (char *const *)arguments,
                                     .prepare = set_variable,
                                     .context = (void *)"7"};
    pid_t pid;
    int wait_status = 0;
    assert_int_equal(children_start(children, &start, &pid, NULL), STATUS_OK);
    assert_int_equal(children_wait(children, time_now() + LIMIT), SIGCHLD);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    return wait_status;
}

TEST(a_child_starts_with_its_environment_and_is_reaped) {
    struct children children;
    char text[64];
    assert_int_equal(children_open(&children, NULL, 0, NULL), STATUS_OK);
    int end = end_of(&children, "exit $TOLD");
    assert_int_equal(children_exit_code(end), 7);
    status_end_text(end, text, sizeof text);
    assert_string_equal(text, "ended with exit code 7");
    end = end_of(&children, "kill -9 $$");
    assert_int_equal(children_exit_code(end), 137);
    status_end_text(end, text, sizeof text);
    assert_string_equal(text, "was killed by signal 9 (Killed)");
    assert_int_equal(children_exit_code(end_of(&children, "read x && exit 3")),
                     1); /* nothing to read */
    children_close(&children);
}

TEST(a_missing_program_ends_with_its_code) {
    struct children children;
    const char *arguments[] = {"no-such-program", NULL};
    struct children_command start = {.name = "child",
                                     .program = arguments[0],
                                     .arguments = (char *const *)arguments,
                                     .prepare = set_variable,
                                     .context = (void *)"7"};
    pid_t pid;
    int wait_status;
    assert_int_equal(children_open(&children, NULL, 0, NULL), STATUS_OK);
    assert_int_equal(children_start(&children, &start, &pid, NULL), STATUS_OK);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_int_equal(children_exit_code(wait_status), CHILDREN_NOT_STARTED);
    children_close(&children);
}

TEST(requested_signals_are_reported_and_deadlines_kept) {
    struct children children;
    const int more[] = {SIGQUIT};
    assert_int_equal(children_open(&children, more, 1, NULL), STATUS_OK);
    assert_int_equal(children_wait(&children, time_now()), 0);
    raise(SIGQUIT);
    assert_int_equal(children_wait(&children, time_now() + LIMIT), SIGQUIT);
    raise(SIGTERM); /* too late: not the end of this process */
    children_close(&children);
}

/* A child may rely on the signal, which is nothing to the launcher. */
TEST(a_closed_output_pipe_ends_a_child_and_not_the_launcher) {
    struct children children;
    assert_int_equal(children_open(&children, NULL, 0, NULL), STATUS_OK);
    raise(SIGPIPE);
    assert_int_equal(children_exit_code(end_of(&children, "kill -PIPE $$")),
                     128 + SIGPIPE);
    children_close(&children);
}

TEST(sighup_is_handled_unless_ignored) {
    struct children children;
    assert_int_equal(children_open(&children, NULL, 0, NULL), STATUS_OK);
    raise(SIGHUP);
    assert_int_equal(children_wait(&children, time_now() + LIMIT), SIGHUP);
    children_close(&children);
    signal(SIGHUP, SIG_IGN);
    assert_int_equal(children_open(&children, NULL, 0, NULL), STATUS_OK);
    raise(SIGHUP);
    assert_int_equal(children_wait(&children, time_now()), 0);
    children_close(&children);
    signal(SIGHUP, SIG_DFL);
}
