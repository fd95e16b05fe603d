/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/children.h"

#include "core/base/log.h"
#include "core/base/time.h"
#include "proto/messages/launch_record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* A blocked signal is queued even if it is ignored, so an ignored SIGHUP stays
 * unblocked. */
void children_add_termination_signals(sigset_t *signals) {
    struct sigaction hang_up;
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    if (!sigaction(SIGHUP, NULL, &hang_up) && hang_up.sa_handler != SIG_IGN)
        sigaddset(signals, SIGHUP);
}

/* If the parent ignores SIGCHLD, that is inherited, and children would leave no
 * status to wait for. */
static void children_block_signals(struct children_saved_signals *saved_signals,
                                   const sigset_t *blocked) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    sigprocmask(SIG_BLOCK, blocked, &saved_signals->mask);
    sigaction(SIGCHLD, &plain, &saved_signals->child);
    sigaction(SIGPIPE, &ignored, &saved_signals->pipe);
}

/* Restores the settings in SAVED_SIGNALS. */
static void children_restore_signals(
    const struct children_saved_signals *saved_signals) {
    sigaction(SIGCHLD, &saved_signals->child, NULL);
    sigaction(SIGPIPE, &saved_signals->pipe, NULL);
    sigprocmask(SIG_SETMASK, &saved_signals->mask, NULL);
}

enum status children_open(struct children *children, const int *more,
                          unsigned count, struct failure *why) {
    sigset_t blocked;
    sigemptyset(&blocked);
    children_add_termination_signals(&blocked);
    sigaddset(&blocked, SIGCHLD);
    for (unsigned i = 0; i < count; i++)
        sigaddset(&blocked, more[i]);
    children_block_signals(&children->saved_signals, &blocked);
    children->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (children->signals < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "taking signals");
    return STATUS_OK;
}

/* A pending signal would otherwise kill the launcher and replace its exit code.
 */
void children_close(struct children *children) {
    struct signalfd_siginfo late;
    while (children->signals >= 0 &&
           read(children->signals, &late, sizeof late) == sizeof late)
        ;
    if (children->signals >= 0)
        close(children->signals);
    children_restore_signals(&children->saved_signals);
}

/* In a process group of its own it does not get the terminal's Ctrl-C. */
static void children_detach(
    pid_t parent, const struct children_saved_signals *saved_signals) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before prctl took effect */
        _exit(CHILDREN_NOT_STARTED);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    if (nothing > STDERR_FILENO)
        close(nothing);
    children_restore_signals(saved_signals);
}

/* Runs in the child: logs why the program cannot be started, and what helps. */
static void log_not_started(const struct children_command *start, int error) {
    char own[PATH_MAX] = "", hint[PATH_MAX + 64] = "";
    bool in_path = error == ENOENT && !strchr(start->program, '/');
    if (in_path && readlink("/proc/self/exe", own, sizeof own - 1) > 0)
        snprintf(hint, sizeof hint,
                 "; it is not on the PATH: give its path, as this one's, %s",
                 own);
    log_error(start->log, "process_not_started", "%s: starting %s: %s%s",
              start->name, start->program, strerror(error), hint);
}

enum status children_start(const struct children *children,
                           const struct children_command *start, pid_t *pid,
                           struct failure *why) {
    pid_t launcher = getpid();
    *pid = fork();
    if (*pid == 0) {
        children_detach(launcher, &children->saved_signals);
        if (!start->writes_stdout)
            dup2(STDERR_FILENO, STDOUT_FILENO);
        launch_record_pass(start->record);
        start->prepare(start->context);
        execvp(start->program, start->arguments);
        if (start->log)
            log_not_started(start, errno);
        _exit(CHILDREN_NOT_STARTED);
    }
    if (*pid > 0) {
        setpgid(*pid,
                *pid); /* the group exists before the first signal to it */
        return STATUS_OK;
    }
    *pid = 0;
    return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                        "starting the process of %s", start->name);
}

int children_wait(const struct children *children, int64_t deadline) {
    struct pollfd waited = {.fd = children->signals, .events = POLLIN};
    struct signalfd_siginfo info;
    while (poll(&waited, 1, time_poll_ms(time_now(), deadline)) > 0 ||
           time_now() < deadline)
        if (read(children->signals, &info, sizeof info) == sizeof info)
            return (int)info.ssi_signo;
    return 0;
}

bool children_reap(pid_t pid, int *wait_status) {
    siginfo_t ended = {0};
    if (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) ||
        !ended.si_pid)
        return false;
    kill(-pid, SIGKILL); /* before its number can be reused */
    return waitpid(pid, wait_status, 0) == pid;
}

int children_exit_code(int wait_status) {
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                    : WEXITSTATUS(wait_status);
}

/* Runs one child at a time, in a process group of its own. Waits for its pidfd,
 * its pipes and this process's signals until a deadline. Ends it in two steps:
 * SIGTERM, then SIGKILL. Keeps the newest output. */

enum { MAX_OUTPUT = 1 << 20, MAX_ERRORS = 1 << 14 };

/* Output of a pipe; beyond the limit the older half is dropped. */
struct captured {
    int pipe;
    char *text;
    size_t used, capacity;
};

struct child {
    pid_t pid;
    int exit_fd; /* pidfd */
    struct captured output, errors;
    int64_t deadline;
    int last_signal; /* the last signal sent to it */
};

enum status subprocess_open(struct subprocess_signals *signals,
                            struct failure *why) {
    sigset_t blocked;
    *signals = (struct subprocess_signals){.descriptor = -1};
    sigemptyset(&blocked);
    children_add_termination_signals(&blocked);
    sigaddset(&blocked, SIGUSR1);
    children_block_signals(&signals->saved_signals, &blocked);
    signals->descriptor = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->descriptor < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "taking signals");
    return STATUS_OK;
}

static void subprocess_handle_signal(struct subprocess_signals *signals) {
    struct signalfd_siginfo info;
    while (read(signals->descriptor, &info, sizeof info) == sizeof info)
        if (!signals->caught && info.ssi_signo != SIGUSR1)
            signals->caught = (int)info.ssi_signo;
}

void subprocess_close(struct subprocess_signals *signals) {
    if (signals->descriptor >= 0) {
        subprocess_handle_signal(signals);
        close(signals->descriptor);
    }
    children_restore_signals(&signals->saved_signals);
    signals->descriptor = -1;
}

static void read_captured(struct captured *captured) {
    ssize_t length;
    do {
        if (captured->used == captured->capacity) {
            memmove(captured->text, captured->text + captured->capacity / 2,
                    captured->capacity - captured->capacity / 2);
            captured->used -= captured->capacity / 2;
        }
        length = read(captured->pipe, captured->text + captured->used,
                      captured->capacity - captured->used);
        if (length > 0)
            captured->used += (size_t)length;
    } while (length > 0);
    captured->text[captured->used] = 0;
    if (length == 0) { /* the child has closed it */
        close(captured->pipe);
        captured->pipe = -1;
    }
}

static bool open_capture(struct captured *captured, size_t capacity,
                         int *write_end) {
    int pipe_ends[2];
    *captured = (struct captured){.pipe = -1, .capacity = capacity};
    *write_end = -1;
    captured->text = calloc(1, capacity + 1);
    if (!captured->text || pipe2(pipe_ends, O_CLOEXEC))
        return false;
    captured->pipe = pipe_ends[0];
    *write_end = pipe_ends[1];
    fcntl(captured->pipe, F_SETFL, O_NONBLOCK);
    return true;
}

/* Runs in the child; children_detach says why it leaves by _exit. */
static void exec_program(const struct subprocess_signals *signals,
                         const struct subprocess_options *options, int output,
                         int errors, pid_t parent) {
    children_detach(parent, &signals->saved_signals);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    unsetenv(LOG_JSON_VARIABLE); /* subprocess_error_line reads plain lines */
    execvp(options->program, options->arguments);
    _exit(CHILDREN_NOT_STARTED);
}

static enum status subprocess_start(struct child *child,
                                    const struct subprocess_signals *signals,
                                    const struct subprocess_options *options,
                                    struct failure *why) {
    int output, errors, error;
    pid_t parent = getpid();
    bool piped = open_capture(&child->output, MAX_OUTPUT, &output);
    piped = open_capture(&child->errors, MAX_ERRORS, &errors) && piped;
    child->exit_fd = -1;
    child->pid = piped ? fork() : -1;
    if (child->pid == 0)
        exec_program(signals, options, output, errors, parent);
    error = errno;
    if (output >= 0)
        close(output);
    if (errors >= 0)
        close(errors);
    if (child->pid > 0)
        child->exit_fd = pidfd_open(child->pid, 0);
    /* Without a pidfd the end of the child could not be polled for. */
    if (child->pid > 0 && child->exit_fd < 0) {
        error = errno;
        kill(child->pid, SIGKILL);
        waitpid(child->pid, NULL, 0);
    }
    if (child->exit_fd < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error, "starting %s",
                            options->program);
    return STATUS_OK;
}

static void signal_child(struct child *child, int number, double seconds) {
    kill(child->pid, number);
    child->last_signal = number;
    child->deadline = number == SIGKILL
                          ? TIME_NEVER
                          : time_now() + time_from_seconds(seconds);
}

/* Waits until it has ended. */
static void wait_until_exit(struct child *child,
                            struct subprocess_signals *signals,
                            const struct subprocess_options *options,
                            bool *timed_out) {
    for (;;) {
        struct pollfd waited[] = {
            {.fd = child->exit_fd, .events = POLLIN},
            {.fd = child->output.pipe, .events = POLLIN},
            {.fd = child->errors.pipe, .events = POLLIN},
            {.fd = child->last_signal ? -1 : signals->descriptor,
             .events = POLLIN},
        };
        poll(waited, sizeof waited / sizeof *waited,
             time_poll_ms(time_now(), child->deadline));
        if (child->output.pipe >= 0)
            read_captured(&child->output);
        if (child->errors.pipe >= 0)
            read_captured(&child->errors);
        if (waited[0].revents)
            return;
        subprocess_handle_signal(signals);
        if (!child->last_signal && signals->caught)
            signal_child(child, SIGTERM, options->kill_after);
        else if (time_now() >= child->deadline) {
            *timed_out |= !child->last_signal;
            signal_child(child, child->last_signal ? SIGKILL : SIGTERM,
                         options->kill_after);
        }
    }
}

static void close_capture(struct captured *captured) {
    if (captured->pipe >= 0)
        close(captured->pipe);
    captured->pipe = -1;
}

enum status subprocess_run(struct subprocess_signals *signals,
                           const struct subprocess_options *options,
                           struct subprocess_result *result,
                           struct failure *why) {
    struct child child = {0};
    int ended = 0;
    *result = (struct subprocess_result){0};
    enum status status = subprocess_start(&child, signals, options, why);
    if (!status) {
        child.deadline = time_now() + time_from_seconds(options->limit);
        wait_until_exit(&child, signals, options, &result->timed_out);
        waitpid(child.pid, &ended, 0);
        result->code = children_exit_code(ended);
        close(child.exit_fd);
        /* A program may end with this code itself, but it then has output. */
        if (result->code == CHILDREN_NOT_STARTED && !child.output.used &&
            !child.errors.used)
            status = status_fail(why, FAILURE_PROGRAM_MISSING,
                                 "%s could not be started: is it installed?",
                                 options->program);
    }
    close_capture(&child.output);
    close_capture(&child.errors);
    result->output = child.output.text;
    result->errors = child.errors.text;
    if (status)
        subprocess_free_result(result);
    return status;
}

void subprocess_free_result(struct subprocess_result *result) {
    free(result->output);
    free(result->errors);
    *result = (struct subprocess_result){0};
}

void subprocess_error_line(const char *errors, char *text, unsigned size) {
    static const char mark[] = "error: ";
    const char *last = errors, *plain = NULL, *error_line = NULL;
    for (const char *line = errors; *line;) {
        size_t length = strcspn(line, "\n");
        const char *found = strstr(line, mark);
        if (found && found < line + length)
            error_line = found + strlen(mark);
        if (length)
            last = line;
        if (length && !log_is_info(line, length))
            plain = line;
        line += length + (line[length] == '\n');
    }
    if (error_line || plain)
        last = error_line ? error_line : plain;
    snprintf(text, size, "%.*s", (int)strcspn(last, "\n"), last);
}
