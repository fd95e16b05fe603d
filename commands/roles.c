/* SPDX-License-Identifier: Apache-2.0 */
/* A role's thread owns its settings and results until it has ended. The main
 * thread waits for all roles and for signals, on descriptors. Signals are
 * blocked in every thread and read from a signalfd here, so no signal handler
 * runs; a role receives a signal through its pipe, with its other events. */
#include "commands/roles.h"

#include "commands/launch/children.h"
#include "core/base/plugin.h"
#include "core/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { END_WITH_CHIEF_MS = 500 };

static sigset_t handled_signals(void) {
    sigset_t signals;
    sigemptyset(&signals);
    children_add_termination_signals(&signals);
    sigaddset(&signals, SIGUSR1);
    return signals;
}

static int open_signals(void) {
    sigset_t signals = handled_signals();
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

enum status roles_open(struct roles *roles, int interrupts,
                       struct failure *why) {
    *roles = (struct roles){.embedded = interrupts >= 0};
    roles->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    roles->signals = roles->embedded ? dup(interrupts) : open_signals();
    if (roles->done >= 0 && roles->signals >= 0)
        return STATUS_OK;
    enum status status =
        status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                     "no descriptor left for signals and the ends of threads");
    roles_close(roles);
    return status;
}

void roles_close(struct roles *roles) {
    for (unsigned i = 0; i < roles->count; i++) {
        close(roles->list[i].interrupts);
        close(roles->list[i].interrupt_writer);
        health_close(&roles->list[i].health);
    }
    if (roles->done >= 0)
        close(roles->done);
    if (roles->signals >= 0)
        close(roles->signals);
    roles->done = roles->signals = -1;
}

struct role *roles_add(struct roles *roles, enum role_kind kind,
                       const char *name, int index, bool quiet) {
    struct role *role = &roles->list[roles->count++];
    int pipe_ends[2] = {-1, -1};
    role->name = name;
    role->kind = kind;
    role->done = roles->done;
    log_open(&role->log, name, index);
    role->log.quiet = quiet;
    if (pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC))
        log_warning(&role->log, "signals_unavailable",
                    "no pipe: signals are ignored");
    role->interrupts = pipe_ends[0];
    role->interrupt_writer = pipe_ends[1];
    return role;
}

static enum status roles_run_one(struct role *role) {
    switch (role->kind) {
    case ROLE_CHIEF:
        return chief_run(&role->chief, &role->why);
    case ROLE_PS:
        return ps_run(&role->ps, &role->why);
    case ROLE_WORKER:
        return worker_run(&role->worker, &role->why);
    case ROLE_EVALUATOR:
        return evaluator_run(&role->evaluator, &role->why);
    case ROLE_BENCH:
        break;
    }
    return bench_client_run(&role->bench, &role->result, &role->why);
}

static void *run_role(void *argument) {
    struct role *role = argument;
    role->status = roles_run_one(role);
    atomic_store(&role->ended, true);
    eventfd_write(role->done, 1);
    return NULL;
}

/* Ends those of the first STARTED roles, from FROM on, that have not ended. */
static void stop_from(struct roles *roles, unsigned from, unsigned started) {
    for (unsigned i = from; i < started && i < ROLES_MAX; i++)
        if (!atomic_load(&roles->list[i].ended))
            eventfd_write(roles->list[i].interrupt_writer, SIGTERM);
}

/* A signal goes to the first role; SIGUSR1 only to a chief, because a user who
 * signals all processes of a job wants the one checkpoint that the chief
 * starts. A closing terminal may send SIGHUP twice, and systemd sends SIGHUP
 * after SIGTERM: neither counts as a second signal. */
static void roles_forward_signal(struct roles *roles, int number) {
    const struct role *first = &roles->list[0];
    bool saves = number == SIGUSR1;
    if (saves && first->kind != ROLE_CHIEF) {
        if (!roles->usr1_ignored)
            log_info(
                &first->log, "signal_ignored",
                "SIGUSR1 is ignored here: at the chief it writes a checkpoint");
        roles->usr1_ignored = true;
        return;
    }
    if (number == SIGHUP && roles->stopped_by)
        return;
    if (!saves && !roles->stopped_by)
        roles->stopped_by = number;
    eventfd_write(first->interrupt_writer, (eventfd_t)number);
}

static void roles_handle_signal(struct roles *roles) {
    struct signalfd_siginfo signal;
    eventfd_t number;
    if (roles->embedded) {
        if (read(roles->signals, &number, sizeof number) == sizeof number)
            roles_forward_signal(roles, (int)number);
    } else if (read(roles->signals, &signal, sizeof signal) == sizeof signal) {
        roles_forward_signal(roles, (int)signal.ssi_signo);
    }
}

/* Tells the service manager; the milliseconds until it is to be told again. */
static int notify_of_roles(struct roles *roles, unsigned started) {
    struct health *healths[ROLES_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < started && i < ROLES_MAX; i++)
        if (roles->list[i].health && !atomic_load(&roles->list[i].ended))
            healths[count++] = roles->list[i].health;
    return service_notify_step(roles->notify, healths, count,
                               roles->stopped_by != 0, time_now());
}

/* If a chief has ended without telling the roles beside it, they end too. */
static void wait_for_roles(struct roles *roles, unsigned started) {
    unsigned ended = 0;
    while (ended < started) {
        struct pollfd items[] = {{roles->signals, POLLIN, 0},
                                 {roles->done, POLLIN, 0}};
        eventfd_t count = 0;
        bool chief_ended = atomic_load(&roles->list[0].ended);
        int wait = notify_of_roles(roles, started);
        if (!poll(items, 2, chief_ended ? END_WITH_CHIEF_MS : wait) &&
            chief_ended)
            stop_from(roles, 1, started);
        roles_handle_signal(roles);
        if (!eventfd_read(roles->done, &count))
            ended += (unsigned)count;
    }
    roles_handle_signal(roles);
}

/* A signal to every process of a run may reach a process after the chief's
 * message that the run ends, and the chief after another's report of it: the
 * process still ends by its own signal. */
static enum status first_status(const struct roles *roles,
                                struct failure *why) {
    const struct role *first = &roles->list[0];
    *why = first->why;
    bool by_other =
        first->why.reported || first->why.code == FAILURE_RUN_INTERRUPTED;
    if (first->status != STATUS_RETRY || !by_other || !roles->stopped_by)
        return first->status;
    why->code = failure_code_of_signal(roles->stopped_by);
    return failure_code_status(why->code);
}

/* A process that keeps a thread of a plugin is to end, however its run did, and
 * may be started again unless a retry does not help or a signal has ended it.
 */
static enum status add_thread_left(enum status status, struct failure *why) {
    struct failure before = *why;
    const char *name;
    plugin_threads_left(&name);
    if (status && status != STATUS_RETRY)
        return status;
    return status_fail(
        why, FAILURE_COLLECTIVE_FAILED,
        "%s has not closed its group of ranks within its time limit; one of "
        "its threads and the memory of its device stay until this process "
        "ends: end it, and start the same command again%s%s",
        name, before.text[0] ? ". Before that: " : "", before.text);
}

enum status roles_run(struct roles *roles, struct failure *why) {
    unsigned started = 0, left = plugin_threads_left(NULL);
    int error = 0;
    for (; !error && started < roles->count; started += !error)
        error = pthread_create(&roles->list[started].thread, NULL, run_role,
                               &roles->list[started]);
    if (error)
        stop_from(roles, 0, started);
    wait_for_roles(roles, started);
    for (unsigned i = 0; i < started; i++)
        pthread_join(roles->list[i].thread, NULL);
    if (error)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread");
    enum status status = first_status(roles, why);
    for (unsigned i = 1; !status && i < started; i++)
        if (roles->list[i].status)
            log_warning(&roles->list[i].log, "role_failed", "%s",
                        roles->list[i].why.text);
    return plugin_threads_left(NULL) > left ? add_thread_left(status, why)
                                            : status;
}
