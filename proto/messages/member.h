/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of one role share (struct process), and how the role joins its
 * chief (struct member). All pointers are borrowed. */
#ifndef CAPSTAN_MEMBER_H
#define CAPSTAN_MEMBER_H

#include "core/base/log.h"
#include "proto/cluster/cluster_size.h"

#include <stdbool.h>
#include <stdint.h>

struct copies;
struct health;
struct link_keys;
struct rule_loops;
struct trace;
struct histograms;

/* A role keeps one and lends it to its parts. */
struct process {
    void *zmq;                      /* the context of every socket */
    const struct log *log;          /* the role's */
    const struct rule_loops *loops; /* NULL: the best for this CPU */
    bool shm; /* shared memory between processes on one host is allowed */
    const char *address; /* the only one to listen on, to announce and to
                            connect from (interface.h); NULL: any */
    const struct link_keys *keys; /* of a run with a secret; NULL: none */
    bool stays_here; /* all processes of the run are on this host, by `capstan
                        local`: NCCL is used with a secret, too */
    int interrupts;  /* descriptor that delivers signal numbers; -1: none */
    struct health *health; /* where the role tells of itself; NULL: nowhere */
    struct trace *trace;   /* of the steps that the plan names; NULL: none. Set
                              by the control client, which closes it */
    struct histograms *histograms; /* of weights and gradients; NULL: none. Set
                                      by the role at the plan; the control
                                      client sends and closes them */
    /* In every message; set by the control client. */
    uint64_t run;         /* the run joined, 0 before */
    uint64_t incarnation; /* 0 before control_client_open */
};

/* What a process keeps of its run, to join the one that goes on for it. */
struct member_past {
    uint64_t run;     /* the last one of which it had a view; 0: none */
    uint64_t lineage; /* of that run's checkpoints */
    uint64_t job;     /* message_job_digest */
    uint64_t step;    /* the highest that it knows of */
    uint64_t saved;   /* of the newest checkpoint that it knows of */
    uint64_t steps_again;
    uint64_t furthest; /* of the lineage's runs before, */
    uint32_t in_vain;  /* and how many since one of them got further */
    uint32_t rewinds;
    int64_t heard_at;     /* when it has heard the chief */
    bool chief_lost;      /* it has left as its chief was gone */
    const char *join_key; /* the timeout within which it joins; NULL: the
                             start's */
};

struct member {
    enum cluster_role role;
    uint32_t index;
    const struct cluster_task *self;  /* address to bind; NULL: none */
    const struct cluster_task *chief; /* NULL: unknown, or in this process */
    const char *chief_inproc; /* the chief's link in this process, or NULL */
    uint16_t chief_ports; /* number of ports, from its own on, that the chief
                             may listen on; 0: 1 */
    /* Its hosts may announce a chief, and a worker queries its ps for one;
     * NULL: the chief is known. */
    const struct cluster *discovery_cluster;
    const char *key;          /* the launcher's name for this job, or NULL */
    struct cluster_size size; /* as configured in this process */
    const char *own_job;      /* text of a job given to this process, compared
                                 with the chief's and not used; NULL: none */
    double join_timeout;      /* seconds */
    int record; /* descriptor for the launcher (launch_record.h); 0: none */
    double *restart_within;   /* set when the chief continues with another run:
                                 seconds to join it within; may be NULL */
    struct member_past *past; /* of the process's last run, kept for the next;
                                 NULL: its chief is in this process */
    struct copies *copies;    /* likewise of a ps, in memory */
};

#endif
