/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers of an external model keep with a checkpoint. A trainer that has
 * kept anything is waited for at each later one, so that none lacks a part. */
#ifndef CAPSTAN_KEPT_STATES_H
#define CAPSTAN_KEPT_STATES_H

#include "chief/control/roster.h"
#include "core/store/manifest.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

/* The files of a trainer at a step. */
struct kept_state {
    uint32_t rank;
    uint64_t step;
    bool lead;
    uint32_t num_files;
    struct shard_info *files;
    char error[256]; /* why there are none, or "" */
};

struct run_kept {
    struct kept_state *items; /* [count] */
    uint32_t count;
    bool is_used;     /* a trainer has kept something, in this run */
    bool needs_lead;  /* a lead has kept what is alike on all ranks */
    uint64_t adopted; /* the run was adopted: with steps up to here a trainer
                         that is gone may have kept what only the chief before
                         had; 0: none has */
};

/* SLOT, a trainer, keeps something, or has written it. */
void kept_states_receive(struct run *run, const struct roster_slot *slot,
                         const Capstan__Kept *kept);

/* With staleness no rank knows of a step that all have reached: each that keeps
 * something, or begins to before STEP's checkpoint is complete, is told to
 * write it with STEP. Synchronous: no-op. */
void kept_states_request(struct run *run, uint64_t step);

/* Sends CONTROL to each live trainer that keeps something. */
void kept_states_send(struct run *run, Capstan__Control *control);

/* Synchronous: does any trainer keep something? Then one that joins reads it
 * from a checkpoint. */
bool kept_states_any(const struct run *run);

/* Does a live trainer still have to write what it keeps with STEP? Then NAME
 * [64] names it. */
bool kept_states_awaited(const struct run *run, uint64_t step, char *name);

/* The files of STEP; the caller frees *FILES. STATUS_FAILED: a trainer could
 * not write its own, or the lead's are missing. Those of earlier steps are
 * forgotten; with staleness, where each snapshot requests its own, STEP's too.
 */
enum status kept_states_take(struct run *run, uint64_t step,
                             struct shard_info **files, uint32_t *count,
                             struct failure *why) MUST_CHECK;

void kept_states_free(struct run *run);

#endif
