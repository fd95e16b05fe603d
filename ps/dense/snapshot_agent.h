/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts: which snapshot a block's state belongs to, and their way to the
 * checkpoint directory and back to the chief. */
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
    const struct log *log;
    struct control_client *control_client;
    const struct plan *plan;
    uint32_t index;
    uint64_t copy_bytes; /* limit of copies; 0: half of the free memory */
};

struct snapshot_agent;

/* Looks for the chief's mark in the checkpoint directory; one of this host's
 * own is claimed (dir_lock.h): STATUS_CONFIG when another run lives in it. */
enum status snapshot_agent_open(struct snapshot_agent **out,
                                const struct snapshot_agent_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Starts the writing thread for SERVICE's blocks. */
enum status snapshot_agent_attach(struct snapshot_agent *snapshot_agent,
                                  struct server *server,
                                  struct failure *why) MUST_CHECK;

/* Ends the writing thread; what is half written is removed. */
void snapshot_agent_close(struct snapshot_agent **snapshot_agent);

/* Does this ps see the folder that the chief sees? */
bool snapshot_agent_shares_folder(const struct snapshot_agent *snapshot_agent);

/* For server_settings: CONTEXT is the cutter. */
void snapshot_agent_add_block(void *context, uint32_t block, uint64_t version);

/* The square sums of a round are complete: the chief gets them. */
void snapshot_agent_send_square_sums(void *context, uint64_t round,
                                     const double *sums);

/* Orders of the chief. */
enum status snapshot_agent_prepare(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotPrepare *command);

/* Take a snapshot at a round or now, or write one that is held. */
enum status snapshot_agent_take(struct snapshot_agent *snapshot_agent,
                                const Capstan__Snapshot *command,
                                struct failure *why) MUST_CHECK;

/* Let a snapshot go. */
enum status snapshot_agent_release(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotRelease *command);

/* Remove files of steps that no longer stand, in a folder of one's own. */
enum status snapshot_agent_retain(struct snapshot_agent *snapshot_agent,
                                  const Capstan__Retain *command);

/* Polls readable when snapshot_agent_step has something to report. */
int snapshot_agent_descriptor(const struct snapshot_agent *snapshot_agent);

/* Tells the chief of each snapshot that was written or failed. */
enum status snapshot_agent_step(struct snapshot_agent *snapshot_agent,
                                struct failure *why) MUST_CHECK;

/* Have the copies of a running snapshot reached their limit? Pushes then wait
 * for the writer. */
bool snapshot_agent_is_full(struct snapshot_agent *snapshot_agent);

#endif
