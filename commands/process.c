/* SPDX-License-Identifier: Apache-2.0 */
/* A run from start to end in this process: first the signals and the ZeroMQ
 * context, then the roles (commands/composition.c) and their threads, then the
 * shutdown. A series repeats this for each run: nothing that a run has opened,
 * such as its ports, outlives it. */
#include "commands/process.h"

#include "commands/composition.h"
#include "commands/launch/children.h"
#include "commands/launch/launch.h"
#include "commands/report_board.h"
#include "commands/status_server.h"
#include "core/base/limits.h"
#include "core/base/plugin.h"
#include "core/base/time.h"
#include "core/net/link/zap_handler.h"
#include "proto/messages/launch_record.h"
#include "proto/messages/process_report.h"
#include "worker/train/external.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <zmq.h>

/* A role's thread owns its settings and results until it has ended. The main
 * thread waits for all roles and for signals, on descriptors. Signals are
 * blocked in every thread and read from a signalfd here, so no signal handler
 * runs; a role receives a signal through its pipe, with its other events. */

enum { END_WITH_CHIEF_MS = 500 };
static const int64_t STANDS_STILL = 2 * TIME_S; /* of a loop */

static sigset_t handled_signals(void) {
    sigset_t signals;
    sigemptyset(&signals);
    children_add_termination_signals(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGQUIT);
    return signals;
}

static int open_signals(void) {
    sigset_t signals = handled_signals();
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Closes the descriptors for signals. Received signals and results of roles
 * stay. */
static void roles_close(struct roles *roles) {
    for (unsigned i = 0; i < roles->count; i++) {
        close(roles->list[i].interrupts);
        close(roles->list[i].interrupt_writer);
        health_close(&roles->list[i].health);
        page_points_close(&roles->list[i].page_points);
    }
    if (roles->done >= 0)
        close(roles->done);
    if (roles->signals >= 0)
        close(roles->signals);
    roles->done = roles->signals = -1;
}

/* Takes the signals of children_add_termination_signals, SIGUSR1 and SIGQUIT,
 * also in every thread started later, and ignores signals that a lost peer or a
 * full disk raises. With INTERRUPTS (-1: none) the process's signals are left
 * alone, and their numbers are read from there. STATUS_RETRY if there is no
 * descriptor left, STATUS_FAILED if the system refuses one. */
static enum status roles_open(struct roles *roles, int interrupts,
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

/* The chief asks all members and logs it. If its loop stands still, or another
 * role is the first, the roles of this process are told of from here. */
static void report_roles(const struct roles *roles) {
    const struct role *first = &roles->list[0];
    int64_t now = time_now();
    int64_t silence = first->health ? health_silence(first->health, now) : -1;
    if (first->kind == ROLE_CHIEF && silence >= 0 && silence < STANDS_STILL) {
        eventfd_write(first->interrupt_writer, SIGQUIT);
        return;
    }
    for (unsigned i = 0; i < roles->count; i++)
        if (roles->list[i].kind != ROLE_BENCH)
            process_report_log(&roles->list[i].log, roles->list[i].health, now);
}

/* A signal goes to the first role; SIGUSR1 only to a chief, because a user who
 * signals all processes of a job wants the one checkpoint that the chief
 * starts. A closing terminal may send SIGHUP twice, and systemd sends SIGHUP
 * after SIGTERM: neither counts as a second signal. */
static void roles_forward_signal(struct roles *roles, int number) {
    const struct role *first = &roles->list[0];
    bool saves = number == SIGUSR1;
    if (number == SIGQUIT) {
        report_roles(roles);
        return;
    }
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

/* Runs all roles that were added until the last has ended. The status is the
 * first role's, with its WHY; the failure of another role is a warning in its
 * log. If the system refuses a thread, the running roles are ended first. */
static enum status roles_run(struct roles *roles, struct failure *why) {
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

enum { MAX_SOCKETS = 16384, ORPHAN_PAUSE_MS = 500 };
static const int64_t ORPHAN_TIME = 10 * TIME_S;

/* A step must not cause page faults: freed memory is kept, and few arenas share
 * it. */
static void tune_malloc(void) {
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_ARENA_MAX, 2);
}

/* A process that only received the end of the run is silent if its chief logs
 * to the same terminal, so that the cause is the last line. */
static void log_end(const struct log *log, struct failure *why) {
    if (!why->reported || !getenv(LOG_TOGETHER_VARIABLE))
        log_failure(log, why);
    why->text[0] = 0;
}

/* Stacks and heaps of five threads, and memory that libraries map and generate.
 * A training process was seen to need 190 MB of it. */
static const uint64_t OWN_SPACE = UINT64_C(256) << 20;

/* libzmq's two, a role's own, the guard of its connections, and those that read
 * data or write a checkpoint beside it; with a secret, who admits peers. */
enum { OWN_THREADS = 7, MOST_THREADS, SMALL_STACK = 64 << 10 };

/* /proc/self/statm: pages mapped. */
static uint64_t mapped_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* STATUS_CONFIG if the address space left (ulimit -v) is too small for threads
 * and libraries. Weights and data are checked with the plan. */
static enum status check_address_space(struct failure *why) {
    struct rlimit limit;
    uint64_t needed = mapped_bytes() + OWN_SPACE;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur >= needed)
        return STATUS_OK;
    return status_fail(why, FAILURE_LIMIT_TOO_LOW,
                       "this process may have %llu kB of address space, and "
                       "needs %llu beside its weights and data: raise the "
                       "limit (ulimit -v)",
                       (unsigned long long)limit.rlim_cur >> 10,
                       (unsigned long long)needed >> 10);
}

static void *wait_for_unlock(void *mutex) {
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

/* STATUS_RETRY if the system refuses the threads that a run needs in any
 * process, which it starts here for a moment: libzmq ends a process whose
 * thread is refused. */
static enum status check_threads(bool has_secret, struct failure *why) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[MOST_THREADS];
    unsigned count = has_secret ? MOST_THREADS : OWN_THREADS, started = 0;
    int error = 0;
    pthread_attr_t small; /* memory is no reason to refuse them */
    sigset_t all, before; /* signals are for the caller's thread */
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, SMALL_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&mutex);
    for (; !error && started < count; started += !error)
        error =
            pthread_create(&threads[started], &small, wait_for_unlock, &mutex);
    pthread_mutex_unlock(&mutex);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
    pthread_mutex_destroy(&mutex);
    return error
               ? status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                              "cannot start the %u threads of a process", count)
               : STATUS_OK;
}

/* Call it before the first library opens a file or starts a thread. Descriptors
 * for peers are checked where the peers are known: in the chief, and elsewhere
 * with the plan. */
static enum status check_limits(bool has_secret, struct failure *why) {
    enum status status = limits_descriptors(0, NULL, why);
    if (!status)
        status = check_address_space(why);
    return status ? status : check_threads(has_secret, why);
}

/* The descriptor that gives the library its signals; -1: the program's come
 * from the system. */
static int interrupts(const struct composition *composition) {
    const struct process_settings *settings = &composition->process_settings;
    return settings->external ? settings->interrupts : -1;
}

static enum status open_process(struct composition *composition,
                                struct failure *why) {
    bool has_secret = composition->process_settings.secret_file;
    enum status status = check_limits(has_secret, why);
    if (!status)
        status = roles_open(&composition->roles, interrupts(composition), why);
    if (status)
        return status;
    composition->roles.notify = composition->process_settings.notify;
    if (interrupts(composition) < 0)
        tune_malloc();
    composition->zmq = zmq_ctx_new();
    if (!composition->zmq)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "cannot start ZeroMQ");
    zmq_ctx_set(composition->zmq, ZMQ_MAX_SOCKETS, MAX_SOCKETS);
    return STATUS_OK;
}

/* Closes everything that the run has opened, including its ports. */
static void close_process(struct composition *composition) {
    zap_handler_close(&composition->zap_handler);
    if (composition->zmq)
        zmq_ctx_term(composition->zmq);
    composition->zmq = NULL;
    link_keys_close(&composition->keys);
    roles_close(&composition->roles);
    if (!composition->lineage || !composition->lineage->follows)
        job_free(&composition->job);
}

static enum status run_roles(struct composition *composition,
                             struct failure *why) {
    enum status status = roles_run(&composition->roles, why);
    struct failure logged = *why;
    if (status && !composition->series_run)
        log_end(&composition->roles.list[0].log,
                composition->process_settings.external ? &logged : why);
    return status;
}

static enum status answer_joins(const struct options *options,
                                const struct process_settings *settings,
                                const struct cluster *cluster,
                                const struct failure *why) {
    struct composition composition = {
        .options = options, .cluster = cluster, .process_settings = *settings};
    struct failure ignored;
    enum status status = open_process(&composition, &ignored);
    if (!status)
        status = composition_add_refusal(&composition, why);
    if (!status)
        status = roles_run(&composition.roles, &ignored);
    close_process(&composition);
    return failure_code_status(why->code); /* even if no peer could be told */
}

/* The text may have several lines, so it is not written as a line of the
 * log. */
enum status process_refuse(const struct options *options,
                           const struct cluster *cluster, struct failure *why) {
    struct process_settings settings = {0};
    struct failure reported = *why;
    process_settings_take_secret(&settings, options);
    log_failure_of_command(why);
    return answer_joins(options, &settings, cluster, &reported);
}

/* The caller has the reason only once the others were told. */
static void log_refusal(const struct composition *composition,
                        struct failure why) {
    if (composition->roles.count)
        log_failure(&composition->roles.list[0].log, &why);
}

/* Fills HEALTHS[ROLES_MAX]; returns how many there are. */
static unsigned list_healths(const struct roles *roles,
                             struct health **healths) {
    unsigned count = 0;
    for (unsigned i = 0; i < roles->count; i++)
        if (roles->list[i].health)
            healths[count++] = roles->list[i].health;
    return count;
}

/* Serves what the roles tell of themselves, if that is asked for. */
static enum status process_open_status(const struct composition *composition,
                                       struct status_server **server,
                                       struct failure *why) {
    const struct cluster_task *address = &composition->process_settings.metrics;
    const struct roles *roles = &composition->roles;
    struct health *healths[ROLES_MAX];
    struct page_points *points = NULL; /* the chief is the first role */
    unsigned count = list_healths(roles, healths);
    char text[300];
    if (roles->count)
        points = roles->list[0].page_points;
    if (!count || !address->port)
        return STATUS_OK;
    enum status status =
        status_server_open(server, address, healths, count, points, why);
    cluster_address(address, text, sizeof text);
    if (!status)
        log_info(&roles->list[0].log, "status_served",
                 "serving http://%s/ (a page), /healthz, /status and /report",
                 text);
    return status;
}

/* Has SIGUSR1 come when the chief was over, and so for the next? */
static bool has_unread_request(const struct roles *roles) {
    eventfd_t number;
    bool saves = false;
    while (!eventfd_read(roles->list[0].interrupts, &number))
        saves |= number == SIGUSR1;
    return saves;
}

static enum status process_run_once(struct composition *composition,
                                    struct failure *why) {
    const struct cluster *cluster = composition->cluster;
    struct status_server *server = NULL;
    bool composed = false;
    enum status status = open_process(composition, why);
    if (!status) {
        status = composition_add_run(composition, why);
        if (!status)
            status = process_open_status(composition, &server, why);
        composed = !status;
        if (status && composition->process_settings.external)
            log_refusal(composition, *why);
    }
    if (composed) {
        struct health *healths[ROLES_MAX];
        struct report_board *board = composition->process_settings.board;
        report_board_set(board, healths,
                         list_healths(&composition->roles, healths));
        if (composition->stopped_by) /* while it was between two runs */
            roles_forward_signal(&composition->roles, composition->stopped_by);
        if (composition->saves)
            roles_forward_signal(&composition->roles, SIGUSR1);
        status = run_roles(composition, why);
        composition->saves = has_unread_request(&composition->roles);
        report_board_set(board, NULL, 0);
    }
    status_server_close(&server);
    close_process(composition);
    if (composed || !cluster_expects_joins(cluster) || composition->series_run)
        return status;
    return composition->process_settings.external
               ? answer_joins(composition->options,
                              &composition->process_settings, cluster, why)
               : process_refuse(composition->options, cluster, why);
}

/* An orphan of a killed process may hold the port or the lock for a while: the
 * library's start waits for it. False: it is interrupted, or it was long
 * enough. */
static bool waits_for_orphan(const struct composition *composition,
                             const struct failure *why, int64_t since) {
    struct pollfd item = {interrupts(composition), POLLIN, 0};
    bool is_taken = why->code == FAILURE_PORT_IN_USE ||
                    why->code == FAILURE_DIRECTORY_LOCKED ||
                    why->code == FAILURE_DIRECTORY_HELD;
    return composition->process_settings.external && is_taken &&
           time_now() - since < ORPHAN_TIME && !poll(&item, 1, ORPHAN_PAUSE_MS);
}

/* The others await it, or whoever takes its place, for timeouts.recover. */
static enum status cannot_follow(bool chief_lost, struct failure *why) {
    return status_fail(why, FAILURE_PEER_LOST,
                       "%s was lost and the run goes back to its checkpoint, "
                       "which this program cannot do without starting again: "
                       "start the same command again",
                       chief_lost ? "the chief" : "a process");
}

enum status process_run(const struct options *options,
                        const struct process_settings *settings,
                        const struct cluster *cluster, struct failure *why) {
    struct composition composition = {
        .options = options, .cluster = cluster, .process_settings = *settings};
    struct rewind_lineage lineage = {0};
    const struct launch_record none = {0};
    enum status status;
    int64_t since = time_now();
    composition.lineage = &lineage;
    do {
        lineage.follows = false;
        status = process_run_once(&composition, why);
        if (!status)
            since = time_now();
        composition.stopped_by = composition.roles.stopped_by;
        composition.rejoin_within =
            lineage.follows ? lineage.within
                            : composition.roles.list[0].restart_within;
        if (!status && composition.rejoin_within > 0 && settings->external &&
            !external_can_follow(settings->external)) {
            job_free(&composition.job);
            launch_record_write(settings->record, &none);
            status = cannot_follow(composition.past.chief_lost, why);
        }
    } while ((!status && composition.rejoin_within > 0) ||
             (status && waits_for_orphan(&composition, why, since)));
    copies_close(&composition.copies);
    arena_kept_close(&composition.kept);
    free(lineage.copy.manifest);
    free(lineage.copy.base);
    return status;
}

enum status process_run_one_of_series(const struct options *options,
                                      const struct process_settings *settings,
                                      const struct cluster *cluster,
                                      struct composition_series_run *series_run,
                                      struct failure *why) {
    struct composition composition = {.options = options,
                                      .cluster = cluster,
                                      .process_settings = *settings,
                                      .series_run = series_run};
    enum status status = process_run_once(&composition, why);
    job_free(&series_run->job);
    return status;
}

/* Without their plugin there are none, and MISSING says why. */
static enum status open_baselines(struct baselines **baselines,
                                  struct failure *missing,
                                  struct failure *why) {
    const void *table;
    if (plugin_find(&table, "bench", BASELINES_SYMBOL, BASELINES_ABI, missing))
        return STATUS_OK;
    const struct baselines_ops *ops = table;
    return ops->open(baselines, why);
}

enum status process_bench(const struct options *options,
                          const struct process_settings *settings,
                          const struct cluster *cluster, char **result,
                          struct failure *why) {
    struct composition composition = {.options = options,
                                      .cluster = cluster,
                                      .process_settings = *settings,
                                      .roles.done = -1};
    struct baselines *baselines = NULL;
    struct failure missing;
    bool client = cluster->role == CLUSTER_WORKER;
    enum status status = STATUS_OK;
    *result = NULL;
    if (cluster_is_chief(cluster) ? client : cluster->role == CLUSTER_EVALUATOR)
        status = status_fail(why, FAILURE_JOB_UNFIT,
                             "capstan bench needs a chief, ps and a worker in "
                             "the cluster description");
    if (!status && client)
        status = open_baselines(&baselines, &missing, why);
    if (!status)
        status = open_process(&composition, why);
    if (!status && client)
        status = composition_open_keys(&composition, NULL, why);
    if (!status && client)
        composition_add_bench_client(&composition, baselines, missing.text);
    else if (!status)
        status = composition_add_run(&composition, why);
    if (!status)
        status = run_roles(&composition, why);
    *result = composition.roles.list[0].result;
    if (baselines)
        baselines->ops->close(&baselines);
    close_process(&composition);
    return status;
}
