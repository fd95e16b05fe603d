/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a ps, shared by ps.c (event loop and the chief's commands) and
 * ps_snapshot.c (blocks for snapshots). */
#ifndef CAPSTAN_PS_INTERNAL_H
#define CAPSTAN_PS_INTERNAL_H

#include "core/base/background_task.h"
#include "core/net/link/link.h"
#include "proto/holder/snapshot_agent.h"
#include "proto/messages/control_client.h"
#include "proto/messages/discovery_guard.h"
#include "proto/messages/message.h"
#include "proto/plan/plan.h"
#include "ps/ps.h"
#include "ps/server.h"
#include "ps/units/shard_init.h"

struct ps {
    struct process process;
    const struct member *member;
    struct control_client *control_client;
    struct discovery_guard discovery_guard;
    struct link *link;
    struct job *job;
    struct plan *plan;
    uint32_t place; /* among the plan's ps */
    struct shard_init shard_init;
    struct background_task *init_task; /* while weights are set, else NULL */
    struct buddy_fetch *fetch;         /* of a copy in memory, or NULL */
    uint32_t part; /* of the copy that is restored: the next; plan->num_buddies:
                      none */
    uint64_t copy_base; /* the step of the base of that copy; 0: it is whole */
    uint64_t copies_base; /* and of the one that copies are against; 0: none */
    bool has_fetched;     /* the part was fetched for that */
    struct server *server;
    struct snapshot_agent *snapshot_agent;
    uint64_t held_now;      /* the snapshot of blocks as they are; 0: none */
    uint64_t copy_bytes;    /* limit of copies for snapshots */
    bool copies_full;       /* they have reached it, and the log says so */
    bool memory_short;      /* the run ends with the next requested snapshot */
    uint64_t memory_seen;   /* bytes of rows, and of those of a round, at the
                               last look at memory; */
    uint64_t largest_round; /* those of a round */
    int64_t memory_seen_at;
    uint64_t added_id;  /* the snapshot that blocks were added to last, */
    uint32_t num_added; /* and how many of them */
    uint32_t *ids, num_blocks; /* of which the last are partitions of tables */
    uint64_t *table_counts;    /* for heartbeats; NULL: no plan yet */
    uint64_t *rule_steps;      /* [num_blocks], restored */
    uint64_t chief;            /* its incarnation */
    uint64_t shm_key;          /* key of the shared-memory endpoint; 0: none */
    int64_t round_since;  /* when it closed (with staleness the last push was
                             applied), or the first view came; 0: no view has */
    uint64_t noted_round; /* that one */
    struct link_party *parties; /* [num_ranks], as of the last view */
    uint64_t *noted_clocks; /* [num_ranks]: of the last push noted of each */
    uint64_t reported_step; /* staleness > 0: global step last reported to the
                               chief */
    bool weights_set;       /* and trainers may read them */
    bool files_unread;      /* the chief has not read the checkpoint's files
                               (run_newest_checkpoint) */
    bool stopped;           /* the chief ordered the stop */
    enum failure_code interrupted; /* by a signal, or FAILURE_NONE */
    int64_t polled;                /* when control messages were last handled */
    bool busy;                     /* the last turn received frames */
    struct message_arena arena;
};

/* Opens the snapshot agent over this ps's blocks. Before the first command
 * `server` is set. */
enum status ps_snapshot_open(struct ps *ps, struct failure *why) MUST_CHECK;

/* For server_settings, CONTEXT is the ps: adds BLOCK to the snapshot that is
 * due at VERSION, if any; sends the square sums of ROUND to the chief. */
void ps_snapshot_reached(void *context, uint32_t block, uint64_t version);
void ps_snapshot_send_square_sums(void *context, uint64_t round,
                                  const double *sums);

/* Have the copies for a snapshot reached their limit? The ps then reads no
 * pushes until the writer has caught up. Nor does it when memory is short and
 * the last snapshot is complete. */
bool ps_snapshot_is_full(struct ps *ps);

/* If rows of tables, and what a round may add, leave no more memory than the
 * next checkpoint takes: asks the chief for that checkpoint and the end of the
 * run. FAILURE_TOO_LITTLE_MEMORY: there is not room for the round. */
enum status ps_snapshot_check_memory(struct ps *ps,
                                     struct failure *why) MUST_CHECK;

#endif
