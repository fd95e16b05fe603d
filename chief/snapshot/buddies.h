/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory (strategy.replicas), to which a run goes back after a ps has
 * died: of one step each ps has its own part and that of another ps, its
 * buddy's, on another host where there is one. A copy is complete once all ps
 * have told that they have both; it is then a checkpoint in all but its place.
 */
#ifndef CAPSTAN_BUDDIES_H
#define CAPSTAN_BUDDIES_H

#include "chief/control/roster.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "core/base/status.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

enum { BUDDIES_SETS = 4 };

/* The parts of one step, up to the complete copy. */
struct buddies_set {
    uint64_t step; /* 0: none */
    struct run_snapshot snapshot;
    uint32_t written, fetched; /* by how many ps */
    bool *kept;    /* [num_ranks]: trainers that have what they keep with it */
    bool has_lead; /* one of them what is alike on all ranks */
    int64_t whole_at; /* all ps and trainers have their parts; 0: not yet */
};

struct run_buddies {
    struct buddies_set sets[BUDDIES_SETS];
    uint64_t ordered; /* the step that ps fetch from each other; 0: none */
    int64_t ordered_at;
    uint64_t every_seen; /* staleness: the last multiple that was due */
    uint64_t complete;   /* the newest step of this run; 0: none */
    bool has_begun;      /* training has */
    int64_t complete_at; /* when it was, or when training began */
    bool is_warned;      /* that there has been none for long */
};

/* STATUS_CONFIG: the job wants copies in memory, and RUN cannot have them. */
enum status buddies_check(const struct run *run,
                          struct failure *why) MUST_CHECK;

/* Frees what is not complete. */
void buddies_close(struct run *run);

/* If the copy of the run before is newer than the checkpoint that RUN's plan is
 * to restore, and its parts are there, the plan restores it instead. */
enum status buddies_find_start(struct run *run, struct failure *why) MUST_CHECK;

/* Each turn of the chief's loop: once training begins, what it was restored
 * from is to be on two ps again; with staleness a copy may be due. As of
 * checkpoint_commit_step. */
void buddies_step(struct run *run,
                  bool (*write_metrics)(struct run *, uint64_t));

/* SLOT, a trainer, has in memory what it keeps with a copy, or has not. */
void buddies_receive_kept(struct run *run, const struct roster_slot *slot,
                          const Capstan__Kept *kept);

/* SLOT, a ps, has written or fetched a part, or could not. */
void buddies_receive(struct run *run, const struct roster_slot *slot,
                     const Capstan__BuddyReport *report);

#endif
