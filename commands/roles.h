/* SPDX-License-Identifier: Apache-2.0 */
/* The roles of one process, one to three, each on its own thread. Signals go to
 * the first role. */
#ifndef CAPSTAN_ROLES_H
#define CAPSTAN_ROLES_H

#include "chief/chief.h"
#include "commands/measure/bench_client.h"
#include "commands/service_notify.h"
#include "core/base/health.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "ps/ps.h"
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
        interrupt_writer; /* a pipe; each signal is its number in 8 bytes */
    int done;             /* eventfd shared by all roles */
    atomic_bool ended;
    struct health *health; /* NULL: nobody asks for it; owned */
    enum status status;
    struct failure why;
    /* The settings of its kind: */
    struct chief_settings chief;
    struct ps_settings ps;
    struct cluster_task ps_address;
    struct worker_settings worker;
    struct evaluator_settings evaluator;
    struct bench_client_settings bench;
    char *result;          /* the bench's, or NULL */
    double restart_within; /* the chief leads another run: rejoin within this
                              many seconds */
};

struct roles {
    int done, signals; /* descriptors that roles_run waits for; -1: closed */
    struct role list[ROLES_MAX];
    unsigned count;
    bool embedded; /* the library's: `signals` gives numbers in 8 bytes */
    struct service_notify *notify; /* borrowed; NULL: no service manager */
    int stopped_by;    /* the first signal that ends the process; 0: none */
    bool usr1_ignored; /* SIGUSR1 was ignored, and the log says so */
};

/* Takes the signals of children_add_termination_signals and SIGUSR1, also in
 * every thread started later, and ignores signals that a lost peer or a full
 * disk raises. With INTERRUPTS (-1: none) the process's signals are left alone,
 * and their numbers are read from there. STATUS_RETRY if there is no descriptor
 * left, STATUS_FAILED if the system refuses one. */
enum status roles_open(struct roles *roles, int interrupts,
                       struct failure *why) MUST_CHECK;

/* Closes the descriptors for signals. Received signals and results of roles
 * stay. */
void roles_close(struct roles *roles);

/* Adds a role, called NAME INDEX (below 0: without a number) in its log, which
 * is silent if QUIET. Returns a view; the caller fills in the settings of its
 * KIND. */
struct role *roles_add(struct roles *roles, enum role_kind kind,
                       const char *name, int index, bool quiet);

/* Runs all roles that were added until the last has ended. The status is the
 * first role's, with its WHY; the failure of another role is a warning in its
 * log. If the system refuses a thread, the running roles are ended first. */
enum status roles_run(struct roles *roles, struct failure *why) MUST_CHECK;

#endif
