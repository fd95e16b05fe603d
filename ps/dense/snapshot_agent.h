/* SPDX-License-Identifier: Apache-2.0 */
/* The ps's side of snapshots: assigns block states to snapshots, writes them to
 * the checkpoint directory and reports to the chief. */
#ifndef CAPSTAN_SNAPSHOT_AGENT_H
#define CAPSTAN_SNAPSHOT_AGENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/net/messages/control_client.h"
#include "proto/tensor/plan.h"
#include "ps/server.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct snapshot_agent_settings {
    const struct process *process;
    struct control_client *control_client;
    const struct plan *plan;
    uint32_t index;
    uint64_t copy_bytes; /* limit of copies; 0: half of the free memory */
};

struct snapshot_agent;

/* Looks for the chief's marker file in the checkpoint directory. If the
 * directory is this host's own, locks it (dir_lock.h): STATUS_CONFIG if another
 * run has it. */
enum status snapshot_agent_open(struct snapshot_agent **out,
                                const struct snapshot_agent_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Starts the writer thread for SERVER's blocks. */
enum status snapshot_agent_attach(struct snapshot_agent *snapshot_agent,
                                  struct server *server,
                                  struct failure *why) MUST_CHECK;

/* Ends the writer thread and removes unfinished files. */
void snapshot_agent_close(struct snapshot_agent **snapshot_agent);

/* Is this ps's checkpoint directory the chief's? */
bool snapshot_agent_shares_folder(const struct snapshot_agent *snapshot_agent);

/* For server_settings: CONTEXT is the agent. */
void snapshot_agent_add_block(void *context, uint32_t block, uint64_t version);

/* For server_settings: sends the square sums of ROUND to the chief. */
void snapshot_agent_send_square_sums(void *context, uint64_t round,
                                     const double *sums);

/* Commands of the chief. Prepare: freeze rounds and report the highest. */
enum status snapshot_agent_prepare(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotPrepare *command);

/* Take a snapshot at a round or now, or write one that is held. */
enum status snapshot_agent_snapshot(struct snapshot_agent *snapshot_agent,
                                    const Capstan__Snapshot *command,
                                    struct failure *why) MUST_CHECK;

/* Release a snapshot. */
enum status snapshot_agent_release(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotRelease *command);

/* Remove files of earlier steps that are not listed, in a directory that the
 * chief does not share. */
enum status snapshot_agent_retain(struct snapshot_agent *snapshot_agent,
                                  const Capstan__Retain *command);

/* Readable when snapshot_agent_step has something to report. */
int snapshot_agent_descriptor(const struct snapshot_agent *snapshot_agent);

/* Reports each snapshot that was written or failed to the chief. */
enum status snapshot_agent_step(struct snapshot_agent *snapshot_agent,
                                struct failure *why) MUST_CHECK;

/* Have the copies for a snapshot reached their limit? The ps then reads no
 * pushes until the writer has caught up. */
bool snapshot_agent_is_full(struct snapshot_agent *snapshot_agent);

#endif
