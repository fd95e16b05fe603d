/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/children.h"

#include "core/base/time.h"
#include "proto/messages/launch_record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
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
void children_block_signals(struct children_saved_signals *saved_signals,
                            const sigset_t *blocked) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    sigprocmask(SIG_BLOCK, blocked, &saved_signals->mask);
    sigaction(SIGCHLD, &plain, &saved_signals->child);
    sigaction(SIGPIPE, &ignored, &saved_signals->pipe);
}

void children_restore_signals(
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
void children_detach(pid_t parent,
                     const struct children_saved_signals *saved_signals) {
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
