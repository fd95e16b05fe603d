/* SPDX-License-Identifier: Apache-2.0 */
/* One child at a time, in a process group of its own, waited for by pidfd, its
 * pipes, and this process's signals, until a deadline. Ending it takes two
 * steps: SIGTERM, then after a while SIGKILL. Of what it says the newest is
 * kept. */
#include "chief/launch/child.h"

#include "proto/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_OUTPUT = 1 << 20, MOST_ERRORS = 1 << 14 };

/* What a pipe has brought; beyond the most the oldest half goes. */
struct heard {
    int pipe;
    char *text;
    size_t used, most;
};

struct child {
    pid_t pid;
    int end; /* pidfd */
    struct heard output, errors;
    int64_t deadline;
    int sent; /* the last signal it got */
};

enum status child_open(struct child_signals *signals, struct failure *why) {
    sigset_t taken;
    *signals = (struct child_signals){.descriptor = -1};
    sigemptyset(&taken);
    children_add_ends(&taken);
    sigaddset(&taken, SIGUSR1);
    children_take(&signals->before, &taken);
    signals->descriptor = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->descriptor < 0)
        return status_errno(why, STATUS_FAILED, errno, "taking signals");
    return STATUS_OK;
}

static void take_signal(struct child_signals *signals) {
    struct signalfd_siginfo info;
    while (read(signals->descriptor, &info, sizeof info) == sizeof info)
        if (!signals->caught && info.ssi_signo != SIGUSR1)
            signals->caught = (int)info.ssi_signo;
}

void child_close(struct child_signals *signals) {
    if (signals->descriptor >= 0) {
        take_signal(signals);
        close(signals->descriptor);
    }
    children_give_back(&signals->before);
    signals->descriptor = -1;
}

static void hear(struct heard *heard) {
    ssize_t length;
    do {
        if (heard->used == heard->most) {
            memmove(heard->text, heard->text + heard->most / 2,
                    heard->most - heard->most / 2);
            heard->used -= heard->most / 2;
        }
        length = read(heard->pipe, heard->text + heard->used,
                      heard->most - heard->used);
        if (length > 0)
            heard->used += (size_t)length;
    } while (length > 0);
    heard->text[heard->used] = 0;
    if (length == 0) { /* closed there */
        close(heard->pipe);
        heard->pipe = -1;
    }
}

static bool listen_to(struct heard *heard, size_t most, int *other_end) {
    int ends[2];
    *heard = (struct heard){.pipe = -1, .most = most};
    *other_end = -1;
    heard->text = calloc(1, most + 1);
    if (!heard->text || pipe2(ends, O_CLOEXEC))
        return false;
    heard->pipe = ends[0];
    *other_end = ends[1];
    fcntl(heard->pipe, F_SETFL, O_NONBLOCK);
    return true;
}

/* In the child; children_detach says why it leaves as it does. */
static void become(const struct child_signals *signals,
                   const struct child_options *options, int output, int errors,
                   pid_t parent) {
    children_detach(parent, &signals->before);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execvp(options->program, options->arguments);
    _exit(CHILDREN_NOT_STARTED);
}

static enum status start(struct child *child,
                         const struct child_signals *signals,
                         const struct child_options *options,
                         struct failure *why) {
    int output, errors, error;
    pid_t parent = getpid();
    bool piped = listen_to(&child->output, MOST_OUTPUT, &output);
    piped = listen_to(&child->errors, MOST_ERRORS, &errors) && piped;
    child->end = -1;
    child->pid = piped ? fork() : -1;
    if (child->pid == 0)
        become(signals, options, output, errors, parent);
    error = errno;
    if (output >= 0)
        close(output);
    if (errors >= 0)
        close(errors);
    if (child->pid > 0)
        child->end = pidfd_open(child->pid, 0);
    if (child->pid > 0 && child->end < 0) {
        error = errno;
        kill(child->pid, SIGKILL);
        waitpid(child->pid, NULL, 0);
    }
    if (child->end < 0)
        return status_errno(why, STATUS_FAILED, error, "starting %s",
                            options->program);
    return STATUS_OK;
}

static void signal_child(struct child *child, int number, double seconds) {
    kill(child->pid, number);
    child->sent = number;
    child->deadline = number == SIGKILL
                          ? TIME_NEVER
                          : time_now() + time_from_seconds(seconds);
}

/* Until it has ended. */
static void wait_for(struct child *child, struct child_signals *signals,
                     const struct child_options *options, bool *late) {
    for (;;) {
        struct pollfd waited[] = {
            {.fd = child->end, .events = POLLIN},
            {.fd = child->output.pipe, .events = POLLIN},
            {.fd = child->errors.pipe, .events = POLLIN},
            {.fd = child->sent ? -1 : signals->descriptor, .events = POLLIN},
        };
        poll(waited, sizeof waited / sizeof *waited,
             time_poll_ms(time_now(), child->deadline));
        if (child->output.pipe >= 0)
            hear(&child->output);
        if (child->errors.pipe >= 0)
            hear(&child->errors);
        if (waited[0].revents)
            return;
        take_signal(signals);
        if (!child->sent && signals->caught)
            signal_child(child, SIGTERM, options->patience);
        else if (time_now() >= child->deadline) {
            *late |= !child->sent;
            signal_child(child, child->sent ? SIGKILL : SIGTERM,
                         options->patience);
        }
    }
}

static void stop_hearing(struct heard *heard) {
    if (heard->pipe >= 0)
        close(heard->pipe);
    heard->pipe = -1;
}

enum status child_run(struct child_signals *signals,
                      const struct child_options *options,
                      struct child_result *result, struct failure *why) {
    struct child child = {0};
    int ended = 0;
    *result = (struct child_result){0};
    enum status status = start(&child, signals, options, why);
    if (!status) {
        child.deadline = time_now() + time_from_seconds(options->limit);
        wait_for(&child, signals, options, &result->late);
        waitpid(child.pid, &ended, 0);
        result->code = children_exit_code(ended);
        close(child.end);
        if (result->code == CHILDREN_NOT_STARTED && !child.output.used)
            status = status_fail(why, STATUS_CONFIG,
                                 "%s could not be started: is it installed?",
                                 options->program);
    }
    stop_hearing(&child.output);
    stop_hearing(&child.errors);
    result->output = child.output.text;
    result->errors = child.errors.text;
    if (status)
        child_forget(result);
    return status;
}

void child_forget(struct child_result *result) {
    free(result->output);
    free(result->errors);
    *result = (struct child_result){0};
}

void child_reason(const char *errors, char *text, unsigned size) {
    static const char mark[] = "error: ";
    const char *last = errors, *said = NULL;
    for (const char *line = errors; *line;) {
        size_t length = strcspn(line, "\n");
        const char *found = strstr(line, mark);
        if (found && found < line + length)
            said = found + strlen(mark);
        if (length)
            last = line;
        line += length + (line[length] == '\n');
    }
    if (said)
        last = said;
    snprintf(text, size, "%.*s", (int)strcspn(last, "\n"), last);
}
