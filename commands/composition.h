/* SPDX-License-Identifier: Apache-2.0 */
/* The roles of this process and their settings, from the user's options, the
 * cluster description and, if this process leads, the job. A process has one to
 * three roles, which know each other by the names of in-process links. This
 * file opens and starts nothing: commands/process.c does. */
#ifndef CAPSTAN_COMPOSITION_H
#define CAPSTAN_COMPOSITION_H

#include "chief/chief.h"
#include "chief/plan/strategy.h"
#include "chief/run_series.h"
#include "commands/cli/options.h"
#include "commands/measure/baselines.h"
#include "commands/measure/bench_client.h"
#include "commands/process_settings.h"
#include "commands/service_notify.h"
#include "core/base/health.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/store/copies.h"
#include "proto/cluster/cluster.h"
#include "proto/cluster/cluster_rank.h"
#include "proto/job/job.h"
#include "ps/ps.h"
#include "worker/train/arena.h"
#include "worker/train/evaluator.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The roles of one process, each on its own thread. Signals go to the first. */
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
    struct health *health;           /* NULL: nobody asks for it; owned */
    struct page_points *page_points; /* of a chief; likewise */
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

/* One run of several that this process leads. */
struct composition_series_run {
    struct job *job; /* its batch is solved */
    struct run_series series;
};

/* All is borrowed except the job. */
struct composition {
    const struct options *options;
    const struct cluster *cluster;
    struct process_settings process_settings;
    struct cluster_local_peers local_peers;
    struct composition_series_run
        *series_run;                /* the run is one of several, or NULL */
    struct rewind_lineage *lineage; /* of the chief's runs, or NULL; borrowed */
    double rejoin_within; /* seconds within which the chief begins the next run;
                             0: this run is the first or the last */
    struct member_past past; /* of the run before, which the process has left */
    struct copies copies;    /* of a ps, from that run on */
    struct arena_kept kept;  /* of a worker's run before */
    int stopped_by;  /* the signal that was to end the run before; 0: none */
    bool saves;      /* SIGUSR1 came when that was over */
    struct job *job; /* the leader's job, or a job that is only compared with
                        the chief's; to be freed */
    void *zmq;       /* the context of every socket of the process */
    struct link_keys *keys; /* of a run with a secret, closed by the caller;
                               NULL: none */
    struct zap_handler *zap_handler; /* likewise */
    struct roles roles; /* opened by the caller; the roles hold pointers into
                           it, so it must not move */
};

/* Adds the roles of a run or of a bench's servers; the first one names the
 * process. Reads the job if this process leads, and logs the role of the
 * process. STATUS_CONFIG if the job is wrong or does not fit the cluster. */
enum status composition_add_run(struct composition *composition,
                                struct failure *why) MUST_CHECK;

/* Adds only a chief, which answers each join with the refusal WHY (borrowed).
 * STATUS_RETRY: no memory. */
enum status composition_add_refusal(struct composition *composition,
                                    const struct failure *why) MUST_CHECK;

/* Opens the keys of the secret that the settings name, else SECRET_FILE, the
 * job's (NULL: none), if the process has any. The functions below and above
 * that add roles do so too. */
enum status composition_open_keys(struct composition *composition,
                                  const char *secret_file,
                                  struct failure *why) MUST_CHECK;

/* Adds a bench's client instead. BASELINES give the figures beside its own;
 * NULL: MISSING says why there are none. Both are borrowed. */
void composition_add_bench_client(struct composition *composition,
                                  struct baselines *baselines,
                                  const char *missing);

/* Will the library's process compute gradients? A chief that leads reads the
 * job for it. STATUS_CONFIG if the job is wrong. */
enum status composition_trains(const struct options *options,
                               const struct cluster *cluster, bool *trains,
                               struct failure *why) MUST_CHECK;

/* The numbers of trainers and ps for JOB in CLUSTER; this process is the
 * chief. */
struct strategy_case composition_members(const struct options *options,
                                         const struct cluster *cluster,
                                         const struct job *job);

#endif
