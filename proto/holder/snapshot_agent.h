/* SPDX-License-Identifier: Apache-2.0 */
/* A holder's side of snapshots: assigns block states to snapshots, writes them
 * to the checkpoint directory, answers the chief's commands and reports to it.
 * Where the blocks come from (a ps's shard; in all-reduce the reducer of
 * rank 0) is a table of functions. */
#ifndef CAPSTAN_SNAPSHOT_AGENT_H
#define CAPSTAN_SNAPSHOT_AGENT_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/holder/snapshots.h"
#include "proto/messages/control.pb-c.h"
#include "proto/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* The holder's blocks. A block that reaches a version asks snapshot_agent_due
 * whether it is to be added to a snapshot. */
struct snapshot_agent_source {
    void *context;
    /* Returns the highest version that a block has reached or may be on its way
     * to; none goes further than one above it until hold_at. */
    uint64_t (*freeze)(void *context);
    /* Lifts the freeze. Unless ROUND is 0 (it is planned, or there is nothing
     * to hold), each block asks at ROUND as it does at planned rounds. WRITE:
     * the blocks are needed for a checkpoint. */
    enum status (*hold_at)(void *context, uint64_t round, bool write,
                           struct failure *why);
    /* Adds all blocks to ID as they are now, or promises them. */
    enum status (*hold_now)(void *context, uint64_t id, struct failure *why);
    /* The promised blocks are to be written: each asks at the promised step.
     * NULL: never promised. */
    void (*hand_over)(void *context);
    /* Later deltas are against snapshot ID, of which there is a full checkpoint
     * now. NULL: the holder has no tables. */
    void (*set_base)(void *context, uint64_t id);
    /* A copy in memory is there, whose file is the function's, or is not, as
     * MESSAGE says to the chief. NULL: there are none. */
    void (*copied)(void *context, const struct snapshots_report *report,
                   Capstan__SnapshotReport *message);
};

/* All borrowed. `send` gets the messages to the chief: for
 * control_client_send_reliable, or a test. */
struct snapshot_agent_settings {
    const struct log *log;
    void (*send)(void *context, Capstan__Control *control);
    void *send_context;
    uint64_t run;
    const struct plan *plan;
    const char *owner;     /* "ps 1", while it is opened: see dir_lock.h */
    uint32_t index, count; /* this holder and how many there are */
    bool has_first_block;  /* the plan's */
    bool can_retain;       /* reads of snapshots are answered from them */
    struct snapshots_settings blocks;
    struct snapshot_agent_source source;
};

struct snapshot_agent;

/* Looks for the chief's marker file in the checkpoint directory. If the
 * directory is this host's own, locks it (dir_lock.h): STATUS_CONFIG if another
 * run has it. Starts the writer thread. */
enum status snapshot_agent_open(struct snapshot_agent **out,
                                const struct snapshot_agent_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Ends the writer thread, removes unfinished files and clears *AGENT
 * (may be NULL). */
void snapshot_agent_close(struct snapshot_agent **agent);

/* Is this holder's checkpoint directory the chief's? */
bool snapshot_agent_shares_folder(const struct snapshot_agent *agent);

/* The snapshots to add blocks to; view. */
struct snapshots *snapshot_agent_snapshots(const struct snapshot_agent *agent);

/* A block has reached VERSION, a planned or requested round: *ID is the
 * snapshot that it is to be added to. False: none, as it was skipped, released
 * or failed. On any thread, but not on two at a time. */
bool snapshot_agent_due(struct snapshot_agent *agent, uint64_t version,
                        uint64_t *id);

/* Copies in memory were made faster than they are used: fewer are made. */
void snapshot_agent_slow_down(struct snapshot_agent *agent);

/* The snapshot with which an interrupted run ends; 0: not yet known. */
uint64_t snapshot_agent_last(const struct snapshot_agent *agent);

/* The chief has been silent for long: rounds that are frozen for a snapshot go
 * on, which that snapshot then lacks. */
enum status snapshot_agent_lift(struct snapshot_agent *agent,
                                struct failure *why) MUST_CHECK;

/* Another chief leads the run, whose newest checkpoint is of step SAVED:
 * forgets the snapshots that were requested. */
enum status snapshot_agent_forget(struct snapshot_agent *agent, uint64_t saved,
                                  struct failure *why) MUST_CHECK;

/* Handles the chief's snapshot commands and ignores all others. */
enum status snapshot_agent_handle(struct snapshot_agent *agent,
                                  const Capstan__Control *command,
                                  struct failure *why) MUST_CHECK;

/* Readable when snapshot_agent_step has something to report. */
int snapshot_agent_descriptor(const struct snapshot_agent *agent);

/* Reports to the chief what is held, written or failed. */
void snapshot_agent_step(struct snapshot_agent *agent);

#endif
