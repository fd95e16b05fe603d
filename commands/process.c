/* SPDX-License-Identifier: Apache-2.0 */
/* A run from start to end in this process: first the signals and the ZeroMQ
 * context, then the roles (commands/composition.c) and their threads
 * (commands/roles.c), then the shutdown. A series repeats this for each run:
 * nothing that a run has opened, such as its ports, outlives it. */
#include "commands/process.h"

#include "commands/composition.h"
#include "commands/launch/launch.h"
#include "commands/status_server.h"
#include "core/base/limits.h"
#include "core/base/plugin.h"
#include "core/base/time.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

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

/* Call it before the first library opens a file or starts a thread. Descriptors
 * for peers are checked where the peers are known: in the chief, and elsewhere
 * with the plan. */
static enum status check_limits(struct failure *why) {
    enum status status = limits_descriptors(LIMITS_OWN_DESCRIPTORS, NULL, why);
    if (!status)
        status = limits_address_space(why);
    return status ? status : limits_threads(why);
}

/* The descriptor that gives the library its signals; -1: the program's come
 * from the system. */
static int interrupts(const struct composition *composition) {
    const struct process_settings *settings = &composition->process_settings;
    return settings->external ? settings->interrupts : -1;
}

static enum status open_process(struct composition *composition,
                                struct failure *why) {
    enum status status = check_limits(why);
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
    if (composition->zmq)
        zmq_ctx_term(composition->zmq);
    composition->zmq = NULL;
    roles_close(&composition->roles);
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
    log_failure_of_command(why);
    return answer_joins(options, &settings, cluster, &reported);
}

/* The caller has the reason only once the others were told. */
static void log_refusal(const struct composition *composition,
                        struct failure why) {
    if (composition->roles.count)
        log_failure(&composition->roles.list[0].log, &why);
}

/* Serves what the roles tell of themselves, if that is asked for. */
static enum status process_open_status(const struct composition *composition,
                                       struct status_server **server,
                                       struct failure *why) {
    const struct cluster_task *address = &composition->process_settings.metrics;
    const struct roles *roles = &composition->roles;
    struct health *healths[ROLES_MAX];
    unsigned count = 0;
    char text[300];
    for (unsigned i = 0; i < roles->count; i++)
        if (roles->list[i].health)
            healths[count++] = roles->list[i].health;
    if (!count || !address->port)
        return STATUS_OK;
    enum status status =
        status_server_open(server, address, healths, count, why);
    cluster_address(address, text, sizeof text);
    if (!status)
        log_info(&roles->list[0].log, "status_served",
                 "serving http://%s/healthz and /status", text);
    return status;
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
    if (composed)
        status = run_roles(composition, why);
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

enum status process_run(const struct options *options,
                        const struct process_settings *settings,
                        const struct cluster *cluster, struct failure *why) {
    struct composition composition = {
        .options = options, .cluster = cluster, .process_settings = *settings};
    enum status status;
    int64_t since = time_now();
    do {
        status = process_run_once(&composition, why);
        composition.rejoin_within = composition.roles.list[0].restart_within;
    } while ((!status && composition.rejoin_within > 0) ||
             (status && waits_for_orphan(&composition, why, since)));
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
