/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 as the holder of all blocks in all-reduce: the reducer's blocks are
 * the source of a snapshot agent. It also reads the checkpoint to start from,
 * and lets the chief read and set weights. All functions belong to the
 * communication thread; the callbacks of rank0_snapshot_agent_storage belong to
 * the reducer's thread. */
#ifndef CAPSTAN_RANK0_SNAPSHOT_AGENT_H
#define CAPSTAN_RANK0_SNAPSHOT_AGENT_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "proto/job/job.h"
#include "proto/messages/control.pb-c.h"
#include "proto/messages/member.h"
#include "proto/plan/plan.h"
#include "worker/exchange/allreduce/reducer.h"

#include <zmq.h>

/* Sends CONTROL to the chief: control_client_send_reliable, or a test's
 * function. */
typedef void rank0_snapshot_agent_send(void *context,
                                       Capstan__Control *control);

/* All borrowed. WEIGHTS: parameter p at float offsets[p]. */
struct rank0_snapshot_agent_settings {
    const struct process *process;
    rank0_snapshot_agent_send *send_message;
    void *context;
    const struct job *job;
    const struct plan *plan;
    uint64_t chief; /* the chief's incarnation */
    /* The weights server's link if the chief is in this process. */
    const char *inproc;
    struct buffer *weights;
    const uint64_t *offsets;
};

struct rank0_snapshot_agent;

/* Looks for the chief's lock in the checkpoint directory (locks a directory of
 * this host's own, as a ps does) and tells the chief that it is ready. */
enum status rank0_snapshot_agent_open(
    struct rank0_snapshot_agent **out,
    const struct rank0_snapshot_agent_settings *settings,
    struct failure *why) MUST_CHECK;

/* Ends its threads and clears *AGENT (may be NULL). The reducer
 * may wait in it: close the reducer first, after
 * rank0_snapshot_agent_cancel. */
void rank0_snapshot_agent_close(struct rank0_snapshot_agent **agent);

/* Ends every wait of the reducer's thread in this module. */
void rank0_snapshot_agent_cancel(struct rank0_snapshot_agent *agent);

/* For reducer_settings; a view. */
const struct reducer_storage *rank0_snapshot_agent_storage(
    const struct rank0_snapshot_agent *agent);

/* The same for the rows of tables. */
const struct row_reducer_storage *rank0_snapshot_agent_rows(
    const struct rank0_snapshot_agent *agent);

/* The reducer's functions of these names, or a test's. */
struct rank0_snapshot_agent_callbacks {
    void *context;
    uint64_t (*round)(void *context);
    void (*save)(void *context, uint64_t round);
    void (*save_now)(void *context);
    struct row_reducer *rows; /* NULL: there are no tables */
};

/* The reducer whose rounds are saved; messages before this call are ignored.
 * Copied. */
void rank0_snapshot_agent_attach(
    struct rank0_snapshot_agent *agent,
    const struct rank0_snapshot_agent_callbacks *callbacks);

/* Handles the chief's snapshot messages; ignores all others. */
enum status rank0_snapshot_agent_handle(struct rank0_snapshot_agent *agent,
                                        const Capstan__Control *command,
                                        struct failure *why) MUST_CHECK;

/* Fills ITEMS for zmq_poll, RANK0_SNAPSHOT_AGENT_POLL_ITEMS of them. */
enum { RANK0_SNAPSHOT_AGENT_POLL_ITEMS = 2 };
void rank0_snapshot_agent_poll_items(struct rank0_snapshot_agent *agent,
                                     zmq_pollitem_t *items);

/* Answers received requests and reports what is held or written. */
void rank0_snapshot_agent_step(struct rank0_snapshot_agent *agent);

#endif
