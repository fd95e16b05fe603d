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

/* What a ps has told of a step. */
struct buddies_part {
    bool written; /* its own part is in its memory, */
    bool fetched; /* and that of another ps */
};

/* The parts of one step, up to the complete copy. */
struct buddies_set {
    uint64_t step; /* 0: none */
    int64_t since; /* when it began, or was ordered */
    struct run_snapshot snapshot;
    uint64_t base; /* the step of the copy that some parts are deltas of; 0:
                      they are whole */
    uint32_t num_ps;
    struct buddies_part *parts; /* [num_ps] */
    bool *kept;    /* [num_ranks]: trainers that have what they keep with it */
    bool has_lead; /* one of them what is alike on all ranks */
    int64_t whole_at; /* all ps and trainers have their parts; 0: not yet */
};

/* A whole copy that is complete, which later ones may be deltas of. */
struct buddies_base {
    uint64_t step;            /* 0: there is none */
    char *manifest;           /* owned */
    struct shard_info *files; /* owned: [num_holders] */
    uint64_t row_bytes;       /* of them those of tables */
    bool is_old;              /* the next copies are to be whole */
};

struct run_buddies {
    struct buddies_set sets[BUDDIES_SETS];
    struct buddies_base base;
    uint64_t ordered;    /* the step that ps fetch from each other; 0: none */
    uint64_t every_seen; /* staleness: the last multiple that was due, */
    uint64_t newest;     /* and the newest step that a ps has copied */
    uint64_t complete;   /* the newest step of this run; 0: none */
    bool has_begun;      /* training has */
    int64_t complete_at; /* when it was, or when training began */
    bool is_warned;      /* that there has been none for long */
};

/* Which step is copied is decided without a socket or a clock, also by the
 * simulation. The set of STEP (not 0), or NULL. */
struct buddies_set *buddies_find(struct run_buddies *buddies, uint64_t step);

/* A set of STEP, without files, in place of none or of the oldest that is not
 * ordered. NULL: STEP is older than all, or there is no memory. */
struct buddies_set *buddies_begin(struct run_buddies *buddies, uint64_t step,
                                  uint32_t num_ps, uint32_t num_ranks,
                                  int64_t now);

/* Has each ps told that it has another one's part of SET too? */
bool buddies_is_on_two(const struct buddies_set *set);

/* May a part of SET be what has changed since BASE (0: it is whole)? Not if its
 * ps has not heard of the newest base, or has heard of one from the chief
 * before. */
bool buddies_take_base(const struct run_buddies *buddies,
                       struct buddies_set *set, uint64_t base);

/* Where none is ordered, orders the newest set that all ps have written, which
 * it returns, and forgets older ones, and those without the newest base. NULL:
 * there is none. */
struct buddies_set *buddies_order(struct run_buddies *buddies, int64_t now);

/* With staleness: may STEP be copied, as which a snapshot that was requested
 * has turned out? Only once, as the next has other updates. */
static inline bool buddies_may_copy(struct run_buddies *buddies,
                                    uint64_t step) {
    if (step <= buddies->newest)
        return false;
    buddies->newest = step;
    return true;
}

/* With staleness: is a copy due at STEP, one each EVERY steps? Not one of a
 * step that has been copied, perhaps with fewer updates. */
bool buddies_is_due(struct run_buddies *buddies, uint64_t every, uint64_t step);

/* SET is complete, or given up. */
void buddies_forget(struct run_buddies *buddies, struct buddies_set *set);

/* Does a run that has gone back IN_VAIN times without coming further start from
 * its copy of step COPY? Else from its checkpoint of step SAVED, if it
 * HAS_SAVED one. */
bool buddies_are_chosen(uint64_t copy, uint32_t in_vain, bool has_saved,
                        uint64_t saved);

/* STATUS_CONFIG: the job wants copies in memory, and RUN cannot have them. */
enum status buddies_check(const struct run *run,
                          struct failure *why) MUST_CHECK;

/* Frees what is not complete. */
void buddies_close(struct run *run);

/* If the copy of the run before is newer than the checkpoint that RUN's plan is
 * to restore, and its parts are there, the plan restores it instead. */
enum status buddies_find_start(struct run *run, struct failure *why) MUST_CHECK;

/* Have the ps that RUN has the whole copy of the run before, for fewer ps than
 * made it? */
bool buddies_can_take_over(const struct run *run);

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
