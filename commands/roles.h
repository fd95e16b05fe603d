/* SPDX-License-Identifier: Apache-2.0 */
/* The roles that one process plays, one to three, each on a thread of its own;
 * and the signals, which go to the first of them. */
#ifndef CAPSTAN_ROLES_H
#define CAPSTAN_ROLES_H

#include "chief/chief.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "ps/ps.h"
#include "worker/bench/bench_client.h"
#include "worker/train/evaluator.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { ROLES_MAX = 3 };

enum role_kind { ROLE_CHIEF, ROLE_PS, ROLE_WORKER, ROLE_EVALUATOR, ROLE_BENCH };

struct role {
    enum role_kind kind;
    const char *name;
    pthread_t thread;
    struct log log;
    int interrupts,
        interrupt_writer; /* a pipe: a signal's number, 8 bytes, each */
    int done;             /* eventfd shared by all roles */
    atomic_bool ended;
    enum status status;
    struct failure why;
    /* By its kind, one of these: */
    struct chief_settings chief;
    struct ps_settings ps;
    struct cluster_task ps_address;
    struct worker_settings worker;
    struct evaluator_settings evaluator;
    struct bench_client_settings bench;
    char *result;          /* the bench's, or NULL */
    double restart_within; /* the chief leads another run: back within so many
                              seconds */
};

struct roles {
    int done, signals; /* heard by roles_run; -1: closed */
    struct role list[ROLES_MAX];
    unsigned count;
    int stopped_by;    /* the first signal to end; 0: none */
    bool usr1_ignored; /* SIGUSR1, and it was said */
};

/* Takes the signals of children_add_termination_signals and SIGUSR1 from here
 * on, in every thread started later, and ignores those that a lost peer or a
 * full disk raises. STATUS_RETRY when there is no descriptor left,
 * STATUS_FAILED when the system refuses one. */
enum status roles_open(struct roles *roles, struct failure *why) MUST_CHECK;

/* Closes what they hear signals by; what they were told and how they ended
 * stays. */
void roles_close(struct roles *roles);

/* The next role, called NAME INDEX (below 0: no number) in its log, which says
 * nothing when QUIET; view. The caller fills in the settings of its KIND. */
struct role *roles_add(struct roles *roles, enum role_kind kind,
                       const char *name, int index, bool quiet);

/* Plays all that were added until the last has ended. The status is the
 * first's, with its WHY; what the others end with beside a success is a warning
 * in their logs. When the system refuses a thread those that run are ended
 * first. */
enum status roles_run(struct roles *roles, struct failure *why) MUST_CHECK;

#endif
