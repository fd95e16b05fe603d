/* SPDX-License-Identifier: Apache-2.0 */
/* A run from opening to closing, in this process: signals and the ZeroMQ
 * context first, then who plays (commands/composition.c), their threads
 * (commands/roles.c), and all of it down again. Members of a series go through
 * that once a run: what a run has had, its ports with it, never outlives it. */
#include "commands/process.h"

#include "chief/launch/launch.h"
#include "commands/composition.h"
#include "proto/base/limits.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { MAX_SOCKETS = 16384 };

/* Nothing of a step may cost a page fault: freed memory stays, and few arenas
 * share it. */
static void settle_memory(void) {
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_ARENA_MAX, 2);
}

/* Beside a chief whose lines are seen here too, who only heard of the end is
 * silent: the cause is the last line. */
static void say_end(const struct log *log, struct failure *why) {
    if (!why->heard || !getenv(LAUNCH_TOGETHER))
        log_failure(log, why);
    why->text[0] = 0;
}

/* Before the first library opens anything. What peers take is counted where
 * they are known: by the chief, and by others with the plan. */
static enum status check_limits(struct failure *why) {
    enum status status = limits_descriptors(LIMITS_OWN_DESCRIPTORS, NULL, why);
    return status ? status : limits_address_space(why);
}

static enum status open_process(struct composition *composition,
                                struct failure *why) {
    enum status status = check_limits(why);
    if (!status)
        status = roles_open(&composition->roles, why);
    if (status)
        return status;
    settle_memory();
    composition->zmq = zmq_ctx_new();
    if (!composition->zmq)
        return status_errno(why, STATUS_FAILED, errno, "cannot start ZeroMQ");
    zmq_ctx_set(composition->zmq, ZMQ_MAX_SOCKETS, MAX_SOCKETS);
    return STATUS_OK;
}

/* What a run has opened, its ports with it, is closed when it returns. */
static void close_process(struct composition *composition) {
    if (composition->zmq)
        zmq_ctx_term(composition->zmq);
    composition->zmq = NULL;
    roles_close(&composition->roles);
    job_free(&composition->job);
}

static enum status play(struct composition *composition, struct failure *why) {
    enum status status = roles_play(&composition->roles, why);
    if (status && !composition->lead)
        say_end(&composition->roles.list[0].log, why);
    return status;
}

/* What is said here may have several lines: it is no line of the log. */
enum status process_refuse(const struct options *options,
                           const struct cluster *cluster, struct failure *why) {
    struct composition composition = {.options = options, .cluster = cluster};
    struct failure told = *why, ignored;
    fprintf(stderr, "error: %s\n", why->text);
    why->text[0] = 0;
    enum status status = open_process(&composition, &ignored);
    if (!status)
        status = composition_of_refusal(&composition, &told);
    if (!status)
        status = roles_play(&composition.roles, &ignored);
    close_process(&composition);
    return told.status; /* also where it could not be told */
}

static enum status play_run(struct composition *composition,
                            struct failure *why) {
    const struct cluster *cluster = composition->cluster;
    bool composed = false;
    enum status status = open_process(composition, why);
    if (!status) {
        status = composition_of_run(composition, why);
        composed = !status;
    }
    if (composed)
        status = play(composition, why);
    close_process(composition);
    if (!composed && cluster_is_awaited(cluster) && !composition->lead)
        status = process_refuse(composition->options, cluster, why);
    return status;
}

enum status process_run(const struct options *options,
                        const struct choices *choices,
                        const struct cluster *cluster, struct failure *why) {
    struct composition composition = {
        .options = options, .cluster = cluster, .choices = *choices};
    enum status status;
    do {
        status = play_run(&composition, why);
        composition.back = composition.roles.list[0].again;
    } while (!status && composition.back > 0);
    return status;
}

enum status process_lead(const struct options *options,
                         const struct choices *choices,
                         const struct cluster *cluster,
                         struct composition_lead *lead, struct failure *why) {
    struct composition composition = {.options = options,
                                      .cluster = cluster,
                                      .choices = *choices,
                                      .lead = lead};
    enum status status = play_run(&composition, why);
    job_free(&lead->job);
    return status;
}

enum status process_bench(const struct options *options,
                          const struct choices *choices,
                          const struct cluster *cluster, char **result,
                          struct failure *why) {
    struct composition composition = {.options = options,
                                      .cluster = cluster,
                                      .choices = *choices,
                                      .roles.done = -1};
    struct reference reference = {0};
    bool client = cluster->role == CLUSTER_WORKER;
    enum status status = STATUS_OK;
    *result = NULL;
    if (cluster_is_chief(cluster) ? client : cluster->role == CLUSTER_EVALUATOR)
        status = status_fail(why, STATUS_CONFIG,
                             "capstan bench needs a chief, ps and a worker in "
                             "the cluster description");
    if (!status && client)
        status = reference_start(&reference, why);
    if (!status)
        status = open_process(&composition, why);
    if (!status && client)
        composition_of_client(&composition, &reference);
    else if (!status)
        status = composition_of_run(&composition, why);
    if (!status)
        status = play(&composition, why);
    *result = composition.roles.list[0].result;
    reference_stop(&reference);
    close_process(&composition);
    return status;
}
