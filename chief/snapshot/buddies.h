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
#include "core/store/copies.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

enum { BUDDIES_SETS = 4 };

/* What a ps's process had in memory when it joined. */
struct buddies_held {
    uint32_t count;
    struct {
        uint64_t step;
        uint32_t ps;
    } list[COPIES_MOST];
};

/* The parts of one step, up to the complete copy. */
struct buddies_set {
    uint64_t step; /* 0: none */
    struct run_snapshot snapshot;
    uint32_t written, fetched; /* by how many ps */
    char *manifest;            /* once all have written theirs */
};

struct run_buddies {
    struct buddies_set sets[BUDDIES_SETS];
    uint64_t ordered;    /* the step that ps fetch from each other; 0: none */
    uint64_t every_seen; /* staleness: the last multiple that was due */
    uint64_t complete;   /* the newest step of this run; 0: none */
    int64_t complete_at; /* when it was, or when training began */
    bool is_warned;      /* that there has been none for long */
};

/* STATUS_CONFIG: the job wants copies in memory, and RUN cannot have them. */
enum status buddies_check(const struct run *run,
                          struct failure *why) MUST_CHECK;

/* Frees what is not complete. */
void buddies_close(struct run *run);

/* JOIN, of a ps, is accepted in SLOT. */
void buddies_take_held(struct run *run, const struct roster_slot *slot,
                       const Capstan__Join *join);

/* If the copy of the run before is newer than the checkpoint that RUN's plan is
 * to restore, and its parts are there, the plan restores it instead. */
enum status buddies_find_start(struct run *run, struct failure *why) MUST_CHECK;

/* Which ps has the part of PS of what the plan restores from memory. */
uint32_t buddies_source(const struct run *run, uint32_t ps);

/* The steps between two copies by the plan; 0: there are none. */
uint64_t buddies_steps(const struct run *run);

/* Training begins: what it was restored from is to be on two ps again. */
void buddies_begin(struct run *run);

/* With staleness: is a copy due? */
bool buddies_due(struct run *run);

/* SLOT, a ps, has written or fetched a part, or could not. */
void buddies_receive(struct run *run, const struct roster_slot *slot,
                     const Capstan__BuddyReport *report);

#endif
