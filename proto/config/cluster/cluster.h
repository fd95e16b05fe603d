/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster description: who is in the job and who am I. Read from flags,
 * TF_CONFIG, CLUSTER_SPEC, or from the ranks that torch, MPI or Slurm give: the
 * first that is set; never from two. Rules and error classes: docs/cluster.md.
 */
#ifndef CAPSTAN_CLUSTER_H
#define CAPSTAN_CLUSTER_H

#include "proto/base/status.h"

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
    char host[256]; /* name or number, IPv6 without brackets; "": not known */
};

struct cluster_job {
    uint32_t count;
    struct cluster_task *tasks; /* ascending index */
    bool present; /* stands in the description, if only as an empty list */
    bool sparse;  /* given by index: there may be more tasks than are listed */
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
    const char *source; /* "flags", "TF_CONFIG", "CLUSTER_SPEC", "torch", "mpi",
                           "slurm", "alone" */
    enum cluster_role role;
    uint32_t index;
    bool local; /* alone: worker 0, nobody else, no address */
    struct cluster_job jobs[CLUSTER_ROLES];
    unsigned warnings;     /* enum cluster_warning, or'ed */
    char *model_dir;       /* default checkpoint directory, or NULL */
    bool from_ranks;       /* only the address of who leads is known */
    uint16_t chief_ports;  /* it takes the first free of so many from its port
                              on; 0: its port */
    char key[CLUSTER_KEY]; /* what its launcher calls this job, "": nothing */
    int64_t local_rank;    /* as told, or CLUSTER_UNKNOWN */
    int64_t local_size;    /* ranks on this host: likewise */
};

/* The command line's part of the description; a NULL is a flag not given.
 * Host lists are comma-separated host:port. */
struct cluster_flags {
    const char *job_name, *task_index;
    const char *ps_hosts, *worker_hosts, *chief_hosts;
    const char *num_ps;     /* the last ranks are ps */
    const char *local_rank; /* as older launchers give it */
    bool alone;             /* whatever the environment says */
};

/* A variable of the environment, or NULL: getenv(3) or a test's table. */
typedef const char *cluster_getenv(void *context, const char *name);

/* Reads and checks the description; FLAGS may be NULL. On success *OUT is the
 * caller's, to be ended by cluster_free. A set but wrong source, and none where
 * a launcher tells of other processes, is STATUS_CONFIG, its text "CLASS: what
 * is wrong and how to mend it". */
enum status cluster_resolve(struct cluster **out,
                            const struct cluster_flags *flags,
                            cluster_getenv *lookup, void *context,
                            struct failure *why) MUST_CHECK;

/* Frees *CLUSTER (may be NULL) and clears it. */
void cluster_free(struct cluster **cluster);

/* "chief", "worker", "ps", "evaluator". */
const char *cluster_role_name(enum cluster_role role);

/* The task of ROLE and INDEX, or NULL when it is not listed. */
const struct cluster_task *cluster_find(const struct cluster *cluster,
                                        enum cluster_role role, uint32_t index);

/* This process's own entry, or NULL (local, unlisted evaluator). */
const struct cluster_task *cluster_own_task(const struct cluster *cluster);

/* A chief, worker or ps that has the address of another one of them, and a port
 * that is not 0; NULL: there is none. */
const struct cluster_task *cluster_duplicate_address(
    const struct cluster *cluster);

/* Who leads: chief 0, else worker 0; NULL when neither is listed. */
const struct cluster_task *cluster_chief(const struct cluster *cluster);

/* True when this process is the one that leads. */
bool cluster_is_chief(const struct cluster *cluster);

/* Does this process lead, and are there others that join it? */
bool cluster_expects_joins(const struct cluster *cluster);

/* The object that `capstan cluster` prints, one line, no newline; the
 * caller frees it. `chief` is null when none is known. NULL: no memory. */
char *cluster_json(const struct cluster *cluster);

/* Writes "host:port" or "[v6]:port", cut to SIZE bytes (270 hold any). */
void cluster_address(const struct cluster_task *task, char *text, size_t size);

#endif
