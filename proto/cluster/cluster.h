/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster description: the processes of the job, and the role of this
 * process. It is read from the first source that is set: flags, TF_CONFIG,
 * CLUSTER_SPEC, the ranks from torch, MPI or Slurm, or another launcher's
 * variables. Sources are never combined. Rules and error classes:
 * docs/cluster.md. */
#ifndef CAPSTAN_CLUSTER_H
#define CAPSTAN_CLUSTER_H

#include "core/base/status.h"
#include "core/net/link/link_keys.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cluster_role {
    CLUSTER_CHIEF,
    CLUSTER_WORKER,
    CLUSTER_PS,
    CLUSTER_EVALUATOR,
    CLUSTER_ROLES
};

struct cluster_task {
    uint32_t index;
    uint16_t port;  /* 0: any free port */
    char host[256]; /* name or number, IPv6 without brackets; "": unknown */
};

struct cluster_job {
    uint32_t count;
    struct cluster_task *tasks; /* ascending index */
    bool present; /* the description has this job, maybe as an empty list */
    bool sparse;  /* given by index: tasks may exist that are not listed */
};

enum cluster_warning {
    CLUSTER_DUPLICATE_KEY = 1 << 0,
    CLUSTER_NULL_JOB = 1 << 1,
    CLUSTER_TASK_MISSING = 1 << 2,
    CLUSTER_OWN_ADDRESS_ONLY = 1 << 3,
    CLUSTER_PORT_ZERO = 1 << 4,
    CLUSTER_DUPLICATE_ADDRESS = 1 << 5,
};

enum { CLUSTER_KEY = 128, CLUSTER_UNKNOWN = -1 };

struct cluster {
    const char *source; /* one of cluster_sources: "flags", "TF_CONFIG", ... */
    enum cluster_role role;
    uint32_t index;
    bool local; /* alone: worker 0, no other process, no address */
    struct cluster_job jobs[CLUSTER_ROLES];
    unsigned warnings;     /* enum cluster_warning, or'ed */
    char *model_dir;       /* default checkpoint directory, or NULL */
    bool from_ranks;       /* of workers, only the leader's address is known */
    bool takes_num_ps;     /* --num-ps of the ranks are ps */
    bool coordinates;      /* the chief does not train unless the job says so */
    uint16_t chief_ports;  /* the leader listens on the first free port of this
                              many from its port on; 0: on its port */
    char key[CLUSTER_KEY]; /* the launcher's identifier of this job, "": none */
    int64_t local_rank;    /* from the launcher, or CLUSTER_UNKNOWN */
    int64_t local_size;    /* ranks on this host, from the launcher, or
                              CLUSTER_UNKNOWN */
    bool join; /* --join: a worker may be one beyond the list; the leader's run
                  takes such workers */
};

/* The command line's part of the description; NULL: flag not given. Host lists
 * are comma-separated host:port. */
struct cluster_flags {
    const char *job_name, *task_index;
    const char *ps_hosts, *worker_hosts, *chief_hosts;
    const char *num_ps;     /* number of last ranks that are ps */
    const char *local_rank; /* --local_rank, as older launchers append it */
    bool alone;             /* the environment is ignored */
    bool join;              /* as in struct cluster */
};

/* Looks up a variable of the environment, or NULL: getenv(3) or a test's
 * table. */
typedef const char *cluster_getenv(void *context, const char *name);

/* Reads and checks the description; FLAGS may be NULL. On success the caller
 * frees *OUT with cluster_free. STATUS_CONFIG if the source that is set is
 * wrong, or if no source is set but a launcher's variables show other
 * processes; the text is "CLASS: what is wrong and how to mend it". */
enum status cluster_resolve(struct cluster **out,
                            const struct cluster_flags *flags,
                            cluster_getenv *lookup, void *context,
                            struct failure *why) MUST_CHECK;

enum { CLUSTER_SOURCES_MAX = 32, CLUSTER_SOURCE_VARIABLES = 12 };

/* What became of one source. */
struct cluster_source {
    const char *name;
    const char *first; /* the first variable or flag that it reads */
    enum cluster_source_state {
        CLUSTER_SOURCE_NOT_SET,
        CLUSTER_SOURCE_INCOMPLETE, /* too little is set to describe a cluster */
        CLUSTER_SOURCE_TAKEN,
        CLUSTER_SOURCE_LATER, /* set, but another is before it */
    } state;
    const char *variables[CLUSTER_SOURCE_VARIABLES]; /* or flags, that it reads
                                                        and that are set */
    uint32_t count;
};

/* Fills OUT with all sources in their order, for the same arguments as
 * cluster_resolve's; returns their number. */
uint32_t cluster_sources(struct cluster_source out[CLUSTER_SOURCES_MAX],
                         const struct cluster_flags *flags,
                         cluster_getenv *lookup, void *context);

/* True if a process that is started with a description of its own must not
 * inherit VARIABLE, as it belongs to another one. */
bool cluster_hides(const char *variable);

/* Frees *CLUSTER (may be NULL) and clears it. */
void cluster_free(struct cluster **cluster);

/* "chief", "worker", "ps", "evaluator". */
const char *cluster_role_name(enum cluster_role role);

/* As which its keys name a process: the leader is chief 0, whatever its
 * role. */
static inline struct link_party cluster_party(enum cluster_role role,
                                              uint32_t index) {
    return (struct link_party){cluster_role_name(role), index};
}

/* The task of ROLE and INDEX, or NULL when it is not listed. */
const struct cluster_task *cluster_find(const struct cluster *cluster,
                                        enum cluster_role role, uint32_t index);

/* This process's own task, or NULL (local, an unlisted evaluator, or a worker
 * beyond the list). */
const struct cluster_task *cluster_own_task(const struct cluster *cluster);

/* A chief, worker or ps that has the same address as another one and a port
 * other than 0; NULL: none. */
const struct cluster_task *cluster_duplicate_address(
    const struct cluster *cluster);

/* The leader: chief 0, else worker 0; NULL if neither is listed. */
const struct cluster_task *cluster_chief(const struct cluster *cluster);

/* True if this process is the leader. */
bool cluster_is_chief(const struct cluster *cluster);

/* True if this process leads and other processes join it. */
bool cluster_expects_joins(const struct cluster *cluster);

/* The object that `capstan cluster` prints, on one line without a newline; the
 * caller frees it. `chief` is null if it is not known. NULL: no memory. */
char *cluster_json(const struct cluster *cluster);

/* Writes "host:port" or "[v6]:port", cut to SIZE bytes (270 are enough). */
void cluster_address(const struct cluster_task *task, char *text, size_t size);

#endif
