/* A process of a run or of a bench: the roles that its cluster description
 * gives it, one to three, each on a thread of its own, in one ZeroMQ context;
 * and the signals, which go to the first of them. */
#ifndef CAPSTAN_PROCESS_H
#define CAPSTAN_PROCESS_H

#include "chief/series.h"
#include "proto/base/status.h"
#include "proto/conf/cluster.h"
#include "proto/conf/job.h"
#include "proto/conf/options.h"
#include "proto/math/rule.h"

#include <stdbool.h>

/* What the user chooses for a process, not for a run. */
struct process_choices {
    const struct rule_loops *loops; /* CAPSTAN_CPU, else the best */
    bool lanes; /* shared memory on one host: --lane, CAPSTAN_LANE */
};

/* Reads flags and environment. STATUS_CONFIG says what is allowed. */
enum status process_choose(struct process_choices *choices,
                           const struct options *options,
                           struct failure *why) MUST_CHECK;

/* A variable of the environment, for cluster_resolve. */
const char *process_environment(void *context, const char *name);

/* Plays the process's part of a run to its end, and of those that its chief
 * leads after it; returns what it exits with. All is borrowed. WHY is left
 * empty when the log has said it. */
enum status process_run(const struct options *options,
                        const struct process_choices *choices,
                        const struct cluster *cluster,
                        struct failure *why) MUST_CHECK;

/* One run of several that this process leads. */
struct process_lead {
    struct job *job; /* its batch is solved */
    struct series series;
};

/* Plays this process's part, the chief's, of one run of a series: the run's
 * status, with WHY, which the log has not said. Call it again for the next. */
enum status process_lead(const struct options *options,
                         const struct process_choices *choices,
                         const struct cluster *cluster,
                         struct process_lead *lead,
                         struct failure *why) MUST_CHECK;

/* The same of a bench. *RESULT is the client's, to be freed, or NULL. Forks: no
 * other thread may run. */
enum status process_bench(const struct options *options,
                          const struct process_choices *choices,
                          const struct cluster *cluster, char **result,
                          struct failure *why) MUST_CHECK;

#endif
